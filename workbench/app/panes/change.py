"""The last change, and the history of this session."""

from collections.abc import Mapping, Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from workbench.app.history_rows import head_line, history_rows, layout_names, row_line
from workbench.app.keymap import bindings, keymap_of
from workbench.domain.card import format_mib
from workbench.domain.forecast import CardAccount
from workbench.domain.layout import Layout
from workbench.domain.memory import CardMemory
from workbench.domain.timing import Probe
from workbench.lab.events import Changed, LayoutLoaded, Measurement

MOST_CARDS = 4
"""The change of so many cards is told."""
LEAST_ROWS = 4
"""So many lines of the history are in sight while keys choose among them."""


def rate(probe: Probe | None) -> str:
    """`57.5`, or `–` when it was not measured."""
    return "–" if probe is None else f"{probe.decode_tok_s:.1f}"


def short_labels(before: str, after: str) -> str:
    """`layer 1:1 → 3:1`: the mode is said twice only when it changes."""
    mode, _, rest = after.partition(" ")
    return f"{before} → {rest if before.partition(' ')[0] == mode and rest else after}"


def card_changes(before: Sequence[CardMemory], after: Sequence[CardMemory]) -> str:
    """`CUDA0 +120 MiB, CUDA1 −120 MiB`; of many cards those that changed most."""
    old = {card.name: card.total_mib for card in before}
    new = {card.name: card.total_mib for card in after}
    every = {name: new.get(name, 0.0) - old.get(name, 0.0) for name in dict.fromkeys([*old, *new])}
    changed = {name: mib for name, mib in every.items() if round(mib)}
    most = sorted(changed, key=lambda name: -abs(changed[name]))[:MOST_CARDS]
    pieces = [
        f"{name} {'+' if mib > 0 else '−'}{format_mib(abs(mib))}" for name, mib in changed.items() if name in most
    ]
    more = len(changed) - len(pieces)
    if every and not pieces:
        return "the same memory on every card"
    return ", ".join(pieces) + (f" and {more} more" if more else "")


def how(event: LayoutLoaded) -> str:
    """`loaded beside, the chat was silent for 0.09 s`; empty for what came first or came back."""
    ways = {"beside": "loaded beside", "in turn": "loaded in turn", "context": "new context only"}
    if event.strategy not in ways:
        return ""
    return f"{ways[event.strategy]}, the chat was silent for {event.silent_s:.2f} s"


class ChangePane(Static, can_focus=True):
    """The last change; below, all splits of this session, the newest first, of which keys choose one."""

    BINDINGS = bindings("change")

    chosen: reactive[int] = reactive(0)
    """An index into the history."""

    def __init__(self) -> None:
        super().__init__(id="change", classes="pane", markup=False)
        self.border_title = "Last change"
        self.history: Sequence[Measurement] = ()
        self.accounts: dict[int, tuple[CardAccount, ...]] = {}
        """Forecast against measured, by line of the history."""
        self._serving: int | None = None
        self._answered: int | None = None
        self._free: dict[int, Mapping[str, float | None]] = {}
        self._joules: dict[int, float | None] = {}
        self._changed: Changed | None = None
        self._how = ""
        self._next_how = ""

    def show(self, history: Sequence[Measurement], changed: Changed | None = None) -> None:
        """What was measured so far, and the newest re-split with its probes."""
        self.history = history
        if changed is not None:
            self._changed, self._how, self._next_how = changed, self._next_how or self._how, ""
        self.refresh()

    def took_over(self, event: LayoutLoaded, history: Sequence[Measurement]) -> None:
        """Another layout serves: how it took over, and what the load took."""
        self.history = history
        self._serving = self._line_of(event.layout)
        if self._serving is not None:
            self.accounts[self._serving] = event.accounts or self.accounts.get(self._serving, ())
            if not self.has_focus:
                self.chosen = self._serving
        self._next_how = how(event)
        self.refresh()

    def answered(self) -> None:
        """A reply is over: what it took in joules will be of the line that serves now."""
        self._answered = self._serving

    def note_joules(self, per_token: float | None) -> None:
        """J/token of the reply that was last over."""
        if self._answered is not None and per_token is not None:
            self._joules[self._answered] = per_token
            self.refresh()

    def note_free(self, free_mib: Mapping[str, float | None]) -> None:
        """What the meters see free on each card while the running line serves."""
        if self._serving is not None and self._free.get(self._serving) != free_mib:
            self._free[self._serving] = free_mib
            self.refresh()

    def on_focus(self) -> None:
        """The list has the keys: the line that serves is chosen."""
        self.border_subtitle = keymap_of(self.app).words(
            "{change_up} {change_down} choose · {change_go_to_line} goes to it"
        )
        self.chosen = self._serving or 0
        self.refresh()

    def on_blur(self) -> None:
        """Nothing is chosen any more."""
        self.border_subtitle = ""
        self.refresh()

    def action_choose(self, by: int) -> None:
        """Another line; the newest is at the top."""
        self.chosen = min(max(self.chosen - by, 0), max(0, len(self.history) - 1))

    def render(self) -> Content:
        """As much as there is room for; while keys choose, at least some of the list."""
        width, height = self.content_size
        rows = history_rows(self.history, self._serving, self._free, self._joules)
        top = self._change().split("\n", include_separator=False)
        room = height - len(top) - 2
        if self.has_focus and room < min(LEAST_ROWS, len(rows)):
            top, room = [], height - 1
        lines = [*top, Content("")] if top else []
        if rows:
            order = [*reversed(range(len(rows)))]
            first = max(0, order.index(self.chosen) - max(1, room) + 1) if self.has_focus else 0
            lines.append(head_line(rows, width))
            lines += [
                row_line(rows[at], rows, width, chosen=self.has_focus and at == self.chosen)
                for at in order[first : first + max(1, room)]
            ]
        return Content("\n").join(lines)

    def _line_of(self, layout: Layout) -> int | None:
        return next((at for at, line in enumerate(self.history) if line.layout == layout), None)

    def _change(self) -> Content:
        changed, next_how = self._changed, self._next_how
        if next_how and self._serving is not None:
            label = self.history[self._serving].label
            return Content.styled(label, "bold") + Content(" serves, its tok/s follow\n") + Content.styled(
                next_how, "$text-muted"
            )
        if changed is None:
            return Content.styled("Apply another split to see what it does.", "$text-muted")
        before, after = changed.before, changed.after
        cards = card_changes(before.cards, after.cards)
        apart = "   " if len(cards) + 28 <= self.content_size.width else "\n"
        return (
            Content.styled(short_labels(*layout_names([before.layout, after.layout])), "bold")
            + Content(f"   {rate(before.probe)} → ")
            + Content.styled(rate(after.probe), "bold")
            + Content(" tok/s\n")
            + Content(cards)
            + Content.styled(apart + "one load each: no verdict", "$text-muted")
            + Content.styled(f"\n{self._how}" if self._how else "", "$text-muted")
        )
