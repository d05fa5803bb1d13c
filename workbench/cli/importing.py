"""`workbench import`: a llama-server command line as a layout."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from workbench.cli.failures import Code, CommandFailed, say
from workbench.domain.importing import CannotImport, import_command
from workbench.store.writing import layout_yaml, save_layout


def print_import(words: Sequence[str], name: str | None, out: Path | None) -> None:
    """Print the layout, or save it; stderr names what has no place in one. Raises CommandFailed, DocumentError."""
    command: str | Sequence[str] = words
    if not words or list(words) == ["-"]:
        command = sys.stdin.read()
    elif len(words) == 1:
        command = words[0]
    try:
        imported = import_command(command, name)
    except CannotImport as error:
        raise CommandFailed(str(error), Code.WRONG) from None
    for left_out in imported.left_out:
        say(f"left out, since no layout has it: {left_out}")
    if out is None:
        click.echo(layout_yaml(imported.layout), nl=False)
    else:
        say(f"saved: {save_layout(imported.layout, out)}")
