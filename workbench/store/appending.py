"""Files of lines that one process at a time adds to."""

import errno
import fcntl
import io
import os
import stat
from pathlib import Path

LARGEST = 1 << 30


def read_plain(path: Path) -> bytes:
    """What is in a plain file. Raises OSError, also for what is none, which might have no end."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        if status.st_size > LARGEST:
            raise OSError(errno.EFBIG, f"it is larger than {LARGEST >> 20} MiB")
        return file.read()


def open_locked(path: Path, flags: int, mode: int) -> io.FileIO:
    """Open for appending and lock. Raises BlockingIOError if another holds the lock, OSError.

    A link is not followed: in a folder from elsewhere it might lead to any file.
    """
    file = io.FileIO(os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | flags, mode), "ab")
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
