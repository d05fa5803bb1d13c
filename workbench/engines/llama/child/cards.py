"""The virtual cards of one worker: started, watched, asked and ended by it."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from workbench.engines.engine import CardProcess
from workbench.engines.llama.child.rpc_card import MIB, Allocation

START_TIMEOUT_S = 20.0
START_ATTEMPTS = 3
"""Between choosing a port and listening there, someone else may take it."""
GONE_S = 1.0
"""A killed process is gone in milliseconds, unless it hangs in a driver."""
ANSWER_TIMEOUT_S = 5.0
_ledger = msgspec.json.Decoder(list[Allocation])


class CardFailedToStart(Exception):
    """A virtual card's process did not come up."""


class Refused(NamedTuple):
    """A buffer that did not fit: its card, the MiB wanted and the MiB that were free, where known."""

    card: str
    wanted_mib: float | None
    free_mib: float | None


class VirtualCard:
    """One RPC server process and its ledger of buffers."""

    def __init__(self, name: str, size_mib: float, staging_mib: float, threads: int) -> None:
        self.name = name
        self.size_mib = size_mib
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        self.endpoint = f"127.0.0.1:{port}"
        self._address = ("127.0.0.1", port)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.rpc_card", *map(str, (port, size_mib, staging_mib, threads))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        self._asking = threading.Lock()

    def wait_until_up(self) -> None:
        """Return when the server accepts connections. Raises CardFailedToStart."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                with socket.create_connection(self._address, timeout=1) as connection:
                    # On loopback a connection may meet itself while nobody listens yet.
                    if connection.getsockname() != connection.getpeername():
                        return
            except OSError:
                time.sleep(0.005)
        raise CardFailedToStart(f"the process of virtual card {self.name} did not start; the log says why")

    def allocations(self) -> list[Allocation]:
        """The ledger now; empty when the card is dead or stopped."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self._asking:
            try:
                self.process.stdin.write(b"?\n")
                self.process.stdin.flush()
                answers, _, _ = select.select([self.process.stdout], [], [], ANSWER_TIMEOUT_S)
                line = self.process.stdout.readline() if answers else b""
            except OSError:
                line = b""
        return _ledger.decode(line) if line else []

    def live_mib(self, after_ns: int, until_ns: int) -> float:
        """MiB still held of what was allocated in that time (ns, monotonic)."""
        held = (a for a in self.allocations() if not a.failed and not a.freed)
        return sum(a.size for a in held if after_ns < a.at_ns <= until_ns) / MIB

    def describe(self) -> CardProcess:
        """For meters."""
        return CardProcess(self.name, self.process.pid, self.endpoint, self.size_mib)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()


class VirtualCards:
    """All virtual cards of this worker, by name."""

    def __init__(
        self, on_death: Callable[[str], None], on_start: Callable[[CardProcess], None] = lambda _: None
    ) -> None:
        self._on_death = on_death
        self._on_start = on_start
        self._ending = False
        self.by_name: dict[str, VirtualCard] = {}

    def start(self, sizes: dict[str, float], staging_mib: float, threads: int) -> None:
        """Start one card a size (MiB), together, and watch each. Raises CardFailedToStart.

        `staging_mib` is the largest tensor that will be sent to one.
        """
        for name, size in sizes.items():
            self._begin(name, size, staging_mib, threads)
        for name, size in sizes.items():
            for attempt in range(1, START_ATTEMPTS + 1):
                try:
                    self.by_name[name].wait_until_up()
                    break
                except CardFailedToStart:
                    if attempt == START_ATTEMPTS or self.by_name[name].process.poll() is None:
                        raise
                    self._begin(name, size, staging_mib, threads)
            threading.Thread(target=self._watch, args=(self.by_name[name],), daemon=True).start()

    def _begin(self, name: str, size_mib: float, staging_mib: float, threads: int) -> None:
        self.by_name[name] = VirtualCard(name, size_mib, staging_mib, threads)
        self._on_start(self.by_name[name].describe())

    def _watch(self, card: VirtualCard) -> None:
        card.process.wait()
        if not self._ending:
            self._on_death(card.name)

    def refused(self) -> Refused | None:
        """The first card whose last buffer was refused, or is more than fits beside the others.

        The process's own limit is wider by its staging room, which buffers must not use up.
        """
        for card in self.by_name.values():
            allocations = card.allocations()
            if not allocations:
                continue
            *others, last = allocations
            free = card.size_mib - sum(a.size for a in others if not a.failed and not a.freed) / MIB
            if last.failed or (not last.freed and last.size / MIB > free):
                return Refused(card.name, last.size / MIB, max(0.0, free))
        return None

    def kill(self) -> None:
        """End all; their memory is free on return."""
        self._ending = True
        for card in self.by_name.values():
            card.kill()
        for card in self.by_name.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                card.process.wait(GONE_S)
