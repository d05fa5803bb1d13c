"""A command in a terminal of its own, read as fast as it writes."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress


def run_in_pty(
    command: Sequence[str], env: Mapping[str, str], size: tuple[int, int] = (80, 24), limit_s: float = 600.0
) -> tuple[int, bytes]:
    """Its exit code and the last that it drew. TimeoutError past the limit: it is ended then."""
    columns, rows = size
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        list(command),
        stdin=child,
        stdout=child,
        stderr=child,
        env={**env, "TERM": "xterm-256color", "COLORTERM": ""},
        start_new_session=True,
    )
    os.close(child)
    deadline, tail = time.monotonic() + limit_s, b""
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not done within {limit_s:.0f} s")
            if select.select([parent], [], [], 0.2)[0]:
                try:
                    tail = (tail + os.read(parent, 65536))[-8192:]
                except OSError:
                    break
        return process.wait(max(1.0, deadline - time.monotonic())), tail
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(parent)
