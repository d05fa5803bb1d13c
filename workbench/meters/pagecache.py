"""How much of a model's file lies in the page cache, estimated from samples of its pages."""

import ctypes
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

_WINDOWS = 64
_PAGES = 64
"""So many pages are looked at in each of so many places, spread evenly: 0.2 ms, however large the file."""
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_FAILED = ctypes.c_void_p(-1).value


def model_files(path: str) -> tuple[Path, ...]:
    """The file, or all parts of a model that comes in several."""
    first = Path(path)
    if not _PART.search(first.name):
        return (first,)
    stem = _PART.sub("", first.name)
    return tuple(sorted(found for found in first.parent.glob("*.gguf") if _PART.sub("", found.name) == stem))


def cached_share(files: Sequence[Path]) -> float | None:
    """The part, 0 … 1, of the files that needs no disk. None where the kernel does not tell.

    Linux tells it to a file's owner and to who may write it; to others it calls every page cached.
    """
    sizes, seen = 0, 0.0
    for file in files:
        share = _share_of(file)
        if share is None:
            return None
        size = file.stat().st_size
        sizes, seen = sizes + size, seen + share * size
    return seen / sizes if sizes else None


def _share_of(path: Path) -> float | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(found)
        if status.st_size == 0 or not (status.st_uid == os.geteuid() or os.access(path, os.W_OK)):
            return None
        return _resident(found, status.st_size)
    finally:
        os.close(found)


def _resident(file: int, size: int) -> float | None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    page = os.sysconf("SC_PAGE_SIZE")
    pages = (size + page - 1) // page
    at = libc.mmap(None, size, 0x1, 0x1, file, 0)  # PROT_READ, MAP_SHARED; no page is touched
    if at is None or at == _FAILED:
        return None
    try:
        here = looked = 0
        for window in range(_WINDOWS):
            first = pages * window // _WINDOWS
            count = min(_PAGES, max(1, pages // _WINDOWS), pages - first)
            if count <= 0:
                continue
            told = ctypes.create_string_buffer(count)
            if libc.mincore(at + first * page, count * page, told) != 0:
                return None
            here += sum(byte & 1 for byte in told.raw)
            looked += count
        return here / looked if looked else None
    finally:
        libc.munmap(at, size)
