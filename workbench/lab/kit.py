"""What a session is made with: how engines are opened, and where its files are."""

import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from workbench.domain.card import Card
from workbench.domain.layout import Layout
from workbench.domain.split import Virtual
from workbench.engines.engine import Engine, EngineDied, LoadFailed
from workbench.engines.llama.client import LlamaEngine
from workbench.engines.llama.process import WorkerProcess, worker_environment
from workbench.lab.cards import inventory
from workbench.lab.plan import plan_load
from workbench.store.models import resolve_model
from workbench.store.places import places, private_folder

OnDeath = Callable[[EngineDied], None]


class Kit(Protocol):
    """Opens engines for a session."""

    def open_engine(self, layout: Layout, on_death: OnDeath) -> Engine:
        """An engine that is ready to load `layout` and holds no card's memory yet.

        Raises LoadFailed, ModelError or whatever else says that the layout cannot be loaded.
        """

    def state_file(self) -> Path:
        """A new path for a conversation's state."""


class RealKit:
    """Engines as layouts name them."""

    def __init__(self) -> None:
        self._cards: dict[tuple[tuple[str, str | None], ...], Sequence[Card]] = {}

    def open_engine(self, layout: Layout, on_death: OnDeath) -> Engine:
        """See `Kit`. Raises LoadFailed, ModelError, EngineDied."""
        if layout.engine != "llama.cpp":
            raise LoadFailed(f"the engine {layout.engine} cannot be opened yet; llama.cpp can", key="engine")
        command = plan_load(layout, str(resolve_model(layout.model)), lambda: self.cards(layout))
        virtual = isinstance(layout.split.cards, Virtual)
        worker = WorkerProcess(worker_environment(layout.env, virtual), places().engine_log, on_death)
        return LlamaEngine(command, worker)

    def cards(self, layout: Layout) -> Sequence[Card]:
        """The machine's cards as a worker with the layout's environment sees them, asked once."""
        key = tuple(sorted(layout.env.items()))
        if key not in self._cards:
            self._cards[key] = inventory(layout.env).cards
        return self._cards[key]

    def state_file(self) -> Path:
        """A new path in the runtime folder, for this user alone."""
        return private_folder(places().runtime) / f"state-{os.getpid()}-{uuid.uuid4().hex}"
