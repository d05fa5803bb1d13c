"""Usage, exit codes and messages; nothing here loads a model."""

import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from tests.cli.conftest import LAYOUT, Workbench
from workbench import __version__
from workbench.cli.failures import Code, CommandFailed, describe, explain
from workbench.engines.engine import EngineError
from workbench.store.journal import JournalError
from workbench.store.models import ModelError
from workbench.store.runs import RunError, RunUnwritable


def assert_one_message(done: "subprocess.CompletedProcess[str]", code: Code, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize("args", [(), ("layouts/small.yaml",), ("small", "--resume")])
def test_the_screen_without_a_terminal_names_what_works(workbench: Workbench, args: tuple[str, ...]) -> None:
    assert_one_message(workbench(*args), Code.WRONG, "terminal", "`workbench run", "`workbench demo`")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--bogus",), ("--bogus", "`workbench --help`")),
        (("cards", "extra"), ("extra", "`workbench cards --help`")),
        (("run",), ("LAYOUT", "`workbench run --help`")),
        (("run", "small"), ("prompt", "-p TEXT")),
        (("run", "small", "-p", "a", "-f", "b"), ("prompt once",)),
        (("run", "small", "-p", "a", "--max-tokens", "0"), ("--max-tokens",)),
        (("run", "small", "-p", "a", "--temperature", "nan"), ("--temperature", "nan")),
        (("run", "small", "-p", "a", "--temperature", "inf"), ("--temperature", "inf")),
        (("run", "small", "-p", "a", "--seed", "4294967296"), ("--seed", "4294967295")),
        (("cards", "--watch", "nan"), ("--watch", "nan")),
        (("run", "layouts", "-p", "a"), ("layouts", "is a folder; name a layout")),
        (("export", "small"), ("--as", "llama-server", "llama-swap")),
        (("~nobody-here/x.yaml",), ("terminal",)),
        (("run", "~nobody-here/x.yaml", "-p", "a"), ("~nobody-here/x.yaml", "does not exist")),
        (("run", "small", "-p", "  "), ("empty",)),
        (("run", "small", "-"), ("empty",)),
        (("run", "small", "-f", "nothing.txt"), ("nothing.txt",)),
        (("run", "smal", "-p", "a"), ("smal", "small")),
        (("check",), ("FILE", "`workbench check --help`")),
    ],
)
def test_wrong_usage_is_one_message_and_exit_2(
    workbench: Workbench, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_one_message(workbench(*args), Code.WRONG, *words)


def test_a_wrong_document_is_named_with_line_and_key(workbench: Workbench, folder: Path) -> None:
    (folder / "bad.yaml").write_text(LAYOUT.replace("layers:", "layer:"))
    assert_one_message(workbench("run", "bad.yaml", "-p", "a"), Code.WRONG, "bad.yaml:4", "split.layer")


def shell(folder: Path, command: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """A shell's line in `folder`; `workbench` is the command."""
    return subprocess.run(
        ["bash", "-c", command.replace("workbench", f"{shlex.quote(sys.executable)} -m workbench")],
        cwd=folder, capture_output=True, text=True, env={**os.environ, **env}, timeout=60,
    )  # fmt: skip


def test_a_full_disk_behind_stdout_is_said(folder: Path) -> None:
    done = shell(folder, "workbench check layouts/small.yaml >/dev/full")
    assert_one_message(done, Code.FAILED, "cannot be written", "No space left")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_fault(folder: Path, closed: str) -> None:
    done = shell(folder, f"workbench check layouts/small.yaml {closed}")
    assert (done.returncode, done.stderr) == (Code.DONE, "")


def test_a_reader_that_leaves_is_no_fault(folder: Path) -> None:
    (folder / "bad.yaml").write_text("name: bad\n")
    assert shell(folder, "workbench check layouts/small.yaml bad.yaml 2>/dev/null | true").stderr == ""


def test_a_terminal_without_some_characters_gets_them_escaped(folder: Path) -> None:
    done = shell(folder, "workbench check --help", PYTHONIOENCODING="latin-1")
    assert done.returncode == Code.DONE, done.stderr
    assert r"FILE\u2026" in done.stdout


def test_a_name_that_is_no_text_can_be_said(folder: Path) -> None:
    command = r"""cp layouts/small.yaml $'bad\xff.yaml'; workbench check bad*.yaml"""
    done = shell(folder, command, PYTHONIOENCODING="utf-8")
    assert done.returncode == Code.DONE, done.stderr
    assert "sound" in done.stdout


def test_bytes_on_stdin_that_are_no_text(folder: Path) -> None:
    done = shell(folder, r"printf '\xff\xfe' | workbench run small -")
    assert_one_message(done, Code.WRONG, "stdin", "UTF-8")


def test_a_data_folder_that_cannot_be_written_is_said(workbench: Workbench, folder: Path, own_home: Path) -> None:
    (folder / "prompts.jsonl").write_text('{"prompt": "Hello"}\n')
    (own_home / "data").write_text("in the way")
    done = workbench("replay", "small", "--prompts", "./prompts.jsonl")
    assert_one_message(done, Code.FAILED, str(own_home / "data"), "cannot be written", "--out", "`workbench doctor`")


def test_a_home_that_is_not_there_is_said(folder: Path) -> None:
    done = shell(folder, "workbench run small -p a", WORKBENCH_HOME="~nobody-here/x")
    assert_one_message(done, Code.WRONG, "WORKBENCH_HOME=~nobody-here/x")


def test_a_prompt_file_that_is_not_text(workbench: Workbench, folder: Path) -> None:
    (folder / "prompt").write_bytes(b"\xff\xfe\x00")
    assert_one_message(workbench("run", "small", "-f", "prompt"), Code.WRONG, "prompt", "UTF-8")


def test_check_names_every_error_on_a_line_of_its_own(workbench: Workbench, folder: Path) -> None:
    (folder / "bad.yaml").write_text(LAYOUT.replace("n_ctx", "ctx") + "extra: 1\n")
    done = workbench("check", "bad.yaml", "layouts/small.yaml")
    assert done.returncode == Code.WRONG
    assert done.stdout == "layouts/small.yaml: sound\n"
    assert sorted(line.split(": ")[0] for line in done.stderr.splitlines()) == ["bad.yaml:6", "bad.yaml:7"]


def test_check_knows_the_configuration_and_the_key_map_by_their_names(workbench: Workbench, folder: Path) -> None:
    (folder / "config.yaml").write_text("price: {per_hour: 0}\n")
    (folder / "keymap.yaml").write_text("keys:\n  compare: F5\n  runs: F12\n")
    done = workbench("check", "config.yaml", "keymap.yaml")
    assert done.returncode == Code.WRONG
    assert [line.split(": ")[:2] for line in done.stderr.splitlines()] == [
        ["config.yaml:1", "price.per_hour"], ["keymap.yaml:3", "keys.runs"],
    ]  # fmt: skip


def test_check_of_a_sound_document(workbench: Workbench) -> None:
    assert workbench("check", "layouts/small.yaml").returncode == Code.DONE


def test_version(workbench: Workbench) -> None:
    assert workbench("--version").stdout == f"workbench {__version__}\nllama-cpp-python {version('llama-cpp-python')}\n"


def test_help_names_both_usages(workbench: Workbench) -> None:
    done = workbench("--help")
    assert done.returncode == Code.DONE
    assert "MODEL.gguf" in done.stdout
    assert "COMMAND" in done.stdout


def test_a_reader_that_goes_away_is_no_news(folder: Path) -> None:
    command = f"{sys.executable} -m workbench --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)
    assert done.stderr == ""


def test_an_unexpected_error_is_one_line_and_a_log(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(ZeroDivisionError("of all things")) == Code.FAILED
    said = capsys.readouterr().err
    log = own_home / "log" / "errors.log"
    assert said == f"workbench: unexpected ZeroDivisionError: of all things; details are in {log}\n"
    assert "ZeroDivisionError: of all things" in log.read_text()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), Code.CANCELLED),
        (click.Abort(), Code.CANCELLED),
        (CommandFailed("no"), Code.FAILED),
        (CommandFailed("no", Code.WRONG), Code.WRONG),
        (EngineError("no"), Code.FAILED),
        (JournalError("no"), Code.FAILED),
        (ModelError("no"), Code.WRONG),
        (RunError("no"), Code.WRONG),
        (RunUnwritable("no"), Code.FAILED),
        (BrokenPipeError(), Code.FAILED),
    ],
)
def test_exit_codes(error: BaseException, code: Code, own_home: Path) -> None:
    assert explain(error) == code
    assert not (own_home / "log" / "errors.log").exists()


def test_an_engine_error_names_card_and_sizes_once() -> None:
    error = EngineError("out of memory", card="CUDA1", wanted_mib=2048, free_mib=-1)
    assert describe(error) == "CUDA1: out of memory (2.0 GiB wanted, 0 MiB free)"
    assert describe(EngineError("CUDA1 is full", card="CUDA1")) == "CUDA1 is full"
    assert describe(EngineError("40.0 GiB is too much", wanted_mib=40960)) == "40.0 GiB is too much"


def test_check_tells_what_the_model_has_not(workbench: Workbench, folder: Path) -> None:
    small = (folder / "layouts" / "small.yaml").read_text()
    (folder / "unknown.yaml").write_text(small.replace("smollm2", "smollm"))
    (folder / "many.yaml").write_text(small.replace("20, 11", "23, 9"))
    (folder / "elsewhere.yaml").write_text(small.replace("demo:smollm2", "~/models/of-another-machine.gguf"))
    done = workbench("check", "unknown.yaml", "many.yaml", "elsewhere.yaml", "layouts/small.yaml")
    assert done.returncode == Code.WRONG
    unknown, many = done.stderr.splitlines()
    assert unknown.startswith("unknown.yaml:2: model: there is no bundled model `demo:smollm`, did you mean")
    assert many.startswith("many.yaml:4: split.layers: 23 + 9 = 32 layers are asked for, the model has 31 positions")
    assert done.stdout == "elsewhere.yaml: sound\nlayouts/small.yaml: sound\n"
