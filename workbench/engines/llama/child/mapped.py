"""A file as memory, for what the library copies to and from.

Touching a page for the first time costs more than copying it, so that is done by several
threads, and before it is needed where somebody says so, to `expect`. A mapping is let go when
the answer is out, by `drop`.
"""

import contextlib
import ctypes
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

BLOCK = 512
"""What `st_blocks` counts, in bytes."""
LEAST = 32 * 2**20
"""A smaller piece is not worth a thread."""
THREADS = min(8, os.cpu_count() or 1)
_POPULATE_READ, _POPULATE_WRITE = 22, 23
"""Advice to `madvise` since Linux 5.14; an older one touches the pages as they are copied."""
_FAILED = ctypes.c_void_p(-1).value
_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_libc = ctypes.CDLL(None, use_errno=True)  # its calls leave the interpreter to others, unlike `mmap`'s
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

Mapping = tuple[int, int]
"""Where it begins, and its bytes."""

_kept: list[Mapping] = []
_expected: dict[Path, Future[Mapping]] = {}
_ahead = ThreadPoolExecutor(1, "map ahead")


def expect(path: Path, size: int) -> None:
    """Map a file's first `size` bytes by and by, for the next `writable` or `readable` of no more; 0 lets go of that.

    The file has them already. From any thread.
    """
    earlier = _expected.pop(path, None)
    if earlier is not None:
        earlier.add_done_callback(_let_go)
    if size:
        with contextlib.suppress(RuntimeError):  # no thread is to be had: it is mapped when it is needed
            _expected[path] = _ahead.submit(_map_file, path, size)


def writable(path: Path, size: int) -> Any:
    """A pointer to `size` bytes that are the whole file, made for this user alone. Raises OSError.

    All of them are there before the first is written: memory or disk that ends is an error here,
    and no signal later.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(descriptor).st_blocks * BLOCK < size:
            os.posix_fallocate(descriptor, 0, size)
        os.ftruncate(descriptor, size)
        return _pointer(_as_expected(path, size) or _map(descriptor, size, _WRITE, _POPULATE_WRITE))
    finally:
        os.close(descriptor)


def readable(path: Path, size: int) -> Any:
    """A pointer to the file's `size` bytes. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return _pointer(_as_expected(path, size) or _map(descriptor, size, mmap.PROT_READ, _POPULATE_READ))
    finally:
        os.close(descriptor)


def drop() -> None:
    """Let go of all that was asked for; its pointers are of no more use."""
    while _kept:
        _libc.munmap(*_kept.pop())


def _as_expected(path: Path, size: int) -> Mapping | None:
    expected = _expected.pop(path, None)
    if expected is None or expected.exception() is not None:
        return None
    if expected.result()[1] < size:
        _let_go(expected)
        return None
    return expected.result()


def _let_go(expected: Future[Mapping]) -> None:
    if expected.exception() is None:
        _libc.munmap(*expected.result())


def _pointer(mapping: Mapping) -> Any:
    _kept.append(mapping)
    return ctypes.cast(mapping[0], ctypes.POINTER(ctypes.c_uint8))


def _map_file(path: Path, size: int) -> Mapping:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return _map(descriptor, size, _WRITE, _POPULATE_WRITE)
    finally:
        os.close(descriptor)


def _map(descriptor: int, size: int, protection: int, advice: int) -> Mapping:
    address = _libc.mmap(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    piece = max(LEAST, -(-size // THREADS) + mmap.PAGESIZE & -mmap.PAGESIZE)
    with contextlib.suppress(RuntimeError), ThreadPoolExecutor(THREADS) as pool:  # untouched it serves, too
        for start in range(0, size, piece):
            pool.submit(_libc.madvise, address + start, min(piece, size - start), advice)
    return address, size
