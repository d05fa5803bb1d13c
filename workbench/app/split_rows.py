"""The lines of the split editor, worked out from the draft and what runs."""

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from textual.content import Content

from workbench.domain.draft import Draft, changes
from workbench.domain.split import MODES, SplitMode

MEMORY = 10
"""Cells of a card's memory at the end of its line."""
KEPT, GAINED, LOST = ("█", "ansi_blue"), ("▓", "$text-success"), ("░", "$text-muted")


def mode_line(draft: Draft, reasons: Mapping[SplitMode, str]) -> Content:
    """`mode  none ‹layer› tensor row✗`: a cross where a mode cannot work here."""
    line = Content.styled("mode ", "$text-muted")
    for mode in MODES:
        name = f"{mode}✗" if mode in reasons else mode
        if mode == draft.mode:
            line = line + Content.styled(f"‹{name}›", "bold $text-error" if mode in reasons else "bold $text-primary")
        else:
            line = line + Content.styled(f" {name} ", "$text-muted")
    return line


def layers_line(draft: Draft, names: Sequence[str], typed: str | None, *, hint: bool = True) -> Content:
    """`layers on cards 81/81 · main card CUDA0`; outside mode none a `hint` that there is none."""
    count = Content.styled(f"[{typed}▏]", "bold reverse") if typed is not None else Content(str(draft.on_cards))
    line = Content.styled("layers on cards ", "$text-muted") + count + Content(f"/{draft.n_layer + 1}")
    main = names[draft.main_gpu] if draft.main_gpu < len(names) else str(draft.main_gpu)
    if draft.mode == "none":
        return line + Content.styled("  main card ", "$text-muted") + Content.styled(main, "bold")
    return line + Content.styled("  main card in mode none only", "$text-muted") if hint else line


def rows(
    draft: Draft, current: Draft | None, names: Sequence[str], chosen: int, width: int, *, focused: bool,
    memory: Sequence[str] = (),
) -> Content:  # fmt: skip
    """One line a card and one for what is off the cards; `chosen` is marked, the `memory` of a card ends its line."""
    labels = [*names, "off cards"]
    figures = [*draft.figures, draft.off]
    before = [*current.figures, current.off] if current is not None and current.mode == draft.mode else figures
    label_width = max(map(cell_len, labels))
    room = max(4, width - label_width - 2 - 11 - (MEMORY if memory else 0))
    whole = max(1, sum(draft.shares) if draft.mode in ("tensor", "row") else draft.n_layer + 1)
    # In tensor mode layers that are off the cards are counted in layers, apart from the shares.
    wholes = [whole] * len(names) + [draft.n_layer + 1]
    lines = []
    for row, (label, figure, old, of) in enumerate(zip(labels, figures, before, wholes, strict=True)):
        mark = Content.styled("▸" if row == chosen else " ", "bold $text-primary" if focused else "$text-muted")
        style = "bold" if row == chosen and focused else ""
        kept, most = round(min(figure, old) / of * room), round(max(figure, old) / of * room)
        if figure and not kept and figure <= old:
            kept, most = 1, max(1, most)
        glyph, colour = GAINED if figure > old else LOST
        change = f"{figure - old:+d}".replace("-", "−") if figure != old else ""
        percent = "%" if draft.mode in ("tensor", "row") and whole == 100 and row < len(names) else " "
        lines.append(
            mark
            + Content.styled(label.ljust(label_width) + " ", style)
            + Content.styled(KEPT[0] * kept, KEPT[1])
            + Content.styled(glyph * (most - kept), colour)
            + Content(" " * (room - most))
            + Content.styled(f"{figure:>4}{percent}", style)
            + Content.styled(f"{change:>5}", "$text-success" if figure > old else "$text-warning")
            + Content.styled(f"{memory[row]:>{MEMORY}}" if row < len(memory) else "", "$text-muted")
        )
    return Content("\n").join(lines)


def difference(draft: Draft, current: Draft, names: Sequence[str]) -> str:
    """`CUDA0 +10, CUDA1 −10 layers`: what applying would change."""
    if draft.mode != current.mode:
        return f"mode {current.mode} → {draft.mode}"
    moved = [
        f"{name} {change:+d}".replace("-", "−")
        for name, change in zip(names, changes(draft, current), strict=True)
        if change
    ]
    if draft.off != current.off:
        moved.append(f"off cards {draft.off - current.off:+d}".replace("-", "−"))
    if moved:
        return ", ".join(moved) + (" layers" if draft.mode in ("layer", "none") else " shares")
    if draft.main_gpu == current.main_gpu:
        return ""
    return f"main card {names[draft.main_gpu] if draft.main_gpu < len(names) else draft.main_gpu}"
