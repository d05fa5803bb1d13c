"""How a command ends: exit codes, and one message on stderr for each failure."""

import contextlib
import errno
import traceback
from datetime import datetime
from enum import IntEnum

import click

from workbench.domain.memory import with_sizes
from workbench.domain.text import visible
from workbench.engines.engine import EngineError


class Code(IntEnum):
    """The exit codes."""

    DONE = 0
    FAILED = 1
    WRONG = 2
    """Wrong usage, or a document that cannot be used."""
    CANCELLED = 130


class CommandFailed(Exception):
    """A command that cannot go on: its message for people and its exit code."""

    def __init__(self, message: str, code: Code = Code.FAILED) -> None:
        super().__init__(message)
        self.code = code


def explain(error: BaseException) -> int:
    """Say on stderr what went wrong; the exit code. An unexpected error goes to a log file."""
    from workbench.store.documents import DocumentError
    from workbench.store.journal import JournalError
    from workbench.store.models import ModelError
    from workbench.store.places import HomeError
    from workbench.store.runs import RunError, RunUnwritable

    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case click.UsageError():
            say(f"{' '.join(error.format_message().split()).rstrip('.')}; see `{_help_for(error.ctx)}`")
            return Code.WRONG
        case KeyboardInterrupt() | click.Abort():
            return Code.CANCELLED
        case CommandFailed():
            say(str(error))
            return error.code
        case RunUnwritable():
            say(str(error))
            return Code.FAILED
        case DocumentError() | ModelError() | RunError() | HomeError():
            say(str(error))
            return Code.WRONG
        case EngineError():
            say(describe(error))
            return Code.FAILED
        case JournalError():
            say(str(error))
            return Code.FAILED
        case BrokenPipeError():
            return Code.FAILED
        case OSError(filename=None, errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG | errno.EIO):
            say(f"the output cannot be written: {error.strerror}")
            return Code.FAILED
        case _:
            say(_logged(error))
            return Code.FAILED


def say(message: str) -> None:
    """One message on stderr, if somebody reads it."""
    with contextlib.suppress(OSError):
        click.echo(f"workbench: {visible(message)}", err=True)


def describe(error: EngineError) -> str:
    """The engine's reason, with the card and the sizes where known."""
    return with_sizes(error.reason, error.card, error.wanted_mib, error.free_mib)


def _help_for(ctx: click.Context | None) -> str:
    """The command whose help tells the right usage."""
    shown = ctx.parent if ctx is not None and ctx.parent is not None and ctx.command.hidden else ctx
    return f"{'workbench' if shown is None else shown.command_path} --help"


def _logged(error: BaseException) -> str:
    """Write the traceback to the log folder; what to tell people."""
    from workbench.store.places import HomeError, places

    what = f"unexpected {type(error).__name__}: {error}"
    try:
        path = places().log / "errors.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now().isoformat(timespec='seconds')}\n{''.join(traceback.format_exception(error))}\n")
    except (OSError, HomeError):
        return what
    return f"{what}; details are in {path}"
