"""What the cards pane shows on every kind of machine: a fake library under the real binding."""

import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Static

from tests.meters.conftest import Plug, plug
from tests.meters.fake_nvml import FakeGpu, FakeLink, FakeNvmlLib
from tests.waiting import wait_until
from workbench.app.detail_text import describe
from workbench.app.outside import Outside
from workbench.app.panes.cards import CardsPane
from workbench.app.screens.card_detail import CardDetailScreen, round_up
from workbench.app.screens.topology import TopologyScreen
from workbench.domain.card import Card, CardKind
from workbench.domain.duty import CardDuty, Duty, Price
from workbench.domain.memory import CardMemory
from workbench.domain.topology import Topology
from workbench.engines.engine import CardProcess, Loaded
from workbench.engines.scripted import MODEL
from workbench.lab.cards import find_topology, watching
from workbench.lab.events import SessionEvent
from workbench.meters import sampler
from workbench.meters.board import Board, WatchedProcess, Watching
from workbench.meters.nvml import Asking
from workbench.meters.sampler import Pace, Sampler

__all__ = ["plug"]
GPM = {pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 61.0, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 12.0,
       pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: 8.0, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 4.0}  # fmt: skip


def bus(number: int) -> str:
    return f"00000000:{16 + number:02X}:00.0"


def h200(number: int, **more: Any) -> FakeGpu:
    return FakeGpu(bus(number), **{"gpm": GPM, **more})


def cards_of(gpus: Sequence[FakeGpu]) -> tuple[Card, ...]:
    return tuple(
        Card(
            name=f"CUDA{i}", kind=CardKind.CUDA, description=gpu.name, smi_index=i,
            pci_bus_id=gpu.bus_id[4:].lower(), total_mib=float(gpu.total_mib),
        )
        for i, gpu in enumerate(gpus)
    )  # fmt: skip


def loaded(*names: str, pid: int = 77, processes: tuple[CardProcess, ...] = ()) -> Loaded:
    memory = tuple(CardMemory(name=name, weights_mib=20_000, kv_mib=900, compute_mib=300, layers=15) for name in names)
    return Loaded(
        model=MODEL, cards=memory, host=CardMemory(name="CPU", weights_mib=0, kv_mib=0, compute_mib=0),
        places=(), n_ctx=4096, flash_attn=True, template="chatml", template_is_fallback=False, load_s=1.0,
        pid=pid, card_processes=processes,
    )  # fmt: skip


class PaneApp(App[None]):
    """The cards pane alone."""

    def compose(self) -> ComposeResult:
        yield CardsPane()


class Stand:
    """A machine and the pane that shows it; time goes on when the test says so."""

    def __init__(self, pilot: Pilot[None], gpus: Sequence[FakeGpu], meters: Board, clock: list[float]) -> None:
        self.pilot = pilot
        self.gpus = gpus
        self.meters = meters
        self.clock = clock
        self.pane = pilot.app.query_one(CardsPane)
        self.cards = cards_of(gpus)
        self.pane.show_cards(self.cards)
        self.load: Loaded | None = None

    async def read(self, times: int = 1, seconds: float = 0.5) -> str:
        """Read so often and return what the pane shows then."""
        for _ in range(times):
            self.clock[0] += seconds
            self.pane.show_snapshot(self.meters.read(self.watching()))
        await self.pilot.pause()
        return self.text

    def watching(self) -> Watching:
        return watching(self.cards, self.load)

    def serve(self, found: Loaded) -> None:
        self.load = found
        self.pane.show_loaded(found)

    @property
    def text(self) -> str:
        return str(self.pane.query_one("#card-rows", Static).content)

    def line(self, start: str) -> str:
        return next(line for line in self.text.split("\n") if line.startswith(start))


MakeStand = Callable[..., Any]


@pytest.fixture
def stand(plug: Plug, tmp_path: Path) -> Iterator[MakeStand]:
    boards: list[Board] = []

    @asynccontextmanager
    async def make(
        *gpus: FakeGpu, lib: FakeNvmlLib | None = None, size: tuple[int, int] = (110, 48)
    ) -> AsyncIterator[Stand]:
        plug(lib or FakeNvmlLib(*gpus))
        clock = [100.0]
        boards.append(Board(lambda: clock[0], pci_devices=tmp_path))
        async with PaneApp().run_test(size=size) as pilot:
            await pilot.pause()
            yield Stand(pilot, gpus, boards[-1], clock)

    yield make
    for board in boards:
        board.close()


async def test_a_machine_without_cards(stand: MakeStand) -> None:
    async with stand() as here:
        assert "no card yet" in await here.read()
        assert "host cpu" in here.text


@pytest.mark.parametrize("count", [1, 2, 8, 16])
@pytest.mark.parametrize("size", [(110, 48), (78, 24)])
async def test_every_card_has_its_lines(stand: MakeStand, count: int, size: tuple[int, int]) -> None:
    async with stand(*(h200(i, utilisation=10 + i) for i in range(count)), size=size) as here:
        await here.read(3)
        lines = [line for line in here.text.split("\n") if line.startswith("CUDA")]
        assert [line.split()[0] for line in lines] == [f"CUDA{i}" for i in range(count)]
        for i in range(count):
            assert f"{10 + i}%" in here.text
        assert all("29.3/140 GiB" in line for line in lines)
        two_lines = "smi 0" in here.text
        assert two_lines == (2 * count + 1 <= max(8, size[1] * 2 // 5 - 2))
        await here.pilot.press("tab")
        here.pane.action_lines()
        assert ("smi 0" in here.text) != two_lines


async def test_a_card_that_is_lost_keeps_its_place_and_the_others_go_on(stand: MakeStand) -> None:
    async with stand(h200(0), h200(1)) as here:
        here.serve(loaded("CUDA0", "CUDA1"))
        await here.read(2)
        here.gpus[0].errors["*"] = pynvml.NVML_ERROR_GPU_IS_LOST
        here.gpus[1].utilisation = 33
        text = await here.read(2)
        assert "LOST" in here.line("CUDA0")
        assert "LOST" not in here.line("CUDA1")
        assert "33%" in text
        assert "▸ CUDA0 no longer answers, and a part of the model was there" in text


async def test_a_driver_that_was_updated_under_its_library(stand: MakeStand) -> None:
    lib = FakeNvmlLib(h200(0), init=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    async with stand(h200(0), lib=lib) as here:
        text = await here.read()
        assert "no GPU figures: the NVIDIA driver was updated while it ran" in text
        assert "–/140 GiB" in here.line("CUDA0")


async def test_a_machine_whose_library_is_missing(
    stand: MakeStand, plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_library(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    async with stand(h200(0)) as here:
        plug(None)
        monkeypatch.setattr(pynvml, "CDLL", no_library)
        assert "no GPU figures: no NVIDIA driver is installed" in await here.read()


async def test_under_windows_processes_and_limits_are_not_told(stand: MakeStand) -> None:
    gpu = h200(0, gpm=None, name="NVIDIA GeForce RTX 4090", total_mib=24564)
    for function in (
        "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetMigMode",
        "nvmlDeviceGetTotalEnergyConsumption", "nvmlGpmQueryDeviceSupport",
    ):  # fmt: skip
        gpu.errors[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    gpu.used_mib = 22_000
    async with stand(gpu) as here:
        here.serve(loaded("CUDA0"))
        await here.read(3)
        assert "21.5/24.0 GiB" in here.line("CUDA0")
        owners = here.pane.rows[0].owners
        assert [(owner.kind, owner.mib) for owner in owners] == [
            ("weights", 20_000), ("kv", 900), ("compute", 300), ("unknown", 800),
        ]  # fmt: skip
        assert "432 W of –" in describe(here.pane.rows[0], None, None, host_pids=False).plain


async def test_a_card_that_shares_the_hosts_memory_says_so(stand: MakeStand) -> None:
    gpu = h200(0, gpm=None, name="NVIDIA GB10")
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetPowerUsage"):
        gpu.errors[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    async with stand(gpu) as here:
        assert "GB10, host's memory" in await here.read(2)
        row = here.pane.rows[0]
        assert row.total_mib == pytest.approx(here.meters.read(here.watching()).host.total_mib)
        assert "shares the host's memory" in describe(row, here.cards[0], None, host_pids=False).plain


async def test_slices_of_a_card_have_lines_of_their_own(stand: MakeStand) -> None:
    slices = [("NVIDIA H200 MIG 1g.18gb", 16384, 4100), None, ("NVIDIA H200 MIG 3g.71gb", 71680, 0)]
    async with stand(h200(0, slices=slices, gpm=None)) as here:
        await here.read(2)
        lines = [line for line in here.text.split("\n") if "└" in line]
        assert len(lines) == 2
        assert "└0" in lines[0]
        assert "4.0/16.0 GiB" in lines[0]
        assert "  1g.18gb · use –" in lines[0]
        assert "└2" in lines[1]
        assert "0.0/70.0 GiB" in lines[1]


async def test_without_nvlink_only_pcie_is_shown(stand: MakeStand) -> None:
    async with stand(h200(0, gpm=None), h200(1, gpm=None)) as here:
        await here.read(1)
        deadline = time.monotonic() + 20
        while "pcie 3 MiB/s" not in await here.read(1):
            assert time.monotonic() < deadline
        assert "nvl" not in here.text
        assert "nvlink  none" in describe(here.pane.rows[0], None, None, host_pids=False).plain


async def test_bridged_pairs(stand: MakeStand) -> None:
    first = h200(0, links=[FakeLink(remote=bus(1))] * 4, link_at_us=1_000_000, peers={bus(1): 0})
    second = h200(1, links=[FakeLink(remote=bus(0))] * 4, link_at_us=1_000_000)
    async with stand(first, second, h200(2)) as here:
        await here.read(1)
        first.link_kib, first.link_at_us = (2048_000, 1024_000), 3_000_000
        await here.read(1, 2.0)
        assert "nvl 1.5 GiB/s" in here.text
        assert "4 × 4.0\n" in describe(here.pane.rows[0], None, None, host_pids=False).plain
        topology = find_topology(here.cards)
        assert [cell and cell.text() for cell in topology.cells[0]] == [None, "NV4 ✓", "SYS ✗"]


async def test_cards_behind_a_switch(stand: MakeStand) -> None:
    peers = {bus(number): 0 for number in range(8)}
    async with stand(*(h200(i, links=[FakeLink()] * 18, peers=peers) for i in range(8))) as here:
        await here.read(1)
        assert "18 × 4.0 to a switch" in describe(here.pane.rows[3], None, None, host_pids=False).plain
        topology = find_topology(here.cards)
        assert {cell.text() for row in topology.cells for cell in row if cell is not None} == {"NV18 ✓"}


async def test_in_a_container_pids_are_the_hosts_and_said_to_be(
    stand: MakeStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.meters.processes.pids_are_the_hosts", lambda: True)
    gpu = h200(0, processes={os.getpid(): 21_900, 901_123: 5_000}, used_mib=27_000)
    async with stand(gpu) as here:
        here.serve(loaded("CUDA0", pid=7))
        await here.read(2)
        row = here.pane.rows[0]
        assert row.sample.processes is not None
        assert [process.name for process in row.sample.processes] == [None, None]
        text = describe(row, here.cards[0], None, host_pids=True).plain
        assert "700 MiB  context" in text
        assert "process, pid 901123" in text
        assert "pids are the host's" in text
        assert "o 4.9" in here.line("CUDA0")


async def test_a_card_that_supports_nothing_is_all_dashes(stand: MakeStand) -> None:
    gpu = h200(0)
    gpu.errors = {"*": pynvml.NVML_ERROR_NOT_SUPPORTED, "nvmlDeviceGetPciInfo_v3": 0}
    async with stand(gpu) as here:
        text = await here.read(3)
        assert "–/140 GiB" in here.line("CUDA0")
        second = text.split("\n")[1]
        assert "0%" not in second
        assert second.count("–") >= 4
        described = describe(here.pane.rows[0], here.cards[0], None, host_pids=False).plain
        assert "gen – ×– (best gen – ×–)" in described


async def test_a_call_that_hangs_is_named_and_old_figures_are_said_to_be_old(
    stand: MakeStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "HANGS_S", 0.01)
    lib, go_on = FakeNvmlLib(h200(0)), threading.Event()

    def wait(name: str) -> None:
        if name == "nvmlDeviceGetPowerUsage":
            go_on.wait(20)

    lib.before = wait
    async with stand(h200(0), lib=lib) as here:
        thread = Sampler(lambda snapshot: None, interval_s=0.01)
        here.pane.wire(StubMeters(thread.hanging), Outside())
        thread.watch(here.watching())
        thread.start()
        try:
            wait_until(thread.hanging)
            asking = thread.hanging()
            assert asking is not None
            monkeypatch.setattr("workbench.app.panes.cards.time.monotonic", lambda: asking.since + 5)
            here.pane._look()
            assert "the driver has not answered for 5 s, asked for the power of 0000:10:00.0" in here.text
            go_on.set()
            wait_until(lambda: thread.hanging() is None)
            here.pane._look()
            assert "has not answered" not in here.text
        finally:
            go_on.set()
            thread.close()


async def test_counters_that_wrap_show_a_dash_and_no_nonsense(stand: MakeStand) -> None:
    gpu = h200(0, links=[FakeLink()], link_kib=(2**50, 2**50), link_at_us=1_000_000)
    async with stand(gpu) as here:
        await here.read(1)
        gpu.link_kib, gpu.link_at_us = (5, 5), 3_000_000
        await here.read(1, 2.0)
        assert "nvl –" in here.text


class StubMeters:
    """Meters of which only what hangs is asked."""

    def __init__(self, hanging: Callable[[], Asking | None] = lambda: None) -> None:
        self.pace = Pace.FULL
        self.hanging = hanging

    def hear(self, event: SessionEvent) -> None:
        pass

    def close(self) -> None:
        pass


async def test_the_last_reply_in_one_line_and_one_sentence(stand: MakeStand) -> None:
    async with stand(h200(0), h200(1)) as here:
        here.pane.wire(StubMeters(), replace(Outside(), price=Price(per_hour=3.6)))
        here.serve(loaded("CUDA0", "CUDA1"))
        await here.read(2)
        cards = tuple(CardDuty(name=f"CUDA{i}", busy=0.48, share=0.5, ideal=0.5, joules=700.0) for i in range(2))
        here.pane.show_duty(Duty(mode="layer", cards=cards, tokens=100, seconds=2.0, idle=0.04))
        assert "reply 14.00 J/token · work 50:50 weights 50:50 · none busy 4% · 50 000 tok/EUR" in here.text
        assert "▸ layer mode: cards take turns, about half idle each is expected" in here.text
        here.pane.show_duty(Duty(mode="layer", cards=cards, tokens=100, seconds=1.9, idle=0.04))
        assert "≈14.00 J/token" in here.text
        here.serve(loaded("CUDA0"))
        assert "reply" not in here.text


async def test_a_key_turns_the_meters_off_and_hiding_slows_them(stand: MakeStand) -> None:
    async with stand(h200(0)) as here:
        meters = StubMeters()
        here.pane.wire(meters, Outside())
        await here.read(1)
        here.pane.display = False
        await here.pilot.pause()
        assert str(meters.pace) == "hidden"
        here.pane.display = True
        await here.pilot.pause()
        assert str(meters.pace) == "full"
        here.pane.focus()
        await here.pilot.press("o")
        assert str(meters.pace) == "off"
        assert "the meters are off" in here.text
        here.pane.display = False
        await here.pilot.pause()
        here.pane.display = True
        await here.pilot.pause()
        assert str(meters.pace) == "off"
        here.pane.focus()
        await here.pilot.press("o")
        assert str(meters.pace) == "full"


async def test_what_is_free_counts_what_we_hold_and_parts_share_it(stand: MakeStand) -> None:
    async with stand(h200(0, processes={77: 21_900}), h200(1)) as here:
        here.serve(loaded("CUDA0", "CUDA1"))
        await here.read(1)
        free = 143771.0 - 30000 - 615
        assert here.pane.free_mib == {"CUDA0": free + 21_900, "CUDA1": free + 21_200}
        here.cards = tuple(
            msgspec.structs.replace(card, pci_bus_id="0000:10:00.0", parts=2, total_mib=143771.0 / 2)
            for card in here.cards
        )
        here.pane.show_cards(here.cards)
        await here.read(1)
        assert here.pane.free_mib == {"CUDA0": free / 2 + 21_200, "CUDA1": free / 2 + 21_200}


async def test_meters_that_nobody_sees_from_the_start_go_slower(stand: MakeStand) -> None:
    async with stand() as here:
        meters = StubMeters()
        here.pane.display = False
        await here.pilot.pause()
        here.pane.wire(meters, Outside())
        assert meters.pace is Pace.HIDDEN


async def test_a_sleeping_card_says_so(stand: MakeStand, tmp_path: Path) -> None:
    async with stand(h200(0)) as here:
        status = tmp_path / "0000:10:00.0" / "power" / "runtime_status"
        status.parent.mkdir(parents=True)
        status.write_text("suspended")
        await here.read(1)
        assert "asleep" in here.line("CUDA0")


async def test_a_model_on_no_card_shows_the_cpu(stand: MakeStand) -> None:
    async with stand() as here:
        here.serve(loaded(pid=os.getpid()))
        await here.read(2)
        assert [type(card) for card in here.watching().cards] == [WatchedProcess]
        assert "cpu" in here.line("CPU") + here.text.split("\n")[1]


async def test_a_card_in_detail_and_its_neighbour(stand: MakeStand) -> None:
    async with stand(h200(0, utilisation=12), h200(1, throttle=0x4)) as here:
        await here.read(30)
        here.pane.focus()
        await here.pilot.press("enter")
        await here.pilot.pause()
        screen = here.pilot.app.screen
        assert isinstance(screen, CardDetailScreen)
        assert "bandwidth 61%, tensor cores 12%" in str(screen.query_one("#card-text", Static).content)
        assert str(screen.query_one("#card-detail").border_title) == "CUDA0  1/2"
        await here.pilot.press("right")
        assert str(screen.query_one("#card-detail").border_title) == "CUDA1  2/2"
        assert "held down: power cap" in str(screen.query_one("#card-text", Static).content)
        await here.pilot.press("right")
        assert str(screen.query_one("#card-detail").border_title) == "CUDA0  1/2"
        await here.pilot.press("escape")
        assert here.pilot.app.screen is not screen


async def test_the_topology_is_asked_for_on_a_thread(stand: MakeStand) -> None:
    async with stand(h200(0, ancestors={bus(1): 10}), h200(1)) as here:
        asked_on = []

        def find(cards: Sequence[Card]) -> Topology:
            asked_on.append(threading.current_thread())
            return find_topology(cards)

        here.pane.wire(None, replace(Outside(), find_topology=find))
        here.pane.focus()
        await here.pilot.press("t")
        await here.pilot.app.workers.wait_for_complete()
        await here.pilot.pause()
        screen = here.pilot.app.screen
        assert isinstance(screen, TopologyScreen)
        text = str(screen.query_one("#topology", Static).content)
        assert "PIX ✗" in text
        assert "the chipset does not support it: CUDA0–CUDA1" in text
        assert asked_on != [threading.main_thread()]


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.3, 0.4), (1, 1), (432, 600), (700, 800), (1001, 2000)])
def test_the_top_of_an_axis_is_round(value: float, top: float) -> None:
    assert round_up(value) == pytest.approx(top)
