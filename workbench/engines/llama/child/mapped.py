"""A file as memory, for what the library copies to and from."""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def writable(path: Path, size: int) -> Iterator[Any]:
    """A pointer to `size` bytes that become the whole file, made for this user alone. Raises OSError.

    All of them are there before the first is written: memory or disk that ends is an error here,
    and no signal later.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        os.ftruncate(descriptor, size)
        with _mapped(descriptor, size, mmap.PROT_READ | mmap.PROT_WRITE) as pointer:
            yield pointer
    finally:
        os.close(descriptor)


@contextmanager
def readable(path: Path, size: int) -> Iterator[Any]:
    """A pointer to the file's `size` bytes. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with _mapped(descriptor, size, mmap.PROT_READ) as pointer:
            yield pointer
    finally:
        os.close(descriptor)


@contextmanager
def _mapped(descriptor: int, size: int, protection: int) -> Iterator[Any]:
    with mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=protection) as memory:
        view = np.frombuffer(memory, np.uint8)
        yield ctypes.cast(view.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
        del view  # a view that is left keeps the memory open
