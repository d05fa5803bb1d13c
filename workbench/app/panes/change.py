"""The last change: what a re-split did, before and after."""

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from workbench.domain.card import format_mib
from workbench.domain.memory import CardMemory
from workbench.domain.timing import Probe
from workbench.lab.events import Changed, LayoutLoaded, Measurement

MOST_CARDS = 4
"""The change of so many cards is told."""


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
    changes = {name: new.get(name, 0.0) - old.get(name, 0.0) for name in dict.fromkeys([*old, *new])}
    most = sorted(changes, key=lambda name: -abs(changes[name]))[:MOST_CARDS]
    pieces = []
    for name, mib in changes.items():
        if name not in most:
            continue
        sign = "+" if round(mib) > 0 else "−" if round(mib) < 0 else "±"
        pieces.append(f"{name} {sign}{format_mib(abs(mib))}")
    more = len(changes) - len(pieces)
    return ", ".join(pieces) + (f" and {more} more" if more else "")


class ChangePane(Static):
    """The last change on two lines; below, all splits of this session with what they did."""

    def __init__(self) -> None:
        super().__init__(id="change", classes="pane", markup=False)
        self.border_title = "Last change"
        self._changed: Changed | None = None
        self._history: Sequence[Measurement] = ()
        self._how = ""

    def show(self, history: Sequence[Measurement], changed: Changed | None = None) -> None:
        """What was measured so far, and the newest re-split with its probes."""
        self._history = history
        self._changed = changed or self._changed
        self.refresh()

    def took_over(self, event: LayoutLoaded) -> None:
        """How the running layout took over from the one before."""
        silent = f"the chat was silent for {event.silent_s:.2f} s"
        how = {"beside": "loaded beside", "in turn": "loaded in turn", "context": "new context only"}
        self._how = f"{how[event.strategy]}, {silent}" if event.strategy in how else ""
        self.refresh()

    def render(self) -> Content:
        """As much as there is room for."""
        lines = [self._change(), Content("")] if self._changed else []
        measured = [entry for entry in reversed(self._history) if entry.probe]
        if not lines:
            lines = [Content.styled("Apply another split to see what it does.", "$text-muted"), Content("")]
        if measured:
            width = max(len(entry.label) for entry in measured)
            lines.append(Content.styled(f"{'this session':<{width}}  tok/s   MiB per card", "$text-muted"))
            for entry in measured:
                memory = " · ".join(f"{card.total_mib:.0f}" for card in entry.cards)
                lines.append(Content(f"{entry.label:<{width}} {rate(entry.probe):>6}   {memory}"))
        return Content("\n").join(lines)

    def _change(self) -> Content:
        assert self._changed is not None
        before, after = self._changed.before, self._changed.after
        cards = card_changes(before.cards, after.cards)
        apart = "   " if len(cards) + 28 <= self.content_size.width else "\n"
        return (
            Content.styled(short_labels(before.label, after.label), "bold")
            + Content(f"   {rate(before.probe)} → ")
            + Content.styled(rate(after.probe), "bold")
            + Content(" tok/s\n")
            + Content(cards)
            + Content.styled(apart + "one load each: no verdict", "$text-muted")
            + Content.styled(f"\n{self._how}" if self._how else "", "$text-muted")
        )
