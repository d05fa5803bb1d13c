"""A server's processes, where it runs on this machine and they can be seen."""

import contextlib
from collections.abc import Collection
from urllib.parse import urlsplit

import psutil

from workbench.domain.servers import is_here


def listener(url: str) -> int | None:
    """The process that listens at a loopback address; None if it is elsewhere or another user's."""
    if not is_here(url):
        return None
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                return connection.pid
    return None


def family(pid: int | None) -> frozenset[int]:
    """A process and all below it; empty for None."""
    if pid is None:
        return frozenset()
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return frozenset({pid, *(child.pid for child in process.children(recursive=True))})
    return frozenset()


def gone(pids: Collection[int], timeout_s: float) -> bool:
    """Whether all of these processes end within the time."""
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            processes.append(psutil.Process(pid))
    return not psutil.wait_procs(processes, timeout=max(0.0, timeout_s))[1]
