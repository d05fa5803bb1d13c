"""stdin, stdout and stderr as the commands find them: open, and fit for any text."""

import io
import os
import sys
from typing import TextIO

from workbench.domain.text import tame


class Guarded(io.TextIOWrapper):
    """A terminal to which all that is written is text: no model and no file name can steer it."""

    def __init__(self, terminal: io.TextIOWrapper) -> None:
        super().__init__(terminal.buffer, terminal.encoding, "backslashreplace", line_buffering=True)
        self.terminal = terminal

    def write(self, text: str) -> int:
        """Write what of the text is text."""
        super().write(tame(text))
        return len(text)


def steered(stream: TextIO) -> TextIO:
    """The terminal itself, for control characters of our own."""
    return stream.terminal if isinstance(stream, Guarded) else stream


def ready_streams() -> None:
    """A closed stream reads as empty and swallows what is written; a character that one lacks is escaped.

    Terminals are guarded. Must come before any file is opened, lest that one take the place of a
    closed stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper and stream.isatty():
            setattr(sys, name, Guarded(stream))


def quiet_stdout() -> None:
    """Let the interpreter end without a word about a stdout that takes nothing any more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
