"""A session on real parts, with everything that it told."""

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from tests.waiting import wait_until
from workbench.domain.conversation import Sampling
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split, Virtual
from workbench.engines.engine import Loaded
from workbench.lab import events
from workbench.lab.kit import RealKit
from workbench.lab.session import Session
from workbench.store.journal import Journal

T = TypeVar("T")
GREEDY = Sampling(temperature=0.0, max_tokens=12)
TWO_CARDS = Virtual(("600MiB", "600MiB"))


def layout(model: str | Path = "demo:smollm2", n_ctx: int = 2048, **split: Any) -> Layout:
    """A layout on two virtual cards unless `split` says otherwise."""
    split.setdefault("cards", TWO_CARDS)
    return Layout(name="test", model=str(model), split=Split(**split), context=Context(n_ctx=n_ctx))


class Told:
    """A session and what it told, in order."""

    def __init__(self, journal: Journal | None = None, kit: RealKit | None = None) -> None:
        self.events: list[events.SessionEvent] = []
        self._lock = threading.Lock()
        self.kit = kit or RealKit(spare=False)
        self.session = Session(self.kit, self._hear, journal=journal)
        self.session.sampling = GREEDY

    def _hear(self, event: events.SessionEvent) -> None:
        assert self._lock.acquire(blocking=False), "two events at once"
        self.events.append(event)
        self._lock.release()

    def of(self, kind: type[T]) -> list[T]:
        """What it told of one kind."""
        return [event for event in tuple(self.events) if isinstance(event, kind)]

    def idle(self) -> None:
        """Wait until nothing runs: the probe after a load is over too."""
        wait_until(lambda: self.session._jobs.running is None and not self.session._jobs._heap, timeout=60)

    def wait_for(self, kind: type[T], count: int = 1) -> T:
        """The last of that kind, once there are `count`."""
        wait_until(lambda: len(self.of(kind)) >= count, timeout=60)
        return self.of(kind)[-1]

    def load(self, of: Layout) -> Loaded:
        """Load and return when the probe is over too."""
        loaded = done(self.session.load(of))
        self.idle()
        return loaded

    def close(self) -> None:
        """End the session and its kit."""
        self.session.close()
        self.kit.close()


def done(future: "Future[T]") -> T:
    """The result of a session's call. Raises what it raised."""
    return future.result(timeout=90)
