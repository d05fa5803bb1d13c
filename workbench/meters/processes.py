"""Names of processes that hold memory on a card."""

import contextlib
import os

import psutil

from workbench.domain.text import flat

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""What Linux calls the pid namespace of the host."""
_OURS = "workbench.engines.llama.child."


def pids_are_the_hosts() -> bool:
    """Whether this process lives in a container, so that the pids a driver tells mean nothing here."""
    try:
        return os.readlink("/proc/self/ns/pid") != INITIAL_PID_NAMESPACE
    except OSError:
        return False


class Names:
    """Looks each pid up once. In a container none has a name: the driver's pids are the host's."""

    def __init__(self) -> None:
        self._foreign = pids_are_the_hosts()
        self._names: dict[int, str | None] = {}

    def of(self, pid: int) -> str | None:
        """The name of the process; an engine's worker is called that."""
        if self._foreign:
            return None
        if pid not in self._names:
            self._names[pid] = _look_up(pid)
        return self._names[pid]


def _look_up(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        name = flat(process.name())
    except psutil.Error:
        return None
    with contextlib.suppress(psutil.Error):
        if any(argument.startswith(_OURS) for argument in process.cmdline()):
            return "workbench worker"
    return name
