"""What the parts share: a session that is listened to, and the GPUs as NVML sees them."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from tests.benchmarks.gpu.room import Room
from tests.gpu.bench import Bench
from workbench.domain.card import Card, CardKind
from workbench.domain.conversation import Sampling, Turn
from workbench.domain.layout import Layout
from workbench.lab import events
from workbench.lab.kit import RealKit
from workbench.lab.session import Session
from workbench.meters.nvml import Nvml

T = TypeVar("T")
E = TypeVar("E")
LIMIT_S = 120.0


class Heard:
    """Listens to a session: every event with when it came (monotonic seconds)."""

    def __init__(self) -> None:
        self.events: list[tuple[float, events.SessionEvent]] = []
        self.also: Callable[[events.SessionEvent], None] = lambda event: None

    def __call__(self, event: events.SessionEvent) -> None:
        """From the session's threads."""
        self.events.append((time.monotonic(), event))
        self.also(event)

    def of(self, kind: type[E], since: int = 0) -> list[tuple[float, E]]:
        """The events of a kind, from number `since` on."""
        return [(at, event) for at, event in self.events[since:] if isinstance(event, kind)]


@contextmanager
def session_on(layout: Layout, kit: RealKit | None = None) -> Iterator[tuple[Session, Heard]]:
    """A session that serves the layout, with its first probe done."""
    kit = kit or RealKit()
    heard = Heard()
    session = Session(kit, heard)
    try:
        session.load(layout).result(LIMIT_S)
        session.probe().result(LIMIT_S)
        yield session, heard
    finally:
        session.close()
        kit.close()


def settle(future: Future[T]) -> T | None:
    """What came of it, None if it failed; TimeoutError where nothing does in time."""
    try:
        return future.result(LIMIT_S)
    except TimeoutError:
        raise
    except Exception:
        return None


def ask(session: Session, prompt: str, tokens: int) -> Turn:
    """One reply of exactly so many tokens, greedily."""
    return session.send(prompt, Sampling(temperature=0, max_tokens=tokens, ignore_eos=True)).result(LIMIT_S)


def gpus(room: Room, kit: RealKit) -> tuple[Card, ...]:
    """The first card of each GPU of the room; none in a rehearsal."""
    found: dict[str, Card] = {}
    if not room.virtual:
        for card in kit.cards(room.layout(next(iter(room.models)))):
            if card.kind is CardKind.CUDA and card.pci_bus_id is not None and card.name in room.cards:
                found.setdefault(card.pci_bus_id, card)
    return tuple(found.values())


@contextmanager
def nvml() -> Iterator[Nvml]:
    """NVML, let go of in the end."""
    opened = Nvml()
    try:
        yield opened
    finally:
        opened.close()


def known_cards(room: Room, layout: Layout) -> tuple[Card, ...]:
    """The room's GPUs as the meters know them; none in a rehearsal."""
    kit = RealKit(spare=False)
    known = () if room.virtual else tuple(card for card in kit.cards(layout) if card.name in room.cards)
    kit.close()
    return known


@contextmanager
def bench_on(layout: Layout, known: Sequence[Card]) -> Iterator[Bench]:
    """A session with its meters that serves the layout, with its first probe done."""
    bench = Bench(known)
    try:
        bench.session.load(layout).result(LIMIT_S)
        bench.session.probe().result(LIMIT_S)
        yield bench
    finally:
        bench.close()


def tokens_for(bench: Bench, seconds: float) -> int:
    """How many tokens take so long, by a short reply."""
    duty = bench.reply(64)
    return int(64 * seconds / duty.seconds) + 1


def lacks_two(room: Room) -> str:
    """Why what needs two GPUs cannot be measured here; empty if it can."""
    if room.virtual:
        return "not measured: a rehearsal without a GPU"
    if room.parted or len(room.cards) < 2:
        return "not measured: one GPU, whose parts cannot be told apart"
    return ""
