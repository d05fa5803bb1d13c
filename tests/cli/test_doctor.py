"""`workbench doctor` on this machine, and where the engine cannot be imported."""

import getpass
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.cli import doctor
from workbench.cli.doctor import look_at_keys, look_at_terminal
from workbench.cli.failures import Code
from workbench.lab.doctor import broken_document
from workbench.store.documents import DocumentError


def run(folder: Path, *args: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "workbench", "doctor", *args],
        cwd=folder, capture_output=True, text=True, env={**os.environ, **env}, timeout=60,
    )  # fmt: skip


def test_all_subjects_are_told_and_nothing_secret(folder: Path, own_home: Path) -> None:
    done = run(folder, "--json", API_KEY="sk-secret", HOME=str(own_home), SSH_CONNECTION="10.9.8.7 1 10.9.8.6 22")
    told = json.loads(done.stdout)
    assert done.returncode == (Code.FAILED if told["broken"] else Code.DONE)
    for subject in ("engine", "driver", "cards", "versions", "environment", "host", "folders", "documents", "terminal"):
        assert subject in told
    assert told["terminal"]["ssh"] is True
    for secret in ("sk-secret", "10.9.8", str(own_home), platform.node()):
        assert secret not in done.stdout
    if getpass.getuser() != "root":
        assert getpass.getuser() not in done.stdout
    assert "~/data" in done.stdout


def test_an_engine_that_cannot_be_imported_and_a_folder_in_the_way_are_broken_and_the_rest_is_told(
    folder: Path, tmp_path: Path, own_home: Path
) -> None:
    (own_home / "state").write_text("in the way")
    fake = tmp_path / "fake" / "llama_cpp"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text('raise OSError("libcudart.so.12: cannot open shared object file")\n')
    (folder / "layouts" / "bad.yaml").write_text("name: bad\nmodle: x\n")
    done = run(folder, PYTHONPATH=str(fake.parent))
    assert done.returncode == Code.FAILED
    assert done.stderr == ""
    assert "✗ llama-cpp-python cannot be imported: OSError: libcudart.so.12: cannot open" in done.stdout
    assert "venv\n" in done.stdout
    assert f"    mv {own_home / 'state'}" in done.stdout.replace("$USER", getpass.getuser())
    assert "layouts/bad.yaml:" in done.stdout
    for subject in ("driver", "host", "folders", "terminal"):
        assert f"\n{subject}\n" in f"\n{done.stdout}"


@pytest.mark.parametrize(
    ("env", "facts", "fix"),
    [
        ({"TERM": "xterm-256color", "LANG": "C.UTF-8"}, {"colours": "256", "drawn_with": "Unicode"}, None),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, {"colours": "16 million"}, None),
        ({"TERM": "xterm", "NO_COLOR": "1"}, {"colours": "none (NO_COLOR)"}, None),
        ({"TERM": "dumb", "LANG": "C.UTF-8"}, {}, "export TERM=xterm-256color"),
        ({"TERM": "xterm", "LC_ALL": "POSIX"}, {"drawn_with": "ASCII"}, "export LC_ALL=C.UTF-8"),
        ({"TERM": "tmux", "TMUX": "/tmp/x"}, {"tmux_set_clipboard": "off"}, "tmux set -s set-clipboard on"),
        ({"TERM": "xterm", "SSH_CONNECTION": "1.2.3.4"}, {"ssh": True, "slow_link": True}, None),
        ({"TERM": "xterm", "small": "yes"}, {"size": "50x10"}, "resize -s 24 80"),
    ],
)
def test_what_a_terminal_can_do(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], facts: dict[str, object], fix: str | None
) -> None:
    sure: Callable[[object], bool] = lambda _: True  # noqa: E731
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(getattr(sys, stream).__class__, "isatty", sure, raising=False)
    monkeypatch.setattr(doctor, "_tmux_clipboard", lambda: "off")
    size = os.terminal_size((50, 10) if "small" in env else (80, 24))
    monkeypatch.setattr(doctor.shutil, "get_terminal_size", lambda _fallback: size)  # type: ignore[attr-defined]
    found = look_at_terminal(env)
    assert isinstance(found.facts, dict)
    assert facts.items() <= found.facts.items()
    fixes = [problem.fix for problem in found.problems]
    assert (fix in fixes) if fix else not fixes
    assert "1.2.3.4" not in str(found)


def test_a_wrong_key_map_is_told(own_home: Path) -> None:
    (own_home / "config").mkdir()
    (own_home / "config" / "keymap.yaml").write_text("keys:\n  compare: F5\n")
    (problem,) = look_at_keys().problems
    assert not problem.broken
    assert "keymap.yaml:2: keys: is not right" in problem.what
    assert problem.fix == f"workbench check {own_home / 'config' / 'keymap.yaml'}"


@pytest.mark.parametrize("key", ["api_keys.sk-SECRET", "SECRET", "api_keys.sk-SECRET[1]"])
def test_a_key_that_stands_where_a_name_belongs_is_not_repeated(key: str) -> None:
    told = broken_document(DocumentError(Path("config.yaml"), 1, key, "is wrong"), broken=True).what
    assert told.startswith("config.yaml:1: ")
    assert "SECRET" not in told
