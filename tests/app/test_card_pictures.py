"""Pictures of the cards: many of them, one in detail, how they are joined."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest
from textual.pilot import Pilot
from textual_plotext import PlotextPlot

from tests.app.stage import cuda_cards, measured, snapshot, until
from tests.app.test_pictures import stage
from workbench.app.app import WorkbenchApp
from workbench.app.screens.card_detail import CardDetailScreen
from workbench.app.screens.topology import TopologyScreen
from workbench.domain.card import Card
from workbench.domain.duty import CardDuty, Duty, Price
from workbench.domain.topology import Pair, Topology, lay_out
from workbench.meters.sample import CardSample, GpuProcess, HostSample, NvLink, Pcie, Snapshot

HOST = HostSample(cpu_percent=12, total_mib=515000, available_mib=400000, cached=0.98, disk_read_mib_s=0)


def machine(count: int) -> tuple[Card, ...]:
    return tuple(
        msgspec.structs.replace(card, pci_bus_id=f"0000:{16 + number:02x}:00.0")
        for number, card in enumerate(cuda_cards(count))
    )


def joined(cards: Sequence[Card]) -> Topology:
    ids = [card.pci_bus_id or "" for card in cards]
    near = len(ids) // 2
    pairs = [
        Pair(
            first=ids[i], second=ids[j], ancestor=10 if (i < near) == (j < near) else 50,
            nvlinks=4 if i // 2 == j // 2 else 0, peer=(i < near) == (j < near), refusal="not supported",
        )
        for i in range(len(ids))
        for j in range(i + 1, len(ids))
    ]  # fmt: skip
    return lay_out(cards, pairs)


def figures(card: CardSample, number: int, at: float) -> CardSample:
    used = 28_000.0 + 500 * number
    return msgspec.structs.replace(
        card,
        used_mib=used,
        reserved_mib=615.0,
        processes=(GpuProcess(pid=815, name="jupyter", mib=5000.0),),
        utilisation=50 + 45 * math.sin(at / 15 + 3 * number),
        dram_percent=61 + 10 * math.sin(at / 20 + number),
        tensor_percent=12.0,
        power_w=430 + 80 * math.sin(at / 30 + number),
        power_limit_w=700.0,
        memory_clock_mhz=3201.0,
        throttle=("power cap",) if number == 1 else (),
        pcie=Pcie(generation=5, max_generation=5, width=16, max_width=16, sent_mib_s=12, received_mib_s=9),
        nvlink=NvLink(links=18, version="4.0", switched=True, sent_mib_s=394, received_mib_s=390),
        ecc_errors=(0, 0),
    )


def reading(cards: tuple[Card, ...], at: float) -> Snapshot:
    plain = snapshot(cards, at)
    rich = tuple(figures(card, number, at) for number, card in enumerate(plain.cards))
    return Snapshot(at=at, cards=rich, host=HOST)


@pytest.mark.parametrize(
    ("size", "count", "keys"),
    [
        pytest.param((80, 24), 2, (), id="cards-2-80x24"),
        pytest.param((80, 24), 8, (), id="cards-8-80x24"),
        pytest.param((160, 48), 8, ("l",), id="cards-8-160x48-other-lines"),
        pytest.param((80, 24), 2, ("enter",), id="detail-80x24"),
        pytest.param((160, 48), 2, ("enter", "right"), id="detail-160x48"),
        pytest.param((80, 24), 8, ("t",), id="topology-8-80x24"),
    ],
)
def test_picture(
    snap_compare: Callable[..., bool], size: tuple[int, int], count: int, keys: tuple[str, ...]
) -> None:
    app = stage(count)
    cards = machine(count)

    async def before(pilot: Pilot[None]) -> None:
        assert isinstance(pilot.app, WorkbenchApp)
        await until(pilot, lambda: measured(app) == 1 and app.main.split.current is not None)
        pane = app.main.cards
        pane.wire(None, replace(pilot.app.outside, find_topology=joined, price=Price(per_hour=4.2)))
        pane.show_cards(cards)
        for tick in range(1199):
            pane.history.add(reading(cards, tick / 2))
        pane.show_snapshot(reading(cards, 600.0))
        share = tuple(CardDuty(name=card.name, share=1 / count, ideal=1 / count, joules=1750 / count) for card in cards)
        pane.show_duty(Duty(mode="layer", cards=share, tokens=128, seconds=2.5, idle=0.04))
        pilot.app.main.go_to(pane)
        await pilot.pause()
        await pilot.press(*keys)
        screen = pilot.app.screen
        if isinstance(screen, TopologyScreen):
            await until(pilot, lambda: screen.topology is not None)
        if isinstance(screen, CardDetailScreen):
            await until(pilot, lambda: all(plot.size.height for plot in screen.query(PlotextPlot) if plot.display))
            screen.draw()
        await pilot.pause()

    try:
        assert snap_compare(app, terminal_size=size, run_before=before)
    finally:
        app.session.close()
