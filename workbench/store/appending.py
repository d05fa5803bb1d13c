"""Files of lines that one process at a time adds to."""

import fcntl
import io
import os
from pathlib import Path


def open_locked(path: Path, flags: int, mode: int) -> io.FileIO:
    """Open for appending and lock. Raises BlockingIOError if another holds the lock, OSError."""
    file = io.FileIO(os.open(path, os.O_RDWR | os.O_APPEND | flags, mode), "ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def ends_whole(path: Path) -> bool:
    """Whether the last line is whole; an empty file's is. Raises OSError."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
