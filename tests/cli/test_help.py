"""Help that is enough: what it does, every option, examples that parse; what a shell completes."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Workbench
from tests.cli.parsing import parse
from workbench.cli.commands import commands
from workbench.cli.failures import Code


def all_commands(command: click.Command = commands, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not command.hidden:
        yield " ".join(path), command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from all_commands(child, (*path, name))


EVERY = dict(all_commands())


@pytest.mark.parametrize("name", EVERY)
def test_every_command_has_help_for_each_option_and_examples_that_parse(name: str) -> None:
    command = EVERY[name]
    path = ["workbench", *name.split()]
    with click.Context(command, info_name=" ".join(path)) as ctx:
        text = command.get_help(ctx)
    for param in command.params:
        assert not isinstance(param, click.Option) or param.help, param.name
    _, _, after = text.partition("Examples:\n")
    examples = [line.strip() for line in after.partition("\n\n")[0].splitlines()]
    assert examples
    for example in examples:
        parsed = parse(example)
        assert parsed[: len(name.split())] == name.split() or name == "", example


def test_one_line_says_of_each_command_what_it_does() -> None:
    for name, command in EVERY.items():
        assert not command.get_short_help_str(limit=62).endswith("..."), name


def complete(words: str, folder: Path) -> list[str]:
    """What bash would offer after these words, files as `file`."""
    env = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1), "_WORKBENCH_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-m", "workbench"], cwd=folder, capture_output=True, text=True, env={**os.environ, **env}
    )
    assert done.stderr == ""
    kinds = (line.partition(",") for line in done.stdout.splitlines())
    return [value if kind == "plain" else kind for kind, _, value in kinds]


def test_names_are_completed(folder: Path, own_home: Path) -> None:
    (folder / "layouts" / "broken.yaml").write_text("{")
    (own_home / "data" / "runs" / "20260101-000000-abc").mkdir(parents=True)
    (own_home / "data" / "runs" / "20260101-000000-abc" / "run.json").touch()
    assert {"ab", "doctor", "small", "broken", "file"} <= set(complete("workbench ", folder))
    assert complete("workbench run sm", folder) == ["small", "file"]
    assert complete("workbench small --re", folder) == ["--resume"]
    assert complete("workbench runs show ", folder)[:2] == ["last", "20260101-000000-abc"]


def test_a_completion_that_fails_offers_files(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workbench"], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "COMP_WORDS": "workbench run ", "COMP_CWORD": "2", "_WORKBENCH_COMPLETE": "bash_complete",
             "WORKBENCH_HOME": "~nobody-here/x"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("file,\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(workbench: Workbench, shell: str) -> None:
    done = workbench("completion", shell)
    assert done.returncode == Code.DONE
    assert "_WORKBENCH_COMPLETE" in done.stdout
    assert shlex.quote(shell) in done.stdout
