"""The README and CONTRIBUTING: every command in them is run, or in the list of those that are not, with the reason."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.parsing import parse
from workbench import __version__
from workbench.app.user_keys import check_keys
from workbench.domain.duty import Price
from workbench.store.config import Config, UserKeys
from workbench.store.documents import check_document, read_document

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md")
RUN = {
    "workbench check layouts/*.yaml": "sound",
    "workbench export two-cards-3-1 --as llama-server": "--tensor-split 3,1",
    "workbench import --out layouts/mine.yaml llama-server -m model.gguf -ngl 81 -ts 61,20 -c 8192": "",
    'workbench run demo-3-1 -p "Write three sentences on rivers." --max-tokens 16': " ",
    "workbench completion bash >> ~/.bashrc": "",
    "workbench keys": "split.more",
    "workbench runs list": "",
}
"""Run as they are, and what they print."""
NOT_RUN = {
    r"make (demo|test|check|venv)(\b.*)?": "builds the environment that runs this, or runs this",
    r"CMAKE_BUILD_PARALLEL_LEVEL=1 make venv": "builds the engine",
    r"CMAKE_ARGS=\S+ make venv": "builds the engine",
    r'CMAKE_ARGS="[^"]*" pip install .* llama-cpp-python==[\d.]+': "builds the engine",
    r"\.venv/bin/pip install -e .*": "changes the environment that runs this",
    r"source \.venv/bin/activate": "belongs to a shell",
    r"rpc-server .*": "llama.cpp's own program, on another machine",
    r"ssh -N -L .*": "needs another machine",
    r"nvidia-smi": "needs a CUDA card",
    r"tmux set -s set-clipboard on": "changes the user's tmux",
    r"(export|unset) \w+(=\S+)?": "belongs to a shell",
    r"\.venv/bin/pytest .*": "runs this; the paths are looked at",
    r"\.venv/bin/python -m tests\.(benchmarks|fuzz)\b.*": "takes minutes; that there is such a module is looked at",
}
"""What is not run, as a pattern, and why. A line that is neither here nor workbench's own fails."""
PARSED = {
    "workbench": "opens the screen; tests/cli/test_screen.py does",
    "workbench demo": "opens the screen; tests/cli/test_screen.py does",
    "workbench --resume": "opens the screen",
    "workbench ~/models": "opens the screen",
    "workbench ~/models/llama-3.3-70b.gguf": "opens the screen on a model that is not here",
    "workbench two-cards-3-1": "opens the screen on two GPUs",
    "workbench doctor": "tests/cli/test_doctor.py runs it",
    "workbench cards": "tests/cli/test_cards.py runs it",
    "workbench cards --watch 1": "never ends; tests/cli/test_cards.py reads it",
    "workbench cards --topology": "tests/cli/test_cards.py runs it",
    "workbench cards --watch 1 --json": "never ends; tests/cli/test_cards.py reads it",
    "git diff | workbench run LAYOUT - --json": "LAYOUT is the reader's; tests/cli/test_run.py runs it",
    "workbench forecast demo-even --tensor-split 3,1": "tests/cli/test_forecast.py runs it",
    "workbench forecast LAYOUT --n-ctx 4096": "LAYOUT is the reader's; tests/cli/test_forecast.py runs it",
    "workbench ab demo-single demo-tensor --prompts quick": "takes minutes; tests/cli/test_ab.py runs a short one",
    "workbench ab A B --prompts SET --blocks 8": "takes minutes",
    "workbench ab A B --prompts SET --resident": "tests/cli/test_ab.py runs it",
    "workbench ab --resume last --more-blocks 2": "takes minutes; tests/cli/test_ab.py runs a short one",
    "workbench ab --resume last --more-blocks 4": "takes minutes",
    "workbench replay LAYOUT --prompts SET": "tests/cli/test_ab.py runs it",
    "workbench runs show last": "there is no run; tests/cli/test_ab.py runs it",
    "workbench runs export last --as md": "there is no run; tests/cli/test_ab.py runs it",
    "workbench runs compare RUN RUN": "there is no run; tests/cli/test_ab.py runs it",
    "workbench models LAYOUT": "needs a server; tests/cli/test_served.py runs it",
    "WORKBENCH_ASCII=1 workbench": "opens the screen",
    "NO_COLOR=1 workbench": "opens the screen",
    "WORKBENCH_SLOW=1 workbench": "opens the screen",
    "WORKBENCH_MOUSE=0 workbench": "opens the screen",
    "workbench FOLDER": "opens the screen",
}
"""What is parsed and not run, and why."""


def fences(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands_in(name: str) -> Iterator[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    for block in fences(text, "sh"):
        yield from (line.partition("  #")[0].strip() for line in block.splitlines() if line.strip())
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    programs = r"(?:[A-Z_]+=\S+ )*(?:workbench|make|nvidia-smi|tmux|export [A-Z]|unset [A-Z])\b"
    yield from (span for span in re.findall(r"`([^`\n]+)`", prose) if re.match(programs, span))


COMMANDS = [(name, line) for name in DOCUMENTS for line in dict.fromkeys(commands_in(name))]
OURS = sorted({line for _, line in COMMANDS if re.search(r"(^|[ |])workbench( |$)", line)})


def test_there_are_commands() -> None:
    assert len(OURS) > 25
    assert {name for name, _ in COMMANDS} == set(DOCUMENTS)


@pytest.mark.parametrize("line", sorted({line for _, line in COMMANDS} - set(OURS)))
def test_what_is_not_workbench_is_known(line: str) -> None:
    assert any(re.fullmatch(pattern, line) for pattern in NOT_RUN), f"{line}: run it, or say why it is not run"
    if line.startswith(".venv/bin/pytest"):
        assert all((ROOT / word).exists() for word in line.split()[1:] if word.startswith("tests"))
    if module := re.search(r"-m (tests[.\w]+)", line):
        assert importlib.util.find_spec(module[1])
    if line.startswith("make "):
        assert re.search(rf"^{line.split()[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", OURS)
def test_a_command_parses_and_is_run_or_known(line: str) -> None:
    assert (line in RUN) != (line in PARSED), f"{line}: run it, or say why it is only parsed"
    parse(line)


def test_the_lists_hold_nothing_that_is_gone() -> None:
    assert {*RUN, *PARSED} - set(OURS) <= {"workbench demo", "workbench keys", "workbench FOLDER"}


@pytest.mark.parametrize("line", RUN)
def test_a_command_runs(line: str, tmp_path: Path) -> None:
    for name in ("layouts", "prompts"):
        (tmp_path / name).mkdir()
        for path in (ROOT / name).iterdir():
            (tmp_path / name / path.name).write_bytes(path.read_bytes())
    done = subprocess.run(
        ["bash", "-c", f'workbench() {{ {shlex.quote(sys.executable)} -m workbench "$@"; }}; {line}'],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert RUN[line] in done.stdout
    assert "Traceback" not in done.stderr


def test_a_line_that_is_wrong_would_be_seen() -> None:
    for line in ("workbench ab A B --promts SET", "workbench runs list nothing", "workbench export demo-even"):
        with pytest.raises(click.UsageError):
            parse(line)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_its_documents_are_sound(name: str, tmp_path: Path) -> None:
    for block in fences((ROOT / name).read_text(encoding="utf-8"), "yaml"):
        path = tmp_path / "document.yaml"
        path.write_text(block)
        if block.startswith("price:"):
            assert read_document(path, Config, lambda _: []).price == Price(currency="EUR", per_hour=4.2)
        elif block.startswith("keys:"):
            read_document(path, UserKeys, check_keys)
        else:
            assert check_document(path) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_its_links_and_files_are_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("http") or (ROOT / link).exists(), link
    for path in re.findall(r"`((?:app|cli|domain|engines|lab|meters|store)/[\w/]+\.py)`", text):
        assert "NAME" in path or (ROOT / "workbench" / path).exists(), path
    for path in re.findall(r"`(tests/[\w/]+\.py)`", text):
        assert (ROOT / path).exists(), path


def test_the_picture_tells_nothing_of_this_machine() -> None:
    text = (ROOT / "docs" / "screen.svg").read_text(encoding="utf-8")
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"/(home|root|work|tmp|Users)/", text)
    assert "workbench" in text


def test_the_changelog_knows_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{__version__}]" in text
