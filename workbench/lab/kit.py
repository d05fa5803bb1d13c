"""What a session is made with: how engines are opened, and where its files are."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from workbench.domain.card import Card
from workbench.domain.layout import EngineName, Layout
from workbench.domain.rules import check_layout
from workbench.domain.split import Virtual
from workbench.engines.engine import Engine, EngineDied, EngineError, Loaded, LoadFailed
from workbench.engines.llama.client import LlamaEngine
from workbench.engines.llama.process import WorkerProcess, worker_environment
from workbench.lab.aside import Aside
from workbench.lab.cards import inventory
from workbench.lab.forecast import Forecasts
from workbench.lab.foresight import Blind, Foresight, Sighted
from workbench.lab.plan import RPC_PREFIX, plan_load
from workbench.lab.rooms import Running
from workbench.lab.trust import check_cards, check_key
from workbench.store.models import resolve_model
from workbench.store.places import places

OnDeath = Callable[[EngineDied], None]


class Kit(Protocol):
    """Opens engines for a session; `foresight` knows what fits."""

    foresight: Blind

    def open_engine(self, layout: Layout, on_death: OnDeath, beside: int = 0) -> Engine:
        """An engine that is ready to load `layout`, whose model was looked at, and that holds no card's memory yet.

        `beside` counts the virtual cards that live meanwhile. Raises LoadFailed, ModelError or
        whatever else says that the layout cannot be loaded.
        """

    def stand_beside(self, serving: Layout, loaded: Loaded, following: Layout) -> bool:
        """Whether `following` can load while `serving` answers: both fit at once."""

    def aside(self, size: int) -> Aside:
        """Where a conversation's state of about so many bytes may be for a while. Raises OSError."""

    def rest(self) -> None:
        """End what stands by; the next engine takes a little longer."""

    def close(self) -> None:
        """End what stands by, for good."""


class RealKit:
    """Engines as layouts name them, with a spare worker that stands by: imported, no card touched.

    Without `spare` there is none, for whoever loads once.
    """

    def __init__(self, *, spare: bool = True) -> None:
        self._cards: dict[tuple[tuple[str, str | None], ...], Sequence[Card]] = {}
        self._spare: WorkerProcess | None = None
        self._lock = threading.Lock()
        self._keeps_spare = spare
        self.forecasts = Forecasts(self.cards)
        self.foresight: Blind = Sighted(Foresight(self.forecasts))
        self._openers: dict[EngineName, Callable[[Layout, OnDeath, int], Engine]] = {
            "llama.cpp": self._open_worker,
            # A server outlives its engines: it has no death to tell of, and no virtual cards.
            "ollama": lambda layout, on_death, beside: _open_ollama(_checked(layout)),
            "openai": lambda layout, on_death, beside: _open_openai(_checked(layout)),
        }

    def open_engine(self, layout: Layout, on_death: OnDeath, beside: int = 0) -> Engine:
        """See `Kit`. Raises LoadFailed, ModelError, EngineDied."""
        self.forecasts.release()
        return self._openers[layout.engine](layout, on_death, beside)

    def _open_worker(self, layout: Layout, on_death: OnDeath, beside: int) -> Engine:
        check_cards(layout)
        command = plan_load(layout, str(resolve_model(layout.model)), lambda: self.cards(layout), beside)
        environment = worker_environment(layout.env, isinstance(layout.split.cards, Virtual))
        spare = self._take_spare(environment, on_death)
        engine = LlamaEngine(command, spare or WorkerProcess(environment, places().engine_log, on_death))
        try:
            engine.look_at_model()
        except EngineDied:
            engine.close()
            if spare is None:
                raise
            return self._open_worker(layout, on_death, beside)  # it was the spare that was dead
        except EngineError:
            engine.close()
            raise
        self._stand_by(environment)
        return engine

    def stand_beside(self, serving: Layout, loaded: Loaded, following: Layout) -> bool:
        """See `Kit`. The forecast says."""
        cards = following.split.cards
        if isinstance(cards, tuple) and any(card.startswith(RPC_PREFIX) for card in cards):
            return False  # a remote server serves one client
        return self.foresight.beside(following, Running(serving, loaded))

    def cards(self, layout: Layout) -> Sequence[Card]:
        """The machine's cards as a worker with the layout's environment sees them, asked once."""
        key = tuple(sorted(layout.env.items()))
        if key not in self._cards:
            self._cards[key] = inventory(layout.env).cards
        return self._cards[key]

    def aside(self, size: int) -> Aside:
        """See `Kit`."""
        return Aside(size)

    def rest(self) -> None:
        """See `Kit`: end the spare and the forecast's helper."""
        self.forecasts.release()
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    def close(self) -> None:
        """See `Kit`."""
        self._keeps_spare = False
        self.forecasts.close()
        self.rest()

    def _take_spare(self, environment: dict[str, str], on_death: OnDeath) -> WorkerProcess | None:
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is None:
            return None
        if spare.environment != environment or not spare.adopt(on_death):
            spare.close()
            return None
        return spare

    def _stand_by(self, environment: dict[str, str]) -> None:
        with self._lock:
            if self._spare is None and self._keeps_spare:
                self._spare = WorkerProcess(environment, places().engine_log, lambda error: None)


def _open_ollama(layout: Layout) -> Engine:
    from workbench.engines.ollama import OllamaEngine  # with HTTP, whose memory only servers are to cost

    return OllamaEngine.open(layout)


def _open_openai(layout: Layout) -> Engine:
    from workbench.engines.openai import OpenAIEngine

    return OpenAIEngine.open(layout)


def _checked(layout: Layout) -> Layout:
    """The layout, if a request can ask all of it, and its key may go to that server. Raises LoadFailed."""
    for key, message in check_layout(layout):
        raise LoadFailed(f"{key.rpartition('.')[2]} {message}", key=key)
    check_key(layout)
    return layout
