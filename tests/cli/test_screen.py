"""The command in a real terminal, as far as the command line is concerned."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until
from workbench.cli.failures import Code


class Terminal:
    """A process on a pseudo-terminal of 120 × 40, and all that it wrote."""

    def __init__(self, folder: Path, *args: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workbench", *args],
            cwd=folder, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "TEXTUAL_ANIMATIONS": "none"},
        )  # fmt: skip
        os.close(slave)
        self.written = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            if not data:
                return
            self.written += data

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        os.close(self._master)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    made: list[Terminal] = []
    yield made
    for terminal in made:
        terminal.close()


@pytest.mark.parametrize("args", [("demo",), ("layouts/small.yaml",)])
def test_the_screen_opens_loads_and_ends_cleanly(
    folder: Path, terminals: list[Terminal], args: tuple[str, ...]
) -> None:
    terminals.append(terminal := Terminal(folder, *args))
    wait_until(lambda: b"RPC1" in terminal.written, 60)
    started = psutil.Process(terminal.process.pid).children(recursive=True)
    assert started
    terminal.type(b"\x11")
    assert terminal.process.wait(30) == Code.DONE, terminal.written[-2000:]
    assert b"Traceback" not in terminal.written
    wait_until(lambda: not any(child.is_running() for child in started))


def test_what_cannot_be_opened_is_said_without_a_screen(folder: Path, terminals: list[Terminal]) -> None:
    terminals.append(terminal := Terminal(folder, "nothing.gguf"))
    assert terminal.process.wait(30) == Code.WRONG
    wait_until(lambda: b"nothing.gguf" in terminal.written)
    assert b"\x1b[?1049h" not in terminal.written
