"""Waiting in tests: for a condition, never for a time."""

import time
from collections.abc import Callable


def wait_until(predicate: Callable[[], object], timeout: float = 20.0) -> None:
    """Return as soon as `predicate` holds; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {getattr(predicate, '__name__', predicate)}")
        time.sleep(0.01)
