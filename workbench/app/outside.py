"""What the screen reaches beyond the session, handed in by whoever starts it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.domain.card import Card
from workbench.domain.layout import Layout
from workbench.engines.engine import Loaded, ModelInfo
from workbench.meters.sample import Snapshot


@dataclass(frozen=True)
class LayoutEntry:
    """A layout document: what it says, or why it cannot be read."""

    path: Path
    layout: Layout | None = None
    error: str = ""


@dataclass(frozen=True)
class ModelEntry:
    """A model file: what its header says, or why it cannot be read."""

    path: Path
    model: ModelInfo | None = None
    error: str = ""


@dataclass(frozen=True)
class Lack:
    """Something that is missing, and the one command that helps."""

    what: str
    command: str


@dataclass(frozen=True)
class Outside:
    """Layouts, models, cards and meters. The callables may block; they are called on threads.

    `find_models` hands each model over as soon as its header is read. `watch` is told of
    each load, so that the meters follow its cards; `start_meters` begins them and returns
    what ends them.
    """

    cards: Sequence[Card] = ()
    lacks: Sequence[Lack] = ()
    list_layouts: Callable[[], Sequence[LayoutEntry]] = lambda: ()
    find_models: Callable[[Callable[[ModelEntry], None]], None] = lambda _found: None
    layout_for: Callable[[ModelInfo], Layout] = lambda model: Layout(name=Path(model.path).stem, model=model.path)
    start_meters: Callable[[Callable[[Snapshot], None]], Callable[[], None]] = lambda _listener: lambda: None
    watch: Callable[[Loaded | None], None] = lambda _loaded: None
    hint: str = field(default="Ask something below. F1 lists the keys, F6 goes to the split editor.")


DEMO_HINT = (
    "Ask something below and press Enter: each reply tells its tokens per second.\n"
    "F6 goes to the split: ← → move layers between the cards, Enter applies.\n"
    "Last change then shows what that did to speed and memory. F7 goes back, F1 lists all keys."
)
