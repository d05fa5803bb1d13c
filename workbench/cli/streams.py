"""stdin, stdout and stderr as the commands find them: open, and fit for any text."""

import io
import os
import sys


def ready_streams() -> None:
    """A closed stream reads as empty and swallows what is written; a character that one lacks is escaped.

    Must come before any file is opened, lest that one take the place of a closed stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def quiet_stdout() -> None:
    """Let the interpreter end without a word about a stdout that takes nothing any more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
