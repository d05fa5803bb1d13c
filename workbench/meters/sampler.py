"""One thread that reads all meters twice a second."""

import logging
import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from workbench.meters.host import HostMeter
from workbench.meters.nvml import Nvml
from workbench.meters.sample import CardSample, Snapshot

_log = logging.getLogger(__name__)


class WatchedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A card that NVML knows by its PCI bus id; `pids` are our processes that may use it."""

    name: str
    pci_bus_id: str
    pids: tuple[int, ...] = ()


class WatchedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual card: the process behind it and the card's size in MiB."""

    name: str
    pid: int
    size_mib: float | None = None


class WatchedName(msgspec.Struct, frozen=True, kw_only=True):
    """A card of which nothing can be read, such as one on another host."""

    name: str


Watched = WatchedGpu | WatchedProcess | WatchedName


class Sampler:
    """Calls `listener` from its own thread with each snapshot, until closed.

    A listener that raises is logged and called again next time.
    """

    def __init__(self, listener: Callable[[Snapshot], None], *, interval_s: float = 0.5) -> None:
        self._listener = listener
        self._interval_s = interval_s
        self._watched: tuple[Watched, ...] = ()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="meters", daemon=True)

    def start(self) -> None:
        """Begin; the first snapshot comes at once."""
        self._thread.start()

    def watch(self, cards: Iterable[Watched]) -> None:
        """Watch these cards from now on, in this order; a snapshot follows at once."""
        self._watched = tuple(cards)
        self._wake.set()

    def close(self) -> None:
        """End the thread; no call to the listener begins after this returns."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        host, nvml = HostMeter(), None
        while not self._closed:
            watched = self._watched
            if nvml is None and any(isinstance(card, WatchedGpu) for card in watched):
                nvml = Nvml()
            host.forget_all_but({card.pid for card in watched if isinstance(card, WatchedProcess)})
            cards = tuple(_read(card, host, nvml) for card in watched)
            snapshot = Snapshot(at=time.monotonic(), cards=cards, host=host.host())
            try:
                self._listener(snapshot)
            except Exception:
                _log.exception("the listener of the meters failed")
            self._wake.wait(self._interval_s)
            self._wake.clear()
        if nvml is not None:
            nvml.close()


def _read(card: Watched, host: HostMeter, nvml: Nvml | None) -> CardSample:
    if isinstance(card, WatchedProcess):
        return host.process(card.name, card.pid, card.size_mib)
    if isinstance(card, WatchedGpu) and nvml is not None:
        return nvml.sample(card.name, card.pci_bus_id, card.pids)
    return CardSample(name=card.name)
