"""What tests and benchmarks on real cards share: a session with its meters, and the counters read by hand."""

import time
from collections.abc import Sequence

import pynvml

from tests.waiting import wait_until
from workbench.domain.card import Card, pci_key
from workbench.domain.conversation import Sampling
from workbench.domain.duty import Duty
from workbench.domain.owners import Holder, Owner, divide
from workbench.lab.cards import watching
from workbench.lab.events import LayoutLoaded, SessionEvent
from workbench.lab.kit import RealKit
from workbench.lab.session import Session
from workbench.lab.watch import Watch
from workbench.meters.board import Board
from workbench.meters.sample import CardSample, Snapshot


class Bench:
    """A session with its meters, as the screen has them."""

    def __init__(self, cards: Sequence[Card]) -> None:
        self.snapshots: list[Snapshot] = []
        self.duties: list[Duty] = []
        self.kit = RealKit(spare=False)
        self.watch = Watch(self.snapshots.append, self.duties.append)
        self.cards = cards
        self.watch.watch(None, cards)
        self.watch.start()
        self.session = Session(self.kit, self._hear)

    def _hear(self, event: SessionEvent) -> None:
        self.watch.hear(event)
        if isinstance(event, LayoutLoaded):
            self.watch.watch(event.loaded, self.cards)

    def close(self) -> None:
        """End the session and its meters."""
        self.session.close()
        self.watch.close()
        self.kit.close()

    def card(self, name: str) -> CardSample:
        """The card as it was read last."""
        return next(card for card in self.snapshots[-1].cards if card.name == name)

    def reply(self, tokens: int) -> Duty:
        """A reply of so many tokens in a new conversation; its duty."""
        self.session.clear().result()
        count = len(self.duties)
        sampling = Sampling(temperature=0, max_tokens=tokens, ignore_eos=True)
        self.session.send("Write on rivers.", sampling).result()
        wait_until(lambda: len(self.duties) > count)
        return self.duties[-1]

    def owners(self, name: str) -> tuple[Owner, ...]:
        """Whose the memory of a card is."""
        loaded, sample = self.session.loaded, self.card(name)
        assert loaded is not None
        assert sample.used_mib is not None
        memory = next(memory for memory in loaded.cards if memory.name == name)
        holders = [Holder(pid=one.pid, name=one.name, mib=one.mib) for one in sample.processes or ()]
        return divide(sample.used_mib, memory, holders, (loaded.pid,))


def energy_j(cards: Sequence[Card]) -> float:
    """What the GPUs of these cards have used so far, by their counters."""
    pynvml.nvmlInit()
    keys = {pci_key(card.pci_bus_id or "") for card in cards}
    total = 0.0
    for number in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
        if pci_key(bus_id if isinstance(bus_id, str) else bus_id.decode()) in keys:
            total += pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    return total


def core_share(cards: Sequence[Card], seconds: float) -> float:
    """The part of a core that reading these cards twice a second takes; without any, the host's own figures."""
    board = Board()
    board.read(watching(cards))
    before, began = time.process_time(), time.monotonic()
    while time.monotonic() - began < seconds:
        board.read(watching(cards))
        time.sleep(0.5)
    share = (time.process_time() - before) / (time.monotonic() - began)
    board.close()
    return share
