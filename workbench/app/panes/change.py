"""The last change: what a re-split did, before and after."""

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from workbench.domain.card import format_mib
from workbench.domain.memory import CardMemory
from workbench.domain.timing import Probe
from workbench.lab.events import Changed, Measurement


def rate(probe: Probe | None) -> str:
    """`57.5`, or `–` when it was not measured."""
    return "–" if probe is None else f"{probe.decode_tok_s:.1f}"


def short_labels(before: str, after: str) -> str:
    """`layer 1:1 → 3:1`: the mode is said twice only when it changes."""
    mode, _, rest = after.partition(" ")
    return f"{before} → {rest if before.partition(' ')[0] == mode and rest else after}"


def card_changes(before: Sequence[CardMemory], after: Sequence[CardMemory]) -> str:
    """`CUDA0 +120 MiB, CUDA1 −120 MiB`, for cards that hold something in either."""
    old = {card.name: card.total_mib for card in before}
    new = {card.name: card.total_mib for card in after}
    pieces = []
    for name in dict.fromkeys([*old, *new]):
        mib = new.get(name, 0.0) - old.get(name, 0.0)
        sign = "+" if round(mib) > 0 else "−" if round(mib) < 0 else "±"
        pieces.append(f"{name} {sign}{format_mib(abs(mib))}")
    return ", ".join(pieces)


class ChangePane(Static):
    """One change, or the rate of the only split so far."""

    def __init__(self) -> None:
        super().__init__(
            Content.styled("Apply another split to see what it does.", "$text-muted"),
            id="change",
            classes="pane",
            markup=False,
        )
        self.border_title = "Last change"

    def show_change(self, changed: Changed) -> None:
        """A re-split and its probes."""
        before, after = changed.before, changed.after
        one = rate(before.probe)
        two = rate(after.probe)
        self.update(
            Content.styled(short_labels(before.label, after.label), "bold")
            + Content(f"   {one} → ")
            + Content.styled(two, "bold")
            + Content(" tok/s\n")
            + Content(card_changes(before.cards, after.cards))
            + Content.styled("   one load each: no verdict", "$text-muted")
        )

    def show_probe(self, measurement: Measurement) -> None:
        """The running split was measured."""
        self.update(
            Content.styled(measurement.label, "bold")
            + Content(f"   {rate(measurement.probe)} tok/s\n")
            + Content.styled("Apply another split to see what it does.", "$text-muted")
        )
