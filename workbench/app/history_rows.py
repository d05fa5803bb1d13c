"""The splits of a session as lines: what each did, and what it left free."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from rich.cells import cell_len
from textual.content import Content

from workbench.app.text import one_line
from workbench.domain.card import format_mib, parse_mib
from workbench.domain.layout import Layout
from workbench.domain.split import Virtual
from workbench.lab.events import Measurement

NAME_WIDTH = 24


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A layout that served; None where nobody knows. `tightest` is the card with least free, and its MiB."""

    name: str
    serves: bool
    tok_s: float | None
    joules_per_token: float | None
    tightest: tuple[str, float] | None
    mib: tuple[float, ...]


def history_rows(
    history: Sequence[Measurement],
    serving: int | None,
    free_mib: Mapping[int, Mapping[str, float | None]],
    joules: Mapping[int, float | None],
) -> tuple[HistoryRow, ...]:
    """One row a line of the history; `free_mib` by line and card as the meters saw it while the line served."""
    names = layout_names([line.layout for line in history])
    return tuple(
        HistoryRow(
            name=name,
            serves=at == serving,
            tok_s=None if line.probe is None else line.probe.decode_tok_s,
            joules_per_token=joules.get(at),
            tightest=tightest(line, free_mib.get(at, {})),
            mib=tuple(card.total_mib for card in line.cards),
        )
        for at, (name, line) in enumerate(zip(names, history, strict=True))
    )


def tightest(line: Measurement, seen_mib: Mapping[str, float | None]) -> tuple[str, float] | None:
    """The card with least free: of virtual ones the size less what is held, of others as seen."""
    cards = line.layout.split.cards
    free = {card.name: seen_mib.get(card.name) for card in line.cards}
    if isinstance(cards, Virtual):
        free = {
            card.name: max(0.0, parse_mib(size) - card.total_mib)
            for card, size in zip(line.cards, cards.virtual, strict=False)
        }
    known = [(mib, name) for name, mib in free.items() if mib is not None]
    if not known or len(known) < len(free):
        return None
    mib, name = min(known)
    return name, mib


def layout_names(layouts: Sequence[Layout]) -> list[str]:
    """The split of each, and whatever else tells them apart: `layer 3:1 ctx 8192`."""
    parts: tuple[Callable[[Layout], str], ...] = (
        lambda layout: f"ctx {layout.context.n_ctx}",
        cache_types,
        lambda layout: "fa off" if layout.context.flash_attn is False else "",
        lambda layout: layout.model.rpartition("/")[2],
    )
    telling = [part for part in parts if len({part(layout) for layout in layouts}) > 1]
    return [" ".join(filter(None, (layout.label(), *(part(layout) for part in telling)))) for layout in layouts]


def cache_types(layout: Layout) -> str:
    """`q8_0`, or `f16/q8_0` where K and V differ."""
    k, v = layout.context.type_k, layout.context.type_v
    return k if k == v else f"{k}/{v}"


def head_line(rows: Sequence[HistoryRow], width: int) -> Content:
    """What the columns are."""
    text = f"   {'this session':<{_name_width(rows)}}  tok/s J/tok  least free  MiB"
    return Content.styled(one_line_raw(text, width), "$text-muted")


def row_line(row: HistoryRow, rows: Sequence[HistoryRow], width: int, *, chosen: bool) -> Content:
    """One row; `●` marks the one that serves, `▸` the chosen one."""
    name = _name_width(rows)
    tok_s = "–" if row.tok_s is None else f"{row.tok_s:.1f}"
    joules = "–" if row.joules_per_token is None else f"{row.joules_per_token:.1f}"
    free = "–" if row.tightest is None else format_mib(row.tightest[1])
    memory = " · ".join(f"{mib:.0f}" for mib in row.mib)
    label = one_line(row.name, name)
    label += " " * (name - cell_len(label))
    text = one_line_raw(f"{label} {tok_s:>6} {joules:>5}  {free:>10}  {memory}", width - 3)
    mark = Content.styled("▸" if chosen else " ", "bold $text-primary") + Content("● " if row.serves else "  ")
    return mark + Content.styled(text, "bold" if chosen else "")


def one_line_raw(text: str, width: int) -> str:
    """The start of a line, its blanks kept."""
    return text if cell_len(text) <= width else text[: max(0, width - 1)].rstrip() + "…"


def _name_width(rows: Sequence[HistoryRow]) -> int:
    return max(12, min(NAME_WIDTH, max((cell_len(row.name) for row in rows), default=0)))
