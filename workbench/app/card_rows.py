"""What is shown of each card, worked out from what the engine and the meters said."""

from collections.abc import Sequence

import msgspec
from rich.cells import cell_len
from textual.content import Content

from workbench.app.text import one_line, sparkline
from workbench.domain.card import Card, CardKind
from workbench.domain.memory import CardMemory
from workbench.domain.owners import Holder, Owner, divide
from workbench.domain.split import apportion
from workbench.engines.engine import Loaded
from workbench.meters.history import History
from workbench.meters.sample import CardSample, HostSample, Slice

KINDS = (
    ("w", "█", "ansi_blue"),
    ("kv", "▓", "ansi_magenta"),
    ("c", "▒", "ansi_cyan"),
    ("x", "░", "$text-muted"),
    ("o", "▞", "$warning"),
)
"""Letter, glyph and colour of weights, KV, compute, context and others: never told apart by colour alone."""
FREE = "·"
LEGEND = "█ weights ▓ kv ▒ compute ░ context ▞ others"
SAMPLES = 24
"""So many readings a row keeps for its curve."""
GIB_FROM = 10240.0
"""Cards of this many MiB and more are told in GiB."""


class CardRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of one card: sizes in MiB, percentages 0 … 100; None where nobody knows.

    `owners` divides what is used; `parts` cards share the GPU, of which `sample` then speaks.
    """

    name: str
    kind: CardKind
    title: str = ""
    smi_index: int | None = None
    memory: CardMemory | None = None
    sample: CardSample = CardSample(name="")
    used_mib: float | None = None
    total_mib: float | None = None
    owners: tuple[Owner, ...] = ()
    utilisation: tuple[float | None, ...] = ()
    parts: int = 1

    @property
    def by_kind(self) -> tuple[float, float, float, float, float]:
        """Weights, KV, compute, context with what is nobody's and what is reserved, other processes."""
        sums = dict.fromkeys(("weights", "kv", "compute", "context", "process", "unknown"), 0.0)
        for owner in self.owners:
            sums[owner.kind] += owner.mib
        reserved = (self.sample.reserved_mib or 0.0) if self.parts == 1 else 0.0
        rest = sums["context"] + sums["unknown"] + reserved
        return (sums["weights"], sums["kv"], sums["compute"], rest, sums["process"])


def kind_of(name: str, loaded: Loaded | None) -> CardKind:
    """The kind of a card that is known by its name only."""
    if loaded is not None and any(process.name == name for process in loaded.card_processes):
        return CardKind.VIRTUAL
    for prefix, kind in (("CUDA", CardKind.CUDA), ("RPC", CardKind.RPC), ("CPU", CardKind.CPU)):
        if name.startswith(prefix):
            return kind
    return CardKind.GPU


def card_rows(
    loaded: Loaded | None, cards: Sequence[Card], history: History, host: HostSample | None = None
) -> tuple[CardRow, ...]:
    """One row a card: the loaded ones in the split's order, then the idle ones.

    Beside virtual cards the machine's own are left out: they have no part in what runs.
    `host` tells the memory of cards that share it.
    """
    known = {card.name: card for card in cards}
    memory = {card.name: card for card in loaded.cards} if loaded else {}
    sizes = {process.name: process.size_mib for process in loaded.card_processes} if loaded else {}
    idle = [] if sizes else [card.name for card in cards if card.name not in memory and card.kind is not CardKind.CPU]
    names = [*memory, *idle] or (list(history.latest) if loaded else [])
    pids = (loaded.pid,) if loaded and loaded.pid else ()
    return tuple(
        _row(
            name,
            known.get(name),
            memory.get(name),
            known[name].kind if name in known else kind_of(name, loaded),
            sizes.get(name),
            history,
            pids if name in memory else (),
            host,
        )
        for name in names
    )


def _row(
    name: str,
    card: Card | None,
    held: CardMemory | None,
    kind: CardKind,
    size_mib: float | None,
    history: History,
    pids: tuple[int, ...],
    host: HostSample | None,
) -> CardRow:
    sample = history.latest.get(name) or CardSample(name=name)
    parts = 1 if card is None else card.parts
    total = sample.total_mib or size_mib or (card.total_mib if card else None)
    used = sample.used_mib
    engine = None if held is None else held.total_mib
    if sample.unified and host is not None:
        total, used = host.total_mib, host.total_mib - host.available_mib
    elif parts > 1:
        # Of the whole GPU's memory nobody knows whose part is used; this model's is the engine's.
        total, used = card.total_mib if card else None, engine
    elif used is None or (kind is CardKind.VIRTUAL and engine is not None):
        # Pages that were never touched do not count as resident, and are taken all the same.
        used = max((size for size in (used, engine) if size is not None), default=None)
    holders = [Holder(pid=one.pid, name=one.name, mib=one.mib) for one in sample.processes or ()]
    return CardRow(
        name=name,
        kind=kind,
        title=_title(card, sample),
        smi_index=card.smi_index if card else None,
        memory=held,
        sample=sample,
        used_mib=used,
        total_mib=total,
        owners=() if used is None else divide(used, held, holders if parts == 1 else (), pids),
        utilisation=history.tail(name, "utilisation", SAMPLES),
        parts=parts,
    )


def draw(rows: Sequence[CardRow], width: int, *, compact: bool = False) -> Content:
    """All rows, two lines each or one if `compact`, at most `width` cells wide; a line more for each MIG slice."""
    if not rows:
        return Content("")
    label_width = max(cell_len(row.name) for row in rows)
    if not compact:
        label_width = max(label_width, *(cell_len(_under_name(row)) for row in rows))
    pieces = []
    for row in rows:
        pieces.append(_draw_compact(row, width, label_width) if compact else _draw_row(row, width, label_width))
        pieces += [_draw_slice(piece, width, label_width) for piece in row.sample.slices]
    return Content("\n").join(pieces)


def _draw_row(row: CardRow, width: int, label_width: int) -> Content:
    label = Content.styled(row.name.ljust(label_width) + " ", "bold")
    under = Content.styled(_under_name(row).ljust(label_width) + " ", "$text-muted")
    room = width - label_width - 1
    if (state := _no_answer(row)) is not None:
        return label + state.truncate(room, ellipsis=True) + Content("\n") + under + Content.styled("–", "$text-muted")
    sizes = _sizes(row)
    kinds = _kinds(row)
    one_row = room - len(sizes) - kinds.cell_length - 4 >= 8
    bar_width = max(4, room - len(sizes) - 1 - (kinds.cell_length + 2 if one_row else 0))
    first = label + _bar(row, bar_width) + Content(f" {sizes}")
    if one_row:
        first = first + Content("  ") + kinds
    return first + Content("\n") + under + _second(row, room, None if one_row else kinds)


def _draw_compact(row: CardRow, width: int, label_width: int) -> Content:
    label = Content.styled(row.name.ljust(label_width) + " ", "bold")
    room = width - label_width - 1
    if (state := _no_answer(row)) is not None:
        return label + state.truncate(room, ellipsis=True)
    figures = [f"{_sizes(row):>14}", f"{_percent(row):>4}"]
    if not is_process(row):
        figures += [f"{_watts(row):>5}", f"{_degrees(row):>3}"]
    while len(figures) > 1 and room - len(" ".join(figures)) < 9:
        figures.pop()
    tail = Content(" ").join([Content(""), *_alarm(row)[:1], Content(" ".join(figures))])
    if room - tail.cell_length < 4:
        tail = Content(" " + " ".join(figures))
    return label + _bar(row, max(4, room - tail.cell_length)) + tail


def _draw_slice(piece: Slice, width: int, label_width: int) -> Content:
    """A MIG instance: it reports memory and nothing else."""
    label = Content.styled(f"└{piece.index}".rjust(label_width) + " ", "$text-muted")
    unit, per_unit = _unit(piece.total_mib)
    sizes = f" {_size(piece.used_mib, per_unit)}/{_size(piece.total_mib, per_unit)} {unit}"
    profile = (piece.name or "MIG").rpartition(" ")[2]
    name = f"  {one_line(f'{profile} · use –', max(1, width - label_width - 14 - len(sizes)))}"
    bar_width = max(4, width - label_width - 1 - len(sizes) - cell_len(name))
    if not piece.total_mib or piece.used_mib is None:
        bar = Content.styled("–".ljust(bar_width), "$text-muted")
    else:
        full, free = apportion(bar_width, (piece.used_mib, max(0.0, piece.total_mib - piece.used_mib)))
        bar = Content.styled("░" * full, "$text-muted") + Content.styled(FREE * free, "$text-muted")
    return label + bar + Content(sizes) + Content.styled(name, "$text-muted")


def _no_answer(row: CardRow) -> Content | None:
    """What stands instead of figures for a card that has none to give."""
    if row.sample.lost:
        return Content.styled("LOST: no longer answers", "bold $text-error")
    if row.sample.asleep:
        return Content.styled("asleep: powered down, and left so", "$text-muted")
    return None


def _second(row: CardRow, room: int, kinds: Content | None) -> Content:
    """What the card does, the most telling first, as far as there is room; unknown ones are `–`."""
    percent = f"{_percent(row):>4}"
    pieces = [] if kinds is None else [kinds]
    pieces += _alarm(row)
    if not is_process(row):
        pieces += [Content(_watts(row)), Content(_degrees(row)), Content(_clock(row)), *_flows(row.sample)]
    what = "cpu " if is_process(row) else "gpu "
    if row.parts > 1:
        what = "whole gpu "
    rest = Content("  ").join(pieces)
    while len(pieces) > 1 and len(what) + len(percent) + 2 + rest.cell_length > room:
        pieces.pop()
        rest = Content("  ").join(pieces)
    spark = min(12, room - len(what) - len(percent) - 2 - rest.cell_length)
    line = Content(what) if spark >= 0 else Content("")
    if spark > 2:
        line = line + Content.styled(sparkline(row.utilisation, spark), "$text-success")
    line = line + Content(percent + "  ") + rest
    if row.title and room - line.cell_length - 2 >= cell_len(row.title):
        line = line + Content("  ") + Content.styled(row.title, "$text-muted")
    return line.truncate(room, ellipsis=True)


def _alarm(row: CardRow) -> list[Content]:
    """What nobody must overlook: why the clock is down, errors of the memory."""
    sample, found = row.sample, []
    if sample.throttle:
        found.append(Content.styled(f"▼{sample.throttle[0]}", "$text-warning"))
    if sample.ecc_errors and sample.ecc_errors[1]:
        found.append(Content.styled(f"ecc {sample.ecc_errors[1]}!", "bold $text-error"))
    return found


def _flows(sample: CardSample) -> list[Content]:
    found = []
    if sample.dram_percent is not None:
        found.append(Content(f"dram {sample.dram_percent:.0f}%"))
    if sample.nvlink is not None:
        found.append(Content(f"nvl {_flow(sample.nvlink.sent_mib_s, sample.nvlink.received_mib_s)}"))
    if sample.pcie.sent_mib_s is not None:
        found.append(Content(f"pcie {_flow(sample.pcie.sent_mib_s, sample.pcie.received_mib_s)}"))
    return found


def _flow(sent: float | None, received: float | None) -> str:
    if sent is None or received is None:
        return "–"
    both = sent + received
    return f"{both / 1024:.1f} GiB/s" if both >= 1000 else f"{both:.0f} MiB/s"


def _bar(row: CardRow, width: int) -> Content:
    if not row.total_mib or row.used_mib is None:
        return Content.styled("–".ljust(width), "$text-muted")
    sizes = row.by_kind
    cells = apportion(width, (*sizes, max(0.0, row.total_mib - sum(sizes))))
    out = Content("")
    for (_, glyph, colour), count in zip(KINDS, cells, strict=False):
        out = out + Content.styled(glyph * count, colour)
    return out + Content.styled(FREE * cells[-1], "$text-muted")


def _kinds(row: CardRow) -> Content:
    sizes, (_, per_unit) = row.by_kind, _unit(row.total_mib or row.used_mib)
    if row.memory is None:
        pieces = [Content.styled("w –  kv –  c –", "$text-muted")]
    else:
        pieces = [_kind(place, sizes[place], per_unit) for place in range(3)]
    if sizes[4] > 0:
        pieces.append(_kind(4, sizes[4], per_unit))
    return Content("  ").join(pieces)


def _kind(place: int, mib: float, per_unit: float) -> Content:
    letter, _, colour = KINDS[place]
    return Content.styled(letter, f"bold {colour}") + Content(f" {_size(mib, per_unit)}")


def is_process(row: CardRow) -> bool:
    """Whether the card is a process of this machine, which has no power, clock or link of its own."""
    return row.kind in (CardKind.VIRTUAL, CardKind.CPU)


def _percent(row: CardRow) -> str:
    last = row.sample.utilisation
    return "–" if last is None else f"{last:.0f}%"


def _watts(row: CardRow) -> str:
    return "–" if row.sample.power_w is None else f"{row.sample.power_w:.0f} W"


def _degrees(row: CardRow) -> str:
    return "–" if row.sample.temperature_c is None else f"{row.sample.temperature_c:.0f}°"


def _clock(row: CardRow) -> str:
    return "–" if row.sample.sm_clock_mhz is None else f"{row.sample.sm_clock_mhz:.0f} MHz"


def _sizes(row: CardRow) -> str:
    unit, per_unit = _unit(row.total_mib or row.used_mib)
    return f"{_size(row.used_mib, per_unit)}/{_size(row.total_mib, per_unit)} {unit}"


def _unit(mib: float | None) -> tuple[str, float]:
    return ("GiB", 1024.0) if (mib or 0.0) >= GIB_FROM else ("MiB", 1.0)


def _size(mib: float | None, per_unit: float) -> str:
    if mib is None:
        return "–"
    size = mib / per_unit
    if per_unit == 1 or size >= 100:
        return f"{size:.0f}"
    return f"{size:.1f}" if size >= 0.1 or size == 0 else f"{size:.2f}"


def _under_name(row: CardRow) -> str:
    if row.smi_index is not None:
        return f"smi {row.smi_index}"
    return {CardKind.VIRTUAL: "virt", CardKind.RPC: "rpc", CardKind.CPU: "cpu"}.get(row.kind, "–")


def _title(card: Card | None, sample: CardSample) -> str:
    if card is None:
        return ""
    title = one_line(card.description.removeprefix("NVIDIA "), 24)
    if card.parts > 1:
        title = f"1/{card.parts} of {title}"
    return f"{title}, host's memory" if sample.unified else title
