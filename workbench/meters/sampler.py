"""One thread that reads all meters twice a second, more seldom while nobody looks."""

import logging
import threading
import time
from collections.abc import Callable
from enum import StrEnum

from workbench.meters.board import Board, Watching
from workbench.meters.nvml import Asking
from workbench.meters.sample import Snapshot

_log = logging.getLogger(__name__)
SLOWER = 4
"""So much longer is the time between two readings that nobody sees."""
HANGS_S = 1.5
"""A call to the driver that takes longer hangs."""


class Pace(StrEnum):
    """How often to read: as asked, more seldom, or not at all."""

    FULL = "full"
    HIDDEN = "hidden"
    OFF = "off"


class Sampler:
    """Calls `listener` from its own thread with each snapshot, until closed.

    A listener that raises is logged and called again next time. With `energy` the energy
    counters are read each time, not only when they are marked or due.
    """

    def __init__(
        self,
        listener: Callable[[Snapshot], None],
        *,
        interval_s: float = 0.5,
        energy: bool = False,
        board: Board | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._interval_s = interval_s
        self._energy = energy
        self._clock = clock
        self._board = board or Board(clock)
        self._watching = Watching()
        self._pace = Pace.FULL
        self._mark = 0
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meters", daemon=True)

    def start(self) -> None:
        """Begin; the first snapshot comes at once."""
        self._thread.start()

    def watch(self, watching: Watching) -> None:
        """Watch this from now on; a snapshot follows at once."""
        self._watching = watching
        self._wake.set()

    @property
    def pace(self) -> Pace:
        """How often it reads."""
        return self._pace

    @pace.setter
    def pace(self, pace: Pace) -> None:
        if pace is not self._pace:
            self._pace = pace
            self._wake.set()

    def mark(self) -> int:
        """Read at once, the energy counters too; the snapshots from then on bear this number or a later one."""
        self._mark += 1
        self._wake.set()
        return self._mark

    def hanging(self) -> Asking | None:
        """The call to the driver that does not return, if one does not."""
        asking = self._board.hanging()
        return asking if asking is not None and self._clock() - asking.since > HANGS_S else None

    def close(self) -> None:
        """End the thread; no call to the listener begins after this returns. One that hangs is left behind."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(HANGS_S)

    def _run(self) -> None:
        served = 0
        while not self._closed.is_set():
            self._wake.clear()
            if self._pace is Pace.OFF and self._mark == served:
                self._board.rest()
                self._wake.wait()
                continue
            mark, hidden = self._mark, self._pace is Pace.HIDDEN
            snapshot = self._board.read(self._watching, mark=mark, energy=self._energy or mark != served, rarely=hidden)
            served = mark
            if self._closed.is_set():
                break
            try:
                self._listener(snapshot)
            except Exception:
                _log.exception("the listener of the meters failed")
            self._wake.wait(self._interval_s * (SLOWER if hidden else 1))
        self._board.close()
