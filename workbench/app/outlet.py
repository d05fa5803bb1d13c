"""What goes to the terminal, on a thread of its own: a link that stands still holds nobody up."""

import contextlib
import os
import termios
import threading
import time
from collections.abc import Callable

PATIENCE_S = 0.5
"""The terminal is behind when something has been owed to it for longer."""
LAST_WORDS_S = 1.0
"""How long the end of the app waits for a link that stands still."""
_AT_ONCE = 4096


class Outlet:
    """A file that never blocks and never fails. What a terminal that is gone does not take is dropped.

    `caught_up` is called on the outlet's thread once all is written, if `behind` was true before.
    """

    def __init__(self, fileno: int, encoding: str, caught_up: Callable[[], object]) -> None:
        self._fileno = fileno
        self._encoding = encoding
        self._caught_up = caught_up
        self._change = threading.Condition()
        self._owed: list[bytes] = []
        self._owed_since: float | None = None
        self._writing_since: float | None = None
        self._was_behind = False
        self._gone = self._abandoned = False
        threading.Thread(target=self._run, name="terminal-output", daemon=True).start()

    def write(self, text: str) -> None:
        """Owe this to the terminal."""
        with self._change:
            if not self._gone:
                self._owed.append(text.encode(self._encoding, "replace"))
                self._owed_since = self._owed_since or time.monotonic()
                self._change.notify_all()

    def flush(self) -> None:
        """Nothing: all goes out as soon as it can."""

    def fileno(self) -> int:
        """The terminal's."""
        return self._fileno

    @property
    def behind(self) -> bool:
        """Whether the link is so slow now that another picture would only be late."""
        with self._change:
            since = self._writing_since or self._owed_since
            late = since is not None and time.monotonic() - since > PATIENCE_S
            self._was_behind = self._was_behind or late
            return late

    def clear_the_way(self) -> None:
        """Before the last words: wait until all is written, or throw away what a link that stands still holds back."""
        with self._change:
            if self._change.wait_for(self._is_done, PATIENCE_S):
                return
            self._owed, self._owed_since, self._abandoned = [], None, True
        with contextlib.suppress(termios.error):
            termios.tcflush(self._fileno, termios.TCOFLUSH)

    def finish(self) -> None:
        """Wait until all is written, though not long."""
        with self._change:
            self._change.wait_for(self._is_done, LAST_WORDS_S)

    def _is_done(self) -> bool:
        return self._gone or (not self._owed and self._writing_since is None)

    def _run(self) -> None:
        while not self._gone:
            with self._change:
                self._change.wait_for(lambda: self._owed)
                data, self._owed = b"".join(self._owed), []
                self._writing_since, self._owed_since = self._owed_since, None
            written = self._put(data)
            with self._change:
                self._writing_since, self._gone, self._abandoned = None, not written, False
                caught_up = self._was_behind and not self._owed
                self._was_behind = self._was_behind and not caught_up
                self._change.notify_all()
            if caught_up:
                self._caught_up()

    def _put(self, data: bytes) -> bool:
        """Write all of it, as long as somebody wants it; False once the terminal is gone."""
        rest = memoryview(data)
        while rest and not self._abandoned:
            try:
                rest = rest[os.write(self._fileno, rest[:_AT_ONCE]) :]
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                return False
        return True
