"""The split editor: a draft against what runs."""

from collections.abc import Callable, Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from workbench.app import split_rows
from workbench.app.keymap import bindings, keymap_of
from workbench.app.messages import DraftChanged, NoticeShown, SplitApplied
from workbench.app.wording import forecast_lines
from workbench.domain import draft as drafts
from workbench.domain.card import CardKind, format_mib
from workbench.domain.draft import Draft, draft_of
from workbench.domain.forecast import Forecast
from workbench.domain.layout import Layout
from workbench.domain.servers import split_reasons
from workbench.domain.split import Split, SplitMode
from workbench.engines.engine import Loaded
from workbench.lab.forecast import Answer

SERVERS_CARDS = "cards"
"""The row of a server's cards, taken together."""
MANY = 4
"""Of more cards than these each row ends with the memory that its card will hold, and no list tells it."""
ROOM = 0.95
"""Of a card's free memory, what layers may fill; compute takes some, too."""


class SplitPane(Vertical, can_focus=True):
    """Edits a draft of the running split.

    Below the rows are the difference and, while there is one, the `forecast`; one that is `stale`
    is of an earlier draft.
    """

    BINDINGS = bindings("split")

    draft: reactive[Draft | None] = reactive(None)
    chosen: reactive[int] = reactive(0)
    typed: reactive[str | None] = reactive(None)
    forecast: reactive[str] = reactive("")
    stale: reactive[bool] = reactive(False)
    drafting: reactive[bool] = reactive(False)
    """Whether the draft differs from what runs, as it is drawn."""
    tight: reactive[bool] = reactive(False)
    """Whether lines are dear."""

    def __init__(self) -> None:
        super().__init__(id="split", classes="pane")
        self.border_title = "Split"
        self.current: Draft | None = None
        self.applied: Draft | None = None
        """The draft that is being loaded."""
        self.layout_now: Layout | None = None
        self.names: tuple[str, ...] = ()
        self.reasons: dict[SplitMode, str] = {}
        self.closed = ""
        """Why there is nothing to edit."""
        self.free_mib: dict[str, float | None] = {}
        self.speeds: dict[str, float] = {}
        """Of the cards of the last reply in layer mode, against each other."""
        self._layer_mib: float | None = None
        self._memory: tuple[str, ...] = ()
        self._verdict = ""

    def compose(self) -> ComposeResult:
        """Mode, counts, rows, forecast."""
        yield Static(id="split-mode", markup=False)
        yield Static(id="split-layers", markup=False)
        with VerticalScroll(id="split-scroll", can_focus=False):
            yield Static(id="split-rows", markup=False)
        yield Static(id="forecast", markup=False)

    def show_loaded(self, layout: Layout, loaded: Loaded, kinds: Sequence[tuple[str, CardKind]]) -> None:
        """Another layout runs: the draft starts from it."""
        self.layout_now = layout
        self.names = tuple(card.name for card in loaded.cards)
        counts = [card.layers for card in loaded.cards]
        self._note_size(loaded)
        landed = None if None in counts else [count or 0 for count in counts]
        self.reasons = drafts.mode_reasons(kinds, loaded.model.arch, layout.context.flash_attn)
        self.closed = ""
        if loaded.served is not None:
            self._show_served(layout, loaded.model.n_layer)
        self.current = None if self.closed else draft_of(layout.split, loaded.model.n_layer, len(self.names), landed)
        self.chosen = min(self.chosen, len(self.names))
        self.typed, self.applied = None, None
        self.show_forecast(None)
        self.draft = self.current
        self._draw()

    def _show_served(self, layout: Layout, n_layer: int) -> None:
        """A server's cards are one row, since it alone knows which holds what; and some servers are asked nothing."""
        reasons = split_reasons(layout.engine)
        self.names = (SERVERS_CARDS,)
        modes: tuple[SplitMode, ...] = ("tensor", "row")
        self.reasons = {mode: reasons["split_mode"].format(mode=mode) for mode in modes}
        if "n_gpu_layers" in reasons:
            self.closed = reasons["n_gpu_layers"]
        elif not n_layer:
            self.closed = "the server does not tell how many layers the model has"

    @property
    def brief(self) -> bool:
        """Whether rows tell what lists do elsewhere."""
        return self.tight or len(self.names) > MANY

    def show_forecast(self, answer: Answer | None) -> None:
        """What the draft comes to; None takes away what is there."""
        if answer is None:
            self._memory, self._verdict, self.forecast = (), "", ""
            return
        cards = answer.cards if isinstance(answer, Forecast) else ()
        self._memory = tuple(format_mib(card.total_mib) for card in cards)
        self._verdict = forecast_lines(answer, cards=False)
        self.forecast, self.stale = forecast_lines(answer), False
        self._draw()

    @property
    def served(self) -> bool:
        """Whether a server holds the model."""
        return self.layout_now is not None and self.layout_now.served_by is not None

    @property
    def _split(self) -> Split | None:
        """The split that the draft asks for."""
        if self.draft is None or self.layout_now is None:
            return None
        return drafts.to_server_split(self.draft) if self.served else drafts.to_split(self.draft, self.layout_now.split)

    @property
    def asked(self) -> Split | None:
        """The split that applying would load; None where it runs already or cannot work here."""
        if self.draft is None or self.layout_now is None or not self.changed or self.draft.mode in self.reasons:
            return None
        return self._split

    def asks(self, layout: Layout) -> bool:
        """Whether applying would load this layout."""
        now = self.layout_now
        return now is not None and layout.context == now.context and layout.split == self.asked

    @property
    def changed(self) -> bool:
        """Whether applying would change anything."""
        return self.draft is not None and self.draft != self.current

    def on_mount(self) -> None:
        """Nothing is loaded yet."""
        self._draw()

    def on_resize(self, _event: events.Resize) -> None:
        """Bars follow the width; the chosen row stays in sight."""
        self._draw()
        self.call_after_refresh(self._keep_in_sight)

    def on_focus(self) -> None:
        """The chosen row is marked stronger."""
        self._draw()

    def on_blur(self) -> None:
        """Typing ends."""
        self.typed = None
        self._draw()

    def watch_draft(self) -> None:
        """Draw, and have the draft forecast."""
        self.stale = True
        self._draw()
        if self.is_mounted:
            self.post_message(DraftChanged(self.asked))

    def watch_chosen(self) -> None:
        """Draw, and keep the chosen row in sight."""
        self._draw()
        if self.is_mounted:
            self._keep_in_sight()

    def watch_typed(self) -> None:
        """Draw."""
        self._draw()

    def watch_forecast(self) -> None:
        """Draw."""
        self._draw()

    def watch_stale(self) -> None:
        """Draw."""
        self._draw()

    def watch_tight(self) -> None:
        """Draw."""
        self._draw()

    # ── keys ──────────────────────────────────────────────────────────────────────────────
    def action_choose(self, by: int) -> None:
        """Another row."""
        self.chosen = min(max(self.chosen + by, 0), len(self.names))

    def action_move(self, by: int) -> None:
        """More or fewer on the chosen row."""
        self._change(lambda draft: drafts.move(draft, self.chosen, by))

    def action_mode(self) -> None:
        """The next mode."""
        self._change(drafts.cycle)

    def action_even(self) -> None:
        """Even out."""
        self._change(drafts.even)

    def action_by_free(self) -> None:
        """By free memory, where that is known of every card."""
        known = self._known_free()
        if known is not None:
            self._change(lambda draft: drafts.by_free(draft, known))

    def action_by_speed(self) -> None:
        """By the speed of each card, where a reply in layer mode has told it."""
        speeds = [self.speeds[name] for name in self.names if name in self.speeds]
        if len(speeds) < len(self.names):
            self.post_message(NoticeShown("a reply in layer mode, with layers on every card, tells how fast each is"))
            return
        free = self._known_free()
        if free is not None:
            each = self._layer_mib or float("inf")
            most = [int(ROOM * mib / each) for mib in free]
            self._change(lambda draft: drafts.by_speed(draft, speeds, most))

    def _known_free(self) -> list[float] | None:
        """The free memory of all cards; where it is not known, that is said."""
        known = [mib for name in self.names if (mib := self.free_mib.get(name)) is not None]
        if len(known) == len(self.names):
            return known
        self.post_message(NoticeShown("the free memory of these cards is not known"))
        return None

    def _note_size(self, loaded: Loaded) -> None:
        """What a layer takes with its KV, as long as layers are counted."""
        held = [(card.weights_mib + card.kv_mib, card.layers) for card in loaded.cards if card.layers]
        if held:
            self._layer_mib = sum(mib for mib, _ in held) / sum(layers for _, layers in held)

    def action_gpu_layers(self) -> None:
        """Type how many layers are on cards."""
        if self.draft is not None:
            self.typed = ""

    def action_digit(self, digit: int) -> None:
        """A digit of that number, or the main card."""
        if self.typed is not None:
            self.typed = (self.typed + str(digit))[-4:]
        elif self.draft is None or (digit >= len(self.names) and not self.served):
            return
        elif self.draft.mode != "none":
            self.post_message(NoticeShown("llama.cpp reads main_gpu in mode none only; m changes the mode"))
        else:
            self._change(lambda draft: drafts.with_main(draft, digit))

    def action_apply(self) -> None:
        """Take the typed number over; else ask for the draft to be loaded."""
        if self.typed is not None:
            number, self.typed = self.typed, None
            if number:
                self._change(lambda draft: drafts.on_cards(draft, int(number)))
            return
        split = self._split
        if self.draft is None or split is None:
            if self.closed:
                self.post_message(NoticeShown(self.closed))
            return
        if self.draft.mode in self.reasons:
            self.post_message(NoticeShown(self.reasons[self.draft.mode]))
        elif not self.changed:
            same = "this split runs already; {split_fewer} {split_more} move layers"
            self.post_message(NoticeShown(keymap_of(self.app).words(same)))
        else:
            self.applied = self.draft
            self.post_message(SplitApplied(split))

    async def action_revert(self) -> None:
        """Stop typing; else drop the draft; else what Esc does elsewhere."""
        if self.typed is not None:
            self.typed = None
        elif self.changed and self.draft != self.applied:
            self.draft = self.current
        else:
            await self.run_action("app.escape")

    def on_key(self, event: events.Key) -> None:
        """Backspace takes a typed digit back."""
        if event.key == "backspace" and self.typed is not None:
            self.typed = self.typed[:-1]
            event.stop()

    def _change(self, change: Callable[[Draft], Draft]) -> None:
        if self.draft is not None:
            self.draft = change(self.draft)
        elif self.closed:
            self.post_message(NoticeShown(self.closed))

    def _keep_in_sight(self) -> None:
        self.query_one("#split-scroll", VerticalScroll).scroll_to(y=max(0, self.chosen - 1), animate=False)

    # ── drawing ───────────────────────────────────────────────────────────────────────────
    def _draw(self) -> None:
        if not self.is_mounted:
            return
        draft, current = self.draft, self.current
        self.drafting = self.changed
        if draft is None or current is None:
            why = self.closed or "no model is loaded"
            self.query_one("#split-mode", Static).update(Content.styled(why, "$text-muted"))
            for part in ("#split-layers", "#split-rows", "#forecast"):
                self.query_one(part, Static).update("")
            return
        scroll = self.query_one("#split-scroll", VerticalScroll)
        width = scroll.content_size.width - scroll.show_vertical_scrollbar
        mode = split_rows.mode_line(draft, self.reasons)
        layers = split_rows.layers_line(draft, self.names, self.typed, hint=not self.brief)
        together = self.brief and mode.cell_length + 2 + layers.cell_length <= width
        self.query_one("#split-mode", Static).update(mode + "  " + layers if together else mode)
        self.query_one("#split-layers", Static).update(layers)
        self.query_one("#split-layers", Static).display = not together
        memory = self._memory if self.brief else ()
        self.query_one("#split-rows", Static).update(
            split_rows.rows(draft, current, self.names, self.chosen, width, focused=self.has_focus, memory=memory)
        )
        self.query_one("#forecast", Static).update(self._bottom(draft, current))
        self.border_subtitle = (
            keymap_of(self.app).words("draft · {split_apply} applies · Esc reverts") if self.changed else ""
        )

    def _bottom(self, draft: Draft, current: Draft) -> Content:
        if draft.mode in self.reasons:
            return Content.styled(f"✗ {self.reasons[draft.mode]}", "$text-error")
        if self.changed and self.brief and self._verdict:
            return Content.styled(self._verdict, "$text-muted" if self.stale else "")
        if self.changed:
            difference = Content(split_rows.difference(draft, current, self.names))
            if not self.forecast:
                return difference
            return difference + "\n" + Content.styled(self.forecast, "$text-muted" if self.stale else "")
        keys = keymap_of(self.app)
        hint = keys.words("{split_fewer} {split_more} move layers, {split_up} {split_down} choose a card")
        if self.served and self.layout_now is not None:
            reason = split_reasons(self.layout_now.engine)["tensor_split"]
            hint = keys.words("{split_fewer} {split_more} move layers. ") + reason
        return Content.styled(hint, "$text-muted")
