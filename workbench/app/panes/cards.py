"""The cards: what each holds and does, drawn from the last snapshot; below them host and last reply."""

import time
from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from workbench.app.card_rows import LEGEND, CardRow, card_rows, draw
from workbench.app.keymap import bindings, keymap_of
from workbench.app.messages import NoticeShown, Remember
from workbench.app.meter_lines import duty_line, host_line, sentence, server_line, silence
from workbench.app.outside import Meters, Outside
from workbench.app.screens.topology import TopologyScreen
from workbench.domain.card import Card
from workbench.domain.duty import Duty
from workbench.engines.engine import Loaded
from workbench.lab.watch import host_layers
from workbench.meters.history import History
from workbench.meters.sample import Snapshot
from workbench.meters.sampler import Pace

_LOOK_EVERY_S = 1.0


class CardsPane(VerticalScroll):
    """What each card holds and does. One line a card where two do not fit, unless the user chose."""

    BINDINGS = bindings("cards")

    def __init__(self) -> None:
        super().__init__(id="cards", classes="pane")
        self.border_title = "Cards"
        self.border_subtitle = LEGEND
        self.history = History()
        self.working = False
        self._outside = Outside()
        self._meters: Meters | None = None
        self._cards: tuple[Card, ...] = ()
        self._loaded: Loaded | None = None
        self._duty: Duty | None = None
        self._snapshot: Snapshot | None = None
        self.compact: bool | None = None
        """Whether the user wants one line a card; None leaves it to the room."""
        self.off = False
        """Whether the meters begin turned off."""
        self._told = ""

    def compose(self) -> ComposeResult:
        """One text for all cards."""
        yield Static(id="card-rows", markup=False)

    def on_mount(self) -> None:
        """Look now and then whether the driver still answers."""
        self.set_interval(_LOOK_EVERY_S, self._look)

    def wire(self, meters: Meters | None, outside: Outside) -> None:
        """Whom to ask for more."""
        self._meters, self._outside = meters, outside
        if meters is not None and self.off:
            meters.pace = Pace.OFF
        self._set_pace(Pace.FULL if self.size.width else Pace.HIDDEN)

    # ── what is told ──────────────────────────────────────────────────────────────────────
    def show_loaded(self, loaded: Loaded | None) -> None:
        """Another load: what the engine says each card holds. None when nothing serves."""
        self._loaded = loaded
        self._duty = None
        if loaded is not None:
            self.history.keep(self._names())
        self._draw()

    def show_cards(self, cards: Sequence[Card]) -> None:
        """The machine's cards are known now."""
        self._cards = tuple(cards)
        self._draw()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """What the meters read."""
        self.history.add(snapshot)
        self._snapshot = snapshot
        self._draw()

    def show_duty(self, duty: Duty) -> None:
        """What the cards did during the last reply."""
        self._duty = duty
        self._draw()

    # ── what is known ─────────────────────────────────────────────────────────────────────
    @property
    def rows(self) -> tuple[CardRow, ...]:
        """What is shown now."""
        return card_rows(self._loaded, self._cards, self.history, self._snapshot.host if self._snapshot else None)

    @property
    def cards(self) -> tuple[Card, ...]:
        """The cards that are shown, those of the load also where the machine does not list them."""
        known = {card.name: card for card in self._cards}
        return tuple(
            known.get(row.name) or Card(name=row.name, kind=row.kind, total_mib=row.total_mib) for row in self.rows
        )

    @property
    def duty(self) -> Duty | None:
        """What the cards did during the last reply."""
        return self._duty

    @property
    def free_mib(self) -> dict[str, float | None]:
        """Free memory of each card, with what we hold there given back; of a part of a GPU its part."""
        known = {card.name: card for card in self._cards}
        free: dict[str, float | None] = {}
        for row in self.rows:
            now = row.sample.free_mib
            if now is None:
                free[row.name] = None
                continue
            held = 0.0 if row.memory is None else row.memory.total_mib
            if row.parts > 1 and row.name in known:
                free[row.name] = known[row.name].part_of(now) + held
            else:
                free[row.name] = now + (held if row.sample.ours_mib is None else row.sample.ours_mib)
        return free

    # ── keys ──────────────────────────────────────────────────────────────────────────────
    def action_detail(self) -> None:
        """One card at a time, with its history."""
        from workbench.app.screens.card_detail import CardDetailScreen

        if self.rows:
            self.app.push_screen(CardDetailScreen(self))
        else:
            self.post_message(NoticeShown(f"there is {self._without_cards()}"))

    def action_topology(self) -> None:
        """How the cards are joined."""
        cards = self.cards
        self.app.push_screen(TopologyScreen(lambda: self._outside.find_topology(cards)))

    def action_lines(self) -> None:
        """One line a card or two: the other than now."""
        self.compact = not self._is_compact(self.rows)
        self.post_message(Remember({"compact": self.compact}))
        self._draw()

    def action_meters(self) -> None:
        """Turn the meters off, or on again."""
        if self._meters is not None:
            self._meters.pace = Pace.FULL if self._meters.pace is Pace.OFF else Pace.OFF
            self.post_message(Remember({"meters_off": self._meters.pace is Pace.OFF}))
            self._draw()

    # ── drawing ───────────────────────────────────────────────────────────────────────────
    def on_resize(self, _event: events.Resize) -> None:
        """Bars follow the width."""
        self._draw()

    def watch_show_vertical_scrollbar(self) -> None:
        """A scrollbar takes a column."""
        self._draw()

    def on_show(self) -> None:
        """Somebody looks."""
        self._set_pace(Pace.FULL)

    def on_hide(self) -> None:
        """Nobody looks: the meters may go slower."""
        self._set_pace(Pace.HIDDEN)

    def _set_pace(self, pace: Pace) -> None:
        if self._meters is not None and self._meters.pace is not Pace.OFF:
            self._meters.pace = pace

    def _names(self) -> set[str]:
        loaded = {card.name for card in self._loaded.cards} if self._loaded else set()
        return loaded | {card.name for card in self._cards}

    def _is_compact(self, rows: Sequence[CardRow]) -> bool:
        if self.compact is not None:
            return self.compact
        return 2 * len(rows) + len(self._below(rows, 80)) > max(8, self.app.size.height * 2 // 5 - 2)

    def _look(self) -> None:
        """Draw again when the driver falls silent, and while it is."""
        if self._silence() != self._told:
            self._draw()

    def _silence(self) -> str:
        asking = None if self._meters is None else self._meters.hanging()
        missing = self._snapshot.missing if self._snapshot is not None else None
        return silence(asking, time.monotonic(), missing)

    def _below(self, rows: Sequence[CardRow], width: int) -> list[Content]:
        """The lines under the cards."""
        if self._meters is not None and self._meters.pace is Pace.OFF:
            paused = keymap_of(self.app).words("the meters are off; {cards_meters} turns them on")
            return [Content.styled(paused, "$text-warning")]
        found = []
        if self._told:
            found.append(Content.styled(self._told, "$text-warning"))
        off = host_layers(self._loaded) if self._loaded is not None else None
        said = sentence(rows, self._duty, off, self.working)
        if said:
            found.append(Content.styled(f"▸ {said}", "$text-primary"))
        served = None if self._loaded is None else self._loaded.served
        if served is not None:
            found.append(server_line(served, width))
        if self._duty is not None and rows:
            found.append(duty_line(self._duty, self._outside.price, width))
        if self._snapshot is not None:
            found.append(host_line(self._snapshot.host, width))
        return found

    def _without_cards(self) -> str:
        return "no GPU on this machine" if self._loaded is not None else "no card yet"

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        self._told = self._silence()
        rows = self.rows
        width = self.scrollable_content_region.width - self.show_vertical_scrollbar
        drawn = (
            draw(rows, width, compact=self._is_compact(rows))
            if rows
            else Content.styled(self._without_cards(), "$text-muted")
        )
        self.query_one("#card-rows", Static).update(Content("\n").join([drawn, *self._below(rows, width)]))
