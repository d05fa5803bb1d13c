"""Tells a hang from slow work, by what the worker and its cards do."""

import time
from collections.abc import Iterable

import psutil

STALL_S = 30.0
"""So long without a CPU second spent or a byte read is no slow work any more."""


class Vigil:
    """Watches processes while an answer is waited for; `name, pid` of the worker and each card."""

    def __init__(self) -> None:
        self._seen: dict[str, psutil.Process] = {}
        self.rest()

    def watch(self, name: str, pid: int) -> None:
        """One more process."""
        try:
            self._seen[name] = psutil.Process(pid)
        except psutil.NoSuchProcess:
            self._seen.pop(name, None)

    def rest(self) -> None:
        """Something was heard: begin anew."""
        self._quiet_since = time.monotonic()
        self._activity = -1.0
        self._stopped: set[str] = set()

    def verdict(self) -> tuple[str, str] | None:
        """(process, reason) if something hangs. Ask once a second or so; twice stopped counts."""
        stopped = {name for name, process in self._seen.items() if _status(process) == psutil.STATUS_STOPPED}
        for name in stopped & self._stopped:
            return name, "is stopped"
        self._stopped = stopped
        activity = sum(map(_activity, self._seen.values()))
        if activity != self._activity or _any_waits_for_disk(self._seen.values()):
            self._activity = activity
            self._quiet_since = time.monotonic()
        elif time.monotonic() - self._quiet_since > STALL_S:
            return next(iter(self._seen)), f"has done nothing for {STALL_S:.0f} seconds"
        return None


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return "gone"


def _activity(process: psutil.Process) -> float:
    """CPU seconds spent, in steps of the kernel's clock."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _any_waits_for_disk(processes: Iterable[psutil.Process]) -> bool:
    return any(_status(process) == psutil.STATUS_DISK_SLEEP for process in processes)
