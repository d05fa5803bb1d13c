"""The meters of a live session: what the cards do, and what they did during each reply."""

import os
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from workbench.domain.card import Card
from workbench.domain.duty import Duty, Reading, account
from workbench.domain.layout import Layout
from workbench.domain.split import SplitMode
from workbench.engines.engine import Loaded
from workbench.lab import events
from workbench.lab.cards import watching
from workbench.meters.board import WatchedGpu
from workbench.meters.nvml import Asking
from workbench.meters.sample import Snapshot
from workbench.meters.sampler import Pace, Sampler


class _Reply(msgspec.Struct):
    """A reply that is being written, or was just now. Times are monotonic seconds."""

    mode: SplitMode
    loaded: Loaded
    gpus: frozenset[str]
    """The cards whose utilisation is their own time, not a share of the host's."""
    parts: dict[str, int]
    """How many cards share the GPU of each."""
    began: float
    before: tuple[Snapshot, ...]
    during: list[Snapshot]
    ended: float = 0.0
    tokens: int = 0
    mark: int = 0


class Watch:
    """Reads the meters for a screen and accounts for each reply that the session tells of.

    `listener` gets every snapshot and `accounts` the duty of each reply, both on the meters'
    thread. Any method may be called from any thread.
    """

    def __init__(
        self,
        listener: Callable[[Snapshot], None],
        accounts: Callable[[Duty], None],
        *,
        make_sampler: Callable[[Callable[[Snapshot], None]], Sampler] = Sampler,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._accounts = accounts
        self._clock = clock
        self._lock = threading.Lock()
        self._serving: tuple[Layout, Loaded] | None = None
        self._cards: Sequence[Card] = ()
        self._reply: _Reply | None = None
        self._last: tuple[Snapshot, ...] = ()
        """The last snapshot, if any; each bears the energy that was last read."""
        self._sampler = make_sampler(self._take)

    def start(self) -> None:
        """Begin to read."""
        self._sampler.start()

    def watch(self, loaded: Loaded | None, cards: Sequence[Card]) -> None:
        """Follow this load on these cards; `loaded` None watches the machine's own."""
        self._cards = tuple(cards)
        self._sampler.watch(watching(self._cards, loaded))

    def hear(self, event: events.SessionEvent) -> None:
        """What the session tells: replies begin and end with marks in the meters."""
        match event:
            case events.LayoutLoaded(layout, loaded):
                self._serving = (layout, loaded)
            case events.TurnStarted():
                self._begin()
            case events.TurnDone(turn=turn):
                self._end(0 if turn.timing is None else turn.timing.tokens)
            case events.PromptReturned():
                with self._lock:
                    self._reply = None

    @property
    def pace(self) -> Pace:
        """How often the meters are read."""
        return self._sampler.pace

    @pace.setter
    def pace(self, pace: Pace) -> None:
        self._sampler.pace = pace

    def hanging(self) -> Asking | None:
        """The driver's call that does not return, if one does not."""
        return self._sampler.hanging()

    def close(self) -> None:
        """End; nothing is told after this."""
        self._sampler.close()

    def _begin(self) -> None:
        serving = self._serving
        if serving is None or self._sampler.pace is Pace.OFF:
            return
        layout, loaded = serving
        watched = watching(self._cards, loaded).cards
        gpus = frozenset(card.name for card in watched if isinstance(card, WatchedGpu))
        parts = {card.name: card.parts for card in self._cards}
        with self._lock:
            self._reply = _Reply(layout.split.split_mode, loaded, gpus, parts, self._clock(), self._last, [])
        self._sampler.mark()

    def _end(self, tokens: int) -> None:
        with self._lock:
            reply = self._reply
            if reply is None:
                return
            if tokens == 0:
                self._reply = None
                return
            reply.ended, reply.tokens = self._clock(), tokens
            reply.mark = self._sampler.mark()

    def _take(self, snapshot: Snapshot) -> None:
        duty = None
        with self._lock:
            self._last = (snapshot,)
            reply = self._reply
            if reply is not None:
                reply.during.append(snapshot)
                if reply.mark and snapshot.mark >= reply.mark:
                    self._reply = None
                    duty = _account(reply)
        self._listener(snapshot)
        if duty is not None:
            self._accounts(duty)


def _account(reply: _Reply) -> Duty:
    """The duty of a reply. Its last reading was asked for at its end and may be a little later.

    What a GPU did of itself cannot be told apart for the cards that are its parts; of its energy
    each has a part.
    """
    loaded, during = reply.loaded, reply.during
    ended = reply.ended
    looks_back = during[0] if len(during) > 1 else None  # to before the reply
    series = []
    for card in loaded.cards:
        readings, parts = [], reply.parts.get(card.name, 1)
        for snapshot in (*reply.before, *during):
            found = next((sample for sample in snapshot.cards if sample.name == card.name), None)
            if found is None or found.lost:
                continue
            whole = parts == 1 and snapshot is not looks_back and snapshot.at > reply.began
            busy = found.utilisation / 100 if whole and found.utilisation is not None else None
            at = min(snapshot.at, ended) if snapshot is during[-1] else snapshot.at
            joules = None if found.energy_j is None else found.energy_j / parts
            readings.append(Reading(at=at, busy=busy, energy_j=joules, energy_at=found.energy_at))
        series.append(readings)
    host_busy = None
    if host_layers(loaded) is not None:
        cores = [one.host.engine_cores for one in during if one.host.engine_cores is not None]
        host_busy = sum(cores) / len(cores) / (os.cpu_count() or 1) if cores else None
    return account(
        reply.mode,
        loaded.cards,
        series,
        reply.began,
        ended,
        reply.tokens,
        busy_is_known=[card.name in reply.gpus for card in loaded.cards],
        host_busy=host_busy,
    )


def host_layers(loaded: Loaded) -> tuple[int, int] | None:
    """The first and the last layer that stayed on the CPU; None if all are on cards."""
    names = {card.name for card in loaded.cards}
    off = [number for number, place in enumerate(loaded.places[: loaded.model.n_layer]) if place not in names]
    return (off[0], off[-1]) if off else None
