"""Whether a line that a document shows is one that the command line takes."""

import shlex

import click

from workbench.cli.commands import commands


def parse(line: str) -> list[str]:
    """The words after `workbench` in a shell's line, which click has parsed. Raises click.UsageError, ValueError."""
    words = shlex.split(line, comments=True)
    words = [word for word in words[: _end(words)] if "=" not in word or not word.split("=")[0].isupper()]
    if "workbench" not in words:
        raise ValueError(f"no workbench in {line!r}")
    args = words[words.index("workbench") + 1 :]
    ctx: click.Context = commands.make_context("workbench", list(args), resilient_parsing=False)
    while isinstance(ctx.command, click.Group):
        rest = [*ctx._protected_args, *ctx.args]
        if not rest:
            break
        _, command, left = ctx.command.resolve_command(ctx, rest)
        assert command is not None
        if "--help" in left:
            break
        ctx = command.make_context(command.name, left, parent=ctx)
    return args


def _end(words: list[str]) -> int:
    """Where what follows the command begins: a pipe behind it, a redirection."""
    first = words.index("workbench") if "workbench" in words else 0
    for at, word in enumerate(words[first:], first):
        if word in ("|", ">", ">>", "<", "&&", ";"):
            return at
    return len(words)

