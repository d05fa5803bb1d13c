"""Under what a sample is taken: cards, and the host's load, from the first token asked to the last told."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from workbench.domain.card import Card
from workbench.domain.samples import CardState, Conditions
from workbench.engines.engine import Loaded
from workbench.lab.cards import watched
from workbench.meters.board import Board, WatchedGpu, Watching
from workbench.meters.nvml import Nvml
from workbench.meters.sample import CardSample, Snapshot
from workbench.meters.sampler import Sampler

INTERVAL_S = 0.5
GROUPS = frozenset({"processes"})
"""Of what is dear to read: whatever else would be read in a sample's first second, and slow it."""


class Reader(Protocol):
    """Watches the cards of one load."""

    def begin(self) -> None:
        """A sample begins."""

    def end(self) -> Conditions:
        """It is over: what was seen since."""

    def close(self) -> None:
        """Watch no longer."""


ReaderFor = Callable[[Loaded, Sequence[Card]], Reader]


class MeterReader:
    """Reads the meters in a thread of its own, and what is dear to read before and after each sample only."""

    def __init__(self, loaded: Loaded, cards: Sequence[Card]) -> None:
        names = {card.name for card in loaded.cards}
        if loaded.served is not None and loaded.served.pids:
            names = {card.name for card in cards}  # which of them the server uses, only its processes tell
        ours = [card for card in watched(cards, loaded) if card.name in names]
        self._gpus = [card for card in ours if isinstance(card, WatchedGpu)]
        self._parts = {card.name: card.parts for card in cards}
        self._is_served = loaded.served is not None
        self._nvml = Nvml() if self._gpus else None
        self._lock = threading.Lock()
        self._seen: list[Snapshot] = []
        self._energy: dict[str, float | None] = {}
        self._since_us = 0
        self._sampler = Sampler(self._hear, interval_s=INTERVAL_S, board=Board(groups=GROUPS))
        self._sampler.watch(Watching(cards=tuple(ours)))
        self._sampler.start()

    def begin(self) -> None:
        """See `Reader`."""
        self._energy = self._read_energy()
        self._since_us = time.time_ns() // 1000
        with self._lock:
            # The latest stays: a short sample may see no other.
            self._seen = self._seen[-1:]

    def end(self) -> Conditions:
        """See `Reader`."""
        with self._lock:
            seen = list(self._seen)
        after = self._read_energy()
        states = []
        for number in range(len(seen[-1].cards) if seen else 0):
            state = _state([snapshot.cards[number] for snapshot in seen])
            states.append(self._with_dear_figures(state, after))
        if self._is_served:
            states = [state for state in states if state.ours_mib is not None]
        return Conditions(cards=tuple(states), load_average=_load_average())

    def close(self) -> None:
        """See `Reader`."""
        self._sampler.close()
        if self._nvml is not None:
            self._nvml.close()

    def _hear(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._seen.append(snapshot)

    def _read_energy(self) -> dict[str, float | None]:
        if self._nvml is None:
            return {}
        return {card.name: self._nvml.energy_j(card.pci_bus_id) for card in self._gpus}

    def _with_dear_figures(self, state: CardState, energy: dict[str, float | None]) -> CardState:
        """A card that is a part of a GPU has its part of the energy; whose the memory is, the whole GPU tells alone."""
        gpu = next((card for card in self._gpus if card.name == state.name), None)
        if gpu is None or self._nvml is None:
            return state
        before, after = self._energy.get(gpu.name), energy.get(gpu.name)
        parts = self._parts.get(gpu.name, 1)
        return msgspec.structs.replace(
            state,
            ours_mib=state.ours_mib if parts == 1 else None,
            energy_j=None if before is None or after is None or after < before else (after - before) / parts,
            foreign_percent=self._nvml.foreign_percent(gpu.pci_bus_id, gpu.pids, self._since_us),
        )


def _state(seen: Sequence[CardSample]) -> CardState:
    """One card over several readings: the hottest, the most, the mean clock, every throttle reason."""
    reasons = [sample.throttle for sample in seen if sample.throttle is not None]
    return CardState(
        name=seen[-1].name,
        sm_clock_mhz=_mean([sample.sm_clock_mhz for sample in seen]),
        temperature_c=_most([sample.temperature_c for sample in seen]),
        power_w=_mean([sample.power_w for sample in seen]),
        throttle=tuple(dict.fromkeys(reason for each in reasons for reason in each)) if reasons else None,
        used_mib=_most([sample.used_mib for sample in seen]),
        ours_mib=_most([sample.ours_mib for sample in seen]),
    )


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
