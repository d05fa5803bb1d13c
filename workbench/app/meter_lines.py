"""What the meters say below the cards: the host, the last reply, and one sentence that reads them."""

from collections.abc import Sequence

from textual.content import Content

from workbench.app.card_rows import CardRow
from workbench.app.text import one_line
from workbench.domain.duty import Duty, Price
from workbench.domain.reading import CardScene, Scene, read
from workbench.engines.engine import Served
from workbench.meters.nvml import Asking
from workbench.meters.sample import HostSample

_STEADY = 6
"""Readings, three seconds of them."""


def host_line(host: HostSample, width: int) -> Content:
    """CPU, memory, what of the model's file is cached, what the disks read; as far as there is room."""
    used = (host.total_mib - host.available_mib) / 1024
    pieces = [
        f"cpu {'–' if host.cpu_percent is None else f'{host.cpu_percent:.0f}%'}",
        f"ram {used:.1f}/{host.total_mib / 1024:.1f} GiB",
    ]
    if host.cached is not None:
        pieces.append(f"model {host.cached * 100:.0f}% cached")
    if host.disk_read_mib_s is not None:
        pieces.append(f"disk {host.disk_read_mib_s:.0f} MiB/s")
    while len(pieces) > 1 and len(" · ".join(pieces)) > width - 5:
        pieces.pop()
    return Content.styled("host ", "bold") + Content(one_line(" · ".join(pieces), width - 5))


def server_line(served: Served, width: int) -> Content:
    """What a server says that its model takes, and whether its processes are on this machine."""
    total, on_cards = served.total_mib, served.on_cards_mib
    if total is None or on_cards is None:
        pieces = ["tells nothing of its memory"]
    elif on_cards >= total:
        pieces = [f"{total:.0f} MiB, all on cards"]
    else:
        pieces = [f"{total:.0f} MiB, {on_cards:.0f} of it on cards"]
    if not served.pids:
        pieces.append("no process of it is seen on this machine")
    return Content.styled("server ", "bold") + Content(f"\n{' ' * 7}".join(_lines(pieces, width - 7)))


def duty_line(duty: Duty, price: Price | None, width: int) -> Content:
    """The last reply: joules a token, each card's share of the work, idle time, money; two lines if need be."""
    pieces = []
    each = duty.per_token(duty.joules)
    if each is not None:
        pieces.append(f"{'≈' if duty.approximate else ''}{each:.2f} J/token")
    pieces += _work(duty)
    if duty.idle is not None:
        pieces.append(f"none busy {duty.idle * 100:.0f}%")
    tokens = None if price is None else price.tokens_per_unit(duty)
    if price is not None and tokens is not None:
        pieces.append(f"{_thousands(tokens)} tok/{price.currency}")
    return Content.styled("reply ", "bold") + Content(f"\n{' ' * 6}".join(_lines(pieces, width - 6)) or "–")


def sentence(rows: Sequence[CardRow], duty: Duty | None, host_layers: tuple[int, int] | None, working: bool) -> str:
    """The meters in one sentence; empty where there is nothing to say."""
    return read(
        Scene(
            cards=[_scene(row) for row in rows],
            duty=duty,
            host_layers=host_layers,
            working=working,
        )
    )


def silence(asking: Asking | None, now: float, missing: str | None) -> str:
    """Why there are no new figures; empty where there are."""
    if asking is not None:
        asked = f"the {asking.metric} of {asking.pci_bus_id}"
        return f"the driver has not answered for {now - asking.since:.0f} s, asked for {asked}: figures are old"
    return f"no GPU figures: {missing}" if missing else ""


def _scene(row: CardRow) -> CardScene:
    sample = row.sample
    return CardScene(
        name=row.name,
        lost=sample.lost,
        ours=row.memory is not None,
        steadily=_least(row.utilisation[-_STEADY:]),
        dram_percent=sample.dram_percent,
        throttle=sample.throttle or (),
        sm_clock_mhz=sample.sm_clock_mhz,
        uncorrected_errors=sample.ecc_errors[1] if sample.ecc_errors else 0,
    )


def _lines(pieces: Sequence[str], width: int) -> list[str]:
    """The pieces in lines that fit."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + 3 + len(piece) <= width:
            lines[-1] += f" · {piece}"
        else:
            lines.append(one_line(piece, width))
    return lines


def _work(duty: Duty) -> list[str]:
    """Each card's share of the work beside that of the weights; of many cards how far they are off."""
    pairs = [(card.share, card.ideal) for card in duty.cards if card.share is not None and card.ideal is not None]
    if len(pairs) < 2 or len(pairs) < len(duty.cards):
        return []
    if len(pairs) > 4:
        off = max(abs(share - ideal) for share, ideal in pairs)
        return [f"work as the weights ±{off * 100:.0f}%"]
    return [f"work {_parts([share for share, _ in pairs])} weights {_parts([ideal for _, ideal in pairs])}"]


def _least(values: Sequence[float | None]) -> float | None:
    """The least of the last readings; None before there are enough."""
    known = [value for value in values if value is not None]
    return min(known) if len(known) >= _STEADY else None


def _parts(parts: Sequence[float]) -> str:
    return ":".join(f"{part * 100:.0f}" for part in parts)


def _thousands(number: float) -> str:
    return f"{number:,.0f}".replace(",", " ")
