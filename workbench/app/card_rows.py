"""The two lines of a card, worked out from what the engine and the meters said."""

from collections.abc import Mapping, Sequence

import msgspec
from rich.cells import cell_len
from textual.content import Content

from workbench.app.text import one_line, sparkline
from workbench.domain.card import Card, CardKind
from workbench.domain.memory import CardMemory
from workbench.domain.split import apportion
from workbench.engines.engine import Loaded
from workbench.meters.sample import CardSample

KINDS = (("w", "█", "ansi_blue"), ("kv", "▓", "ansi_magenta"), ("c", "▒", "ansi_cyan"), ("o", "░", "$text-muted"))
"""Letter, glyph and colour of weights, KV, compute and other: never told apart by colour alone."""
FREE = "·"
LEGEND = "█ weights ▓ kv ▒ compute ░ other"


class CardRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of one card: sizes in MiB, percentages 0 … 100; None where nobody knows."""

    name: str
    kind: CardKind
    title: str = ""
    smi_index: int | None = None
    memory: CardMemory | None = None
    used_mib: float | None = None
    total_mib: float | None = None
    utilisation: tuple[float | None, ...] = ()
    power_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    lost: bool = False

    @property
    def by_kind(self) -> tuple[float, float, float, float]:
        """Weights, KV, compute and what else is used; other is never negative."""
        if self.memory is None:
            return (0.0, 0.0, 0.0, self.used_mib or 0.0)
        known = (self.memory.weights_mib, self.memory.kv_mib, self.memory.compute_mib)
        return (*known, max(0.0, (self.used_mib or 0.0) - sum(known)))


def kind_of(name: str, loaded: Loaded | None) -> CardKind:
    """The kind of a card that is known by its name only."""
    if loaded is not None and any(process.name == name for process in loaded.card_processes):
        return CardKind.VIRTUAL
    for prefix, kind in (("CUDA", CardKind.CUDA), ("RPC", CardKind.RPC), ("CPU", CardKind.CPU)):
        if name.startswith(prefix):
            return kind
    return CardKind.GPU


def card_rows(
    loaded: Loaded | None,
    cards: Sequence[Card],
    samples: Mapping[str, Sequence[CardSample]],
) -> tuple[CardRow, ...]:
    """One row a card: the loaded ones in the split's order, then the idle ones.

    `samples` has the samples of each card, the newest last. Beside virtual cards the
    machine's own are left out: they have no part in what runs.
    """
    known = {card.name: card for card in cards}
    memory = {card.name: card for card in loaded.cards} if loaded else {}
    sizes = {process.name: process.size_mib for process in loaded.card_processes} if loaded else {}
    idle = [] if sizes else [card.name for card in cards if card.name not in memory and card.kind is not CardKind.CPU]
    names = [*memory, *idle]
    rows = []
    for name in names:
        card, series = known.get(name), samples.get(name, ())
        last = series[-1] if series else CardSample(name=name)
        held = memory.get(name)
        total = last.total_mib or sizes.get(name) or (card.total_mib if card else None)
        rows.append(
            CardRow(
                name=name,
                kind=card.kind if card else kind_of(name, loaded),
                title=_title(card),
                smi_index=card.smi_index if card else None,
                memory=held,
                used_mib=last.used_mib if last.used_mib is not None else (held.total_mib if held else None),
                total_mib=total,
                utilisation=tuple(sample.utilisation for sample in series),
                power_w=last.power_w,
                temperature_c=last.temperature_c,
                clock_mhz=last.sm_clock_mhz,
                lost=last.lost,
            )
        )
    return tuple(rows)


def draw(rows: Sequence[CardRow], width: int) -> Content:
    """All rows, two lines each, exactly `width` cells wide or less."""
    label_width = max((cell_len(row.name) for row in rows), default=0)
    label_width = max(label_width, *(cell_len(_under_name(row)) for row in rows), 0) if rows else 0
    return Content("\n").join(_draw_row(row, width, label_width) for row in rows)


def _draw_row(row: CardRow, width: int, label_width: int) -> Content:
    label = Content.styled(row.name.ljust(label_width) + " ", "bold")
    under = Content.styled(_under_name(row).ljust(label_width) + " ", "$text-muted")
    room = width - label_width - 1
    if row.lost:
        lost = Content.styled(one_line("LOST: no longer answers", room), "bold $text-error")
        return label + lost + Content("\n") + under + Content.styled("–", "$text-muted")
    unit, per_unit = _unit(row)
    sizes = f"{_size(row.used_mib, per_unit)}/{_size(row.total_mib, per_unit)} {unit}"
    kinds = _kinds(row, per_unit)
    one_row = room - len(sizes) - kinds.cell_length - 4 >= 8
    bar_width = max(4, room - len(sizes) - 1 - (kinds.cell_length + 2 if one_row else 0))
    first = label + _bar(row, bar_width) + Content(f" {sizes}")
    if one_row:
        first = first + Content("  ") + kinds
    return first + Content("\n") + under + _second(row, room, None if one_row else kinds)


def _second(row: CardRow, room: int, kinds: Content | None) -> Content:
    """Utilisation, power, temperature and clock, as far as there is room; unknown ones are `–`."""
    last = row.utilisation[-1] if row.utilisation else None
    percent = f"{'–' if last is None else f'{last:.0f}%':>4}"
    pieces = [Content("–" if row.power_w is None else f"{row.power_w:.0f} W")]
    pieces.append(Content("–" if row.temperature_c is None else f"{row.temperature_c:.0f}°"))
    pieces.append(Content("–" if row.clock_mhz is None else f"{row.clock_mhz:.0f} MHz"))
    if row.kind in (CardKind.VIRTUAL, CardKind.CPU):
        pieces = []
    if kinds is not None:
        pieces.insert(0, kinds)
    rest = Content("  ").join(pieces)
    while len(pieces) > 1 and rest.cell_length + len(percent) + 2 > room:
        pieces.pop()
        rest = Content("  ").join(pieces)
    what = "cpu " if row.kind in (CardKind.VIRTUAL, CardKind.CPU) else "gpu "
    spark = min(12, room - len(what) - len(percent) - 2 - rest.cell_length)
    line = Content(what) if spark >= 0 else Content("")
    if spark > 2:
        line = line + Content.styled(sparkline(row.utilisation, spark), "$text-success")
    line = line + Content(percent + "  ") + rest
    if row.title and room - line.cell_length - 2 >= cell_len(row.title):
        line = line + Content("  ") + Content.styled(row.title, "$text-muted")
    return line


def _bar(row: CardRow, width: int) -> Content:
    if not row.total_mib:
        return Content.styled("–".ljust(width), "$text-muted")
    sizes = row.by_kind
    cells = apportion(width, (*sizes, max(0.0, row.total_mib - sum(sizes))))
    out = Content("")
    for (_, glyph, colour), count in zip(KINDS, cells, strict=False):
        out = out + Content.styled(glyph * count, colour)
    return out + Content.styled(FREE * cells[-1], "$text-muted")


def _kinds(row: CardRow, per_unit: float) -> Content:
    if row.memory is None:
        return Content.styled("w –  kv –  c –", "$text-muted")
    pieces = [
        Content.styled(letter, f"bold {colour}") + Content(f" {_size(size, per_unit)}")
        for (letter, _, colour), size in zip(KINDS[:3], row.by_kind[:3], strict=True)
    ]
    return Content("  ").join(pieces)


def _unit(row: CardRow) -> tuple[str, float]:
    return ("GiB", 1024.0) if (row.total_mib or row.used_mib or 0) >= 10240 else ("MiB", 1.0)


def _size(mib: float | None, per_unit: float) -> str:
    if mib is None:
        return "–"
    size = mib / per_unit
    return f"{size:.0f}" if per_unit == 1 or size >= 100 else f"{size:.1f}"


def _under_name(row: CardRow) -> str:
    if row.smi_index is not None:
        return f"smi {row.smi_index}"
    return {CardKind.VIRTUAL: "virt", CardKind.RPC: "rpc", CardKind.CPU: "cpu"}.get(row.kind, "–")


def _title(card: Card | None) -> str:
    return one_line(card.description.removeprefix("NVIDIA "), 24) if card else ""
