"""Everything that is known of one card, as text."""

from textual.content import Content

from workbench.app.card_rows import KINDS, CardRow, is_process
from workbench.domain.card import Card, format_mib
from workbench.domain.duty import CardDuty, Duty
from workbench.domain.owners import Owner

UNKNOWN = "–"
_OWNERS = {"weights": 0, "kv": 1, "compute": 2, "context": 3, "unknown": 3, "process": 4}
_NAMES = {"weights": "weights", "kv": "KV", "compute": "compute", "context": "context", "unknown": "not told whose"}


def describe(row: CardRow, card: Card | None, duty: Duty | None, *, host_pids: bool) -> Content:
    """Identity, memory by owner, clocks and power, links, errors, and the last reply; a line each."""
    lines = [*_identity(row, card), *_memory(row, host_pids), Content("")]
    if is_process(row):
        lines.append(_line("use", f"{_number(row.sample.utilisation, '%')} of all cores"))
    else:
        lines += [*_state(row), *_links(row)]
    found = next((one for one in duty.cards if one.name == row.name), None) if duty is not None else None
    if duty is not None and found is not None:
        lines += [Content(""), *_reply(duty, found)]
    return Content("\n").join(lines)


def _identity(row: CardRow, card: Card | None) -> list[Content]:
    lines = [_line("card", row.title or str(row.kind))]
    if card is not None and card.pci_bus_id is not None:
        smi = "" if card.smi_index is None else f"smi {card.smi_index}, "
        lines.append(_line("pci", f"{smi}{card.pci_bus_id}"))
    if row.parts > 1:
        lines.append(_line("", f"1 of {row.parts} parts; below: the whole GPU"))
    if row.sample.unified:
        lines.append(_line("", "shares the host's memory"))
    return lines


def _memory(row: CardRow, host_pids: bool) -> list[Content]:
    used, total = _mib(row.used_mib), _mib(row.total_mib)
    lines = [_line("memory", f"{used} of {total}")]
    lines += [_owner(owner) for owner in row.owners]
    if row.sample.reserved_mib:
        lines.append(_part(3, row.sample.reserved_mib, "reserved by the driver"))
    if host_pids and any(owner.pid is not None for owner in row.owners):
        lines.append(Content.styled("        pids are the host's, not this container's", "$text-muted"))
    for piece in row.sample.slices:
        name = (piece.name or "").rpartition(" ")[2]
        lines.append(_line(f"mig {piece.index}", f"{_mib(piece.used_mib)} of {_mib(piece.total_mib)}  {name}"))
    return lines


def _owner(owner: Owner) -> Content:
    if owner.kind != "process":
        return _part(_OWNERS[owner.kind], owner.mib, _NAMES[owner.kind])
    return _part(4, owner.mib, f"{owner.name or 'process'}, pid {owner.pid}")


def _part(place: int, mib: float, name: str) -> Content:
    _, glyph, colour = KINDS[place]
    return Content.styled(f"  {glyph} ", colour) + Content(f"{format_mib(mib):>9}  {name}")


def _state(row: CardRow) -> list[Content]:
    sample = row.sample
    lines = [_line("use", f"{_number(sample.utilisation, '%')}")]
    if sample.dram_percent is not None or sample.tensor_percent is not None:
        dram, tensor = _number(sample.dram_percent, "%"), _number(sample.tensor_percent, "%")
        lines.append(_line("", f"bandwidth {dram}, tensor cores {tensor}"))
    lines.append(_line("power", f"{_number(sample.power_w, ' W')} of {_number(sample.power_limit_w, ' W')}"))
    clocks = f"{_number(sample.sm_clock_mhz, ' MHz')}, memory {_number(sample.memory_clock_mhz, ' MHz')}"
    lines.append(_line("clock", clocks))
    if sample.throttle:
        lines.append(_line("", f"held down: {', '.join(sample.throttle)}"))
    lines.append(_line("heat", _number(sample.temperature_c, " °C")))
    if sample.ecc_errors is not None:
        lines.append(_line("ecc", f"{sample.ecc_errors[0]} corrected, {sample.ecc_errors[1]} not"))
    return lines


def _links(row: CardRow) -> list[Content]:
    pcie, nvlink = row.sample.pcie, row.sample.nvlink
    now = f"gen {pcie.generation or UNKNOWN} ×{pcie.width or UNKNOWN}"
    best = f"gen {pcie.max_generation or UNKNOWN} ×{pcie.max_width or UNKNOWN}"
    lines = [_line("pcie", f"{now} (best {best})")]
    lines.append(_line("", _traffic(pcie.sent_mib_s, pcie.received_mib_s)))
    if nvlink is None:
        return [*lines, _line("nvlink", "none")]
    version = "" if nvlink.version is None else f" {nvlink.version}"
    to = " to a switch" if nvlink.switched else ""
    lines.append(_line("nvlink", f"{nvlink.links} ×{version}{to}"))
    return [*lines, _line("", _traffic(nvlink.sent_mib_s, nvlink.received_mib_s))]


def _reply(duty: Duty, card: CardDuty) -> list[Content]:
    each = duty.per_token(card.joules)
    mark = "≈" if duty.approximate else ""
    lines = [_line("reply", "–" if each is None else f"{mark}{each:.2f} J/token here, {mark}{card.joules:.0f} J")]
    if card.share is not None and card.ideal is not None:
        lines.append(_line("", f"work {card.share * 100:.0f} %, weights {card.ideal * 100:.0f} %"))
    if card.busy is not None:
        lines.append(_line("", f"busy {card.busy * 100:.0f} % of the time"))
    return lines


def _traffic(sent: float | None, received: float | None) -> str:
    return f"{_number(sent, '')} MiB/s out, {_number(received, '')} in"


def _line(name: str, text: str) -> Content:
    return Content.styled(f"{name:<8}", "bold") + Content(text)


def _number(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f}{unit}"


def _mib(value: float | None) -> str:
    return UNKNOWN if value is None else format_mib(value)
