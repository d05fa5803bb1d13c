"""What the screen reaches beyond the session, handed in by whoever starts it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from workbench.app.ab_bench import Bench
from workbench.domain.card import Card
from workbench.domain.duty import Duty, Price
from workbench.domain.layout import Layout
from workbench.domain.topology import Topology, lay_out
from workbench.engines.engine import Loaded, ModelInfo
from workbench.lab.cards import Inventory
from workbench.lab.events import SessionEvent
from workbench.lab.forecast import Answer
from workbench.lab.rooms import Running
from workbench.meters.nvml import Asking
from workbench.meters.sample import Snapshot
from workbench.meters.sampler import Pace

HINT = "Ask something below and press {prompt_submit}. {split} goes to the split editor, {help} lists the keys."
DEMO_HINT = (
    "Ask something below and press {prompt_submit}: each reply tells its tokens per second.\n"
    "{split} goes to the split: {split_fewer} {split_more} move layers between the cards, {split_apply} applies them.\n"
    "Last change then shows what that did. {go_back} goes back, {help} lists all keys."
)
"""What an empty chat says; keys by the names of their actions."""


@dataclass(frozen=True)
class LayoutEntry:
    """A layout document: what it says, or why it cannot be read."""

    path: Path
    layout: Layout | None = None
    error: str = ""


@dataclass(frozen=True)
class ModelEntry:
    """A model: what its header says, or its `server`, whose layout it then has but for the name; or what is wrong."""

    path: Path
    model: ModelInfo | None = None
    error: str = ""
    server: Layout | None = None

    def opens(self) -> Layout | None:
        """A layout that loads it; None for what cannot be read."""
        if self.model is None:
            return None
        name, base = Path(self.model.path).stem, self.server
        if base is None:
            return Layout(name=name, model=self.model.path)
        return Layout(
            name=self.model.name, engine=base.engine, model=self.model.path, url=base.url,
            api_key_env=base.api_key_env, timeouts=base.timeouts,
        )  # fmt: skip


class Drafts(Protocol):
    """Forecasts the split that is being edited."""

    def ask(self, layout: Layout, running: Running | None = None) -> None:
        """Forecast this one; an earlier one that is not answered yet is dropped."""

    def drop(self) -> None:
        """Nothing is being edited."""

    def close(self) -> None:
        """End."""


class Meters(Protocol):
    """Reads what the cards do, and accounts for each reply."""

    pace: Pace

    def hear(self, event: SessionEvent) -> None:
        """What the session tells, on its own thread."""

    def hanging(self) -> Asking | None:
        """The driver's call that does not return, if one does not."""

    def close(self) -> None:
        """End."""


@dataclass(frozen=True)
class Outside:
    """Layouts, models, cards, forecasts and meters. The callables may block; they are called on threads.

    `find_models` hands each model over as soon as its header is read; `find_cards` gives the
    machine's cards and, without a GPU, what helps. `start_meters` is given whom to tell what is
    read, and what each reply took; `watch` names the load and the cards that they follow.
    `start_forecasts` is given whom to tell. `price` is what running costs, if the user said.
    `bench` makes the runs. `when_ready` is called once the screen stands.
    """

    list_layouts: Callable[[], Sequence[LayoutEntry]] = lambda: ()
    find_models: Callable[[Callable[[ModelEntry], None]], None] = lambda _found: None
    find_cards: Callable[[], Inventory] = lambda: Inventory(cards=())
    start_meters: Callable[[Callable[[Snapshot], None], Callable[[Duty], None]], Meters | None] = (
        lambda _snapshots, _duties: None
    )
    watch: Callable[[Loaded | None, Sequence[Card]], None] = lambda _loaded, _cards: None
    find_topology: Callable[[Sequence[Card]], Topology] = lambda cards: lay_out(cards, ())
    start_forecasts: Callable[[Callable[[Layout, Answer], None]], Drafts | None] = lambda _listener: None
    when_ready: Callable[[], None] = lambda: None
    bench: Bench = field(default_factory=Bench)
    hint: str = HINT
    price: Price | None = None
