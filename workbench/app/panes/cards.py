"""The cards: two lines each, drawn from the last snapshot."""

from collections import deque
from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from workbench.app.card_rows import LEGEND, CardRow, card_rows, draw
from workbench.app.keymap import bindings
from workbench.domain.card import Card
from workbench.domain.duty import Duty
from workbench.engines.engine import Loaded
from workbench.meters.sample import CardSample, Snapshot

_SAMPLES = 24


class CardsPane(VerticalScroll):
    """What each card holds and does."""

    BINDINGS = bindings("cards")

    def __init__(self) -> None:
        super().__init__(id="cards", classes="pane")
        self.border_title = "Cards"
        self.border_subtitle = LEGEND
        self._cards: tuple[Card, ...] = ()
        self._loaded: Loaded | None = None
        self._duty: Duty | None = None
        self._samples: dict[str, deque[CardSample]] = {}

    def compose(self) -> ComposeResult:
        """One text for all cards."""
        yield Static(id="card-rows", markup=False)

    def show_loaded(self, loaded: Loaded | None) -> None:
        """Another load: what the engine says each card holds. None when nothing serves."""
        self._loaded = loaded
        if loaded is not None:
            self._samples = {name: kept for name, kept in self._samples.items() if name in self._names()}
        self._draw()

    def show_cards(self, cards: Sequence[Card]) -> None:
        """The machine's cards are known now."""
        self._cards = tuple(cards)
        self._draw()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """What the meters read."""
        for sample in snapshot.cards:
            self._samples.setdefault(sample.name, deque(maxlen=_SAMPLES)).append(sample)
        self._draw()

    def show_duty(self, duty: Duty) -> None:
        """What the cards did during the last reply."""
        self._duty = duty
        self._draw()

    @property
    def rows(self) -> tuple[CardRow, ...]:
        """What is shown now."""
        return card_rows(self._loaded, self._cards, self._samples)

    @property
    def free_mib(self) -> dict[str, float | None]:
        """Free memory of each sampled card, with what we hold there given back."""
        free: dict[str, float | None] = {}
        for name, series in self._samples.items():
            last = series[-1]
            free[name] = None if last.free_mib is None else last.free_mib + (last.ours_mib or 0.0)
        return free

    def on_resize(self, _event: events.Resize) -> None:
        """Bars follow the width."""
        self._draw()

    def _names(self) -> set[str]:
        loaded = {card.name for card in self._loaded.cards} if self._loaded else set()
        return loaded | {card.name for card in self._cards}

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        rows = self.rows
        width = self.scrollable_content_region.width - self.show_vertical_scrollbar
        self.query_one("#card-rows", Static).update(
            draw(rows, width) if rows else Content.styled("no card yet", "$text-muted")
        )
