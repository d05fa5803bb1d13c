"""The command in a pseudo-terminal, and what is on its screen."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pyte

from tests.waiting import wait_until

ENTER, QUIT, ESC, F6, F8 = b"\r", b"\x11", b"\x1b[27u", b"\x1b[17~", b"\x1b[19~"
_UNKNOWN_TO_PYTE = re.compile(rb"\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$p|\x1b\[[0-9;]* q")
_SURROUNDINGS = {
    "TERM": "xterm-256color",
    "LANG": "C.UTF-8",
    "TEXTUAL_ANIMATIONS": "none",
    "PYTHONPATH": str(Path(__file__).parents[1]),
}
_LOCALE = ("LANG", "LC_ALL", "LC_CTYPE", "NO_COLOR", "COLORTERM", "COLORFGBG", "SSH_CONNECTION", "SSH_TTY", "TMUX")


class Terminal:
    """A process that leads a session on a pseudo-terminal of its own, and all that it wrote.

    `program` is what Python runs, `python -m workbench` if nothing is said; `size` is (columns, rows).
    Nothing that tells of the terminal round about is inherited; `env` is added.
    """

    def __init__(
        self,
        folder: Path,
        *args: str,
        program: Sequence[str] = ("-m", "workbench"),
        env: Mapping[str, str] | None = None,
        size: tuple[int, int] = (120, 40),
    ) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.resize(size)
        inherited = {name: value for name, value in os.environ.items() if name not in _LOCALE}
        self.process = subprocess.Popen(
            [sys.executable, *program, *args],
            cwd=folder, stdin=slave, stdout=slave, stderr=slave, preexec_fn=_lead,
            env={**inherited, **_SURROUNDINGS, **(env or {})},
        )  # fmt: skip
        os.close(slave)
        self.written = b""
        self._drawn = 0
        self._lock = threading.Lock()
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self.reading = threading.Event()
        self.reading.set()
        self._gone = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._gone:
            self.reading.wait()
            try:
                if select.select([self.master], [], [], 0.05)[0]:
                    data = os.read(self.master, 65536)
                    with self._lock:
                        self.written += data
            except OSError:
                return

    def type(self, keys: bytes) -> None:
        """Send keys."""
        os.write(self.master, keys)

    def resize(self, size: tuple[int, int]) -> None:
        """Make the terminal this large; the process is told."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        if hasattr(self, "_screen"):
            self.lines()
            self._screen.resize(lines=size[1], columns=size[0])

    def lines(self) -> list[str]:
        """What is on the screen now."""
        with self._lock:
            new, self._drawn = self.written[self._drawn :], len(self.written)
        self._stream.feed(_UNKNOWN_TO_PYTE.sub(b"", new))
        return list(self._screen.display)

    def cells(self, column: int) -> list[str]:
        """What is in one column, from the top; "" is the right half of something wide."""
        self.lines()
        return [self._screen.buffer[row][column].data for row in range(self._screen.lines)]

    def forget(self) -> None:
        """Keep what is on the screen, not how it came there."""
        self.lines()
        with self._lock:
            self.written, self._drawn = self.written[self._drawn :], 0

    def shows(self, text: str) -> bool:
        """Whether this is on the screen now."""
        return any(text in line for line in self.lines())

    def wait_for(self, *texts: str, timeout: float = 20.0) -> None:
        """Return once all of these are on the screen; fail with what is there after `timeout` seconds."""
        try:
            wait_until(lambda: all(self.shows(text) for text in texts) or self.process.poll() is not None, timeout)
            assert self.process.poll() is None
        except AssertionError:
            drawn = "\n".join(self.lines())
            raise AssertionError(f"{texts} not within {timeout:g} s; ended: {self.process.poll()}\n{drawn}") from None

    @property
    def restored(self) -> bool:
        """Whether the terminal is as it was found: its modes, the screen, the cursor, the mouse, the keyboard."""
        modes = (b"?1049", b"?1000", b"?1003", b"?2004", b"?1004")
        pairs = [(b"\x1b[" + mode + b"h", b"\x1b[" + mode + b"l") for mode in modes]
        pairs += [(b"\x1b[?25l", b"\x1b[?25h"), (b"\x1b[>", b"\x1b[<u")]
        put_back = all(self.written.rfind(end) >= self.written.rfind(begin) for begin, end in pairs)
        return put_back and termios.tcgetattr(self.master) == self.before

    def children(self) -> list[psutil.Process]:
        """All processes that it has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def hang_up(self) -> None:
        """The terminal goes, as at the end of a connection."""
        self._stop_reading()
        os.close(self.master)

    def close(self) -> None:
        """End whatever is left."""
        self.process.kill()
        self.process.wait()
        if not self._gone:
            self.hang_up()

    def _stop_reading(self) -> None:
        self._gone = True
        self.reading.set()
        self._reader.join(10)


def _lead() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
