"""The machine's own memory and CPU, and those of the processes behind virtual cards."""

import psutil

from workbench.meters.sample import CardSample, HostSample

_MIB = 2**20


class HostMeter:
    """CPU figures are over the time since the last call, so the first ones are None."""

    def __init__(self) -> None:
        self._cores = psutil.cpu_count() or 1
        self._processes: dict[int, psutil.Process] = {}
        self._host_seen = False

    def host(self) -> HostSample:
        """The machine now."""
        memory = psutil.virtual_memory()
        percent = psutil.cpu_percent(interval=None)
        first, self._host_seen = not self._host_seen, True
        return HostSample(
            cpu_percent=None if first else percent,
            total_mib=memory.total / _MIB,
            available_mib=memory.available / _MIB,
        )

    def process(self, name: str, pid: int, size_mib: float | None) -> CardSample:
        """The process behind a virtual card: resident memory against the card's size, CPU share."""
        first = pid not in self._processes
        try:
            if first:
                self._processes[pid] = psutil.Process(pid)
            process = self._processes[pid]
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
