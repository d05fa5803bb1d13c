"""The machine's own memory, CPU and disks, and the processes behind virtual cards."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from workbench.meters.pagecache import cached_share
from workbench.meters.sample import CardSample, HostSample

_MIB = 2**20
_CACHE_EVERY_S = 10.0


class HostMeter:
    """Rates are over the time since the last call, so the first ones are None."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cores = psutil.cpu_count() or 1
        self._processes: dict[int, psutil.Process] = {}
        self._host_seen = False
        self._disk: tuple[float, int] | None = None
        self._cached: tuple[float, tuple[Path, ...], float | None] | None = None

    def host(self, model_files: Sequence[Path] = (), engine_pid: int | None = None) -> HostSample:
        """The machine now, with what of the model's files is cached and what the engine's process does."""
        memory = psutil.virtual_memory()
        percent = psutil.cpu_percent(interval=None)
        first, self._host_seen = not self._host_seen, True
        return HostSample(
            cpu_percent=None if first else percent,
            total_mib=memory.total / _MIB,
            available_mib=memory.available / _MIB,
            cached=self._cached_share(tuple(model_files)),
            disk_read_mib_s=self._disk_rate(),
            engine_cores=None if engine_pid is None else self._busy_cores(engine_pid),
        )

    def process(self, name: str, pid: int, size_mib: float | None) -> CardSample:
        """The process behind a virtual card: resident memory against the card's size, CPU share."""
        first = pid not in self._processes
        try:
            process = self._process(pid)
            with process.oneshot():
                resident = process.memory_info().rss
                percent = process.cpu_percent(interval=None)
                gone = resident == 0 or not process.is_running()
        except psutil.NoSuchProcess:
            gone = True
        except psutil.AccessDenied:
            return CardSample(name=name, total_mib=size_mib)
        if gone:
            return CardSample(name=name, lost=True, total_mib=size_mib)
        used = resident / _MIB
        share = None if first else min(100.0, percent / self._cores)
        return CardSample(name=name, total_mib=size_mib, used_mib=used, ours_mib=used, utilisation=share)

    def forget_all_but(self, pids: set[int]) -> None:
        """Drop processes that are watched no longer."""
        for pid in self._processes.keys() - pids:
            del self._processes[pid]

    def _process(self, pid: int) -> psutil.Process:
        if pid not in self._processes:
            self._processes[pid] = psutil.Process(pid)
        return self._processes[pid]

    def _busy_cores(self, pid: int) -> float | None:
        first = pid not in self._processes
        with contextlib.suppress(psutil.Error):
            percent = self._process(pid).cpu_percent(interval=None)
            return None if first else percent / 100
        return None

    def _disk_rate(self) -> float | None:
        try:
            counters = psutil.disk_io_counters()
        except (OSError, RuntimeError):
            return None
        if counters is None:
            return None
        now, before = (self._clock(), int(counters.read_bytes)), self._disk
        self._disk = now
        if before is None or now[0] <= before[0] or now[1] < before[1]:
            return None
        return (now[1] - before[1]) / _MIB / (now[0] - before[0])

    def _cached_share(self, files: tuple[Path, ...]) -> float | None:
        if not files:
            return None
        now, known = self._clock(), self._cached
        if known is None or known[1] != files or now - known[0] >= _CACHE_EVERY_S:
            known = self._cached = (now, files, cached_share(files))
        return known[2]
