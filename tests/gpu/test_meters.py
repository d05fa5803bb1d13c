"""The meters on CUDA cards: what nvidia-smi says too, whose memory it is, what a reply takes."""

import os
import subprocess
import threading
import time
from collections.abc import Iterator

import psutil
import pynvml
import pytest

from tests.gpu.conftest import MakeLayout
from tests.waiting import wait_until
from workbench.domain.card import Card, pci_key
from workbench.domain.conversation import Sampling
from workbench.domain.duty import Duty
from workbench.domain.owners import Holder, divide
from workbench.lab.cards import find_topology, watching
from workbench.lab.events import LayoutLoaded, SessionEvent
from workbench.lab.kit import RealKit
from workbench.lab.session import Session
from workbench.lab.watch import Watch
from workbench.meters.board import Board
from workbench.meters.processes import pids_are_the_hosts
from workbench.meters.sample import CardSample, Snapshot

LONG = Sampling(temperature=0, max_tokens=400, ignore_eos=True)


class Bench:
    """A session with its meters, as the screen has them."""

    def __init__(self, cards: tuple[Card, ...]) -> None:
        self.snapshots: list[Snapshot] = []
        self.duties: list[Duty] = []
        self.kit = RealKit(spare=False)
        self.watch = Watch(self.snapshots.append, self.duties.append)
        self.cards = cards
        self.watch.watch(None, cards)
        self.watch.start()
        self.session = Session(self.kit, self._hear)

    def _hear(self, event: SessionEvent) -> None:
        self.watch.hear(event)
        if isinstance(event, LayoutLoaded):
            self.watch.watch(event.loaded, self.cards)

    def close(self) -> None:
        self.session.close()
        self.watch.close()
        self.kit.close()

    def card(self, name: str) -> CardSample:
        return next(card for card in self.snapshots[-1].cards if card.name == name)


@pytest.fixture
def bench(cuda_cards: tuple[Card, ...]) -> Iterator[Bench]:
    bench = Bench(cuda_cards)
    yield bench
    bench.close()


def served(bench: Bench, layout: MakeLayout) -> None:
    bench.session.load(layout(n_ctx=8192)).result()
    bench.session.probe().result()
    count = len(bench.snapshots)
    wait_until(lambda: len(bench.snapshots) > count + 3)


def energy_j(cards: tuple[Card, ...]) -> float:
    keys = {pci_key(card.pci_bus_id or "") for card in cards}
    total = 0.0
    for number in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
        if pci_key(bus_id if isinstance(bus_id, str) else bus_id.decode()) in keys:
            total += pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    return total


def test_nvidia_smi_says_the_same(bench: Bench, layout: MakeLayout) -> None:
    served(bench, layout)
    query = "pci.bus_id,memory.total,memory.used,power.draw,clocks.sm,temperature.gpu,pcie.link.width.current"
    answer = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = {}
    for line in answer.stdout.splitlines():
        bus_id, *figures = (cell.strip() for cell in line.split(","))
        said[pci_key(bus_id)] = figures
    for card in bench.cards:
        sample = bench.card(card.name)
        total, used, power, clock, celsius, width = said[pci_key(card.pci_bus_id or "")]
        assert sample.total_mib == pytest.approx(float(total), abs=1)
        assert sample.used_mib == pytest.approx(float(used), abs=8)
        assert sample.power_w == pytest.approx(float(power), rel=0.25, abs=20)
        assert sample.sm_clock_mhz == pytest.approx(float(clock), rel=0.15)
        assert sample.temperature_c == pytest.approx(float(celsius), abs=4)
        assert sample.pcie.width == int(width)


def test_the_owners_of_the_memory_add_up_and_ours_is_among_them(bench: Bench, layout: MakeLayout) -> None:
    served(bench, layout)
    loaded = bench.session.loaded
    assert loaded is not None
    whole = {card.name for card in bench.cards if card.parts == 1}
    for memory in loaded.cards:
        sample = bench.card(memory.name)
        assert sample.used_mib is not None
        holders = [Holder(pid=one.pid, name=one.name, mib=one.mib) for one in sample.processes or ()]
        owners = divide(sample.used_mib, memory, holders, (loaded.pid,))
        assert sum(owner.mib for owner in owners) == pytest.approx(sample.used_mib)
        sizes = {owner.kind: owner.mib for owner in owners}
        assert sizes["weights"] == pytest.approx(memory.weights_mib)
        if memory.name in whole and not pids_are_the_hosts():
            assert 100 < sizes["context"] < 2000
            assert any(one.name == "workbench worker" for one in sample.processes or ())


def test_joules_per_token_are_those_of_the_counter(bench: Bench, layout: MakeLayout) -> None:
    served(bench, layout)
    used = tuple(card for card in bench.cards if card.name in ("CUDA0", "CUDA1"))
    seconds, tokens, told, taken = 0.0, 400, 0, 0.0
    while seconds < 3.0 and tokens <= 6400:
        bench.session.clear().result()
        before, began = energy_j(used), time.monotonic()
        length = Sampling(temperature=0, max_tokens=tokens, ignore_eos=True)
        turn = bench.session.send("Write on rivers.", length).result()
        taken, seconds = energy_j(used) - before, time.monotonic() - began
        told, tokens = 0 if turn.timing is None else turn.timing.tokens, tokens * 4
    wait_until(lambda: bench.duties and bench.duties[-1].tokens == told)
    duty = bench.duties[-1]
    assert duty.joules is not None
    assert duty.per_token(duty.joules) == pytest.approx(taken / told, rel=0.05)


def test_the_work_of_a_reply_is_shared_as_its_layers(bench: Bench, layout: MakeLayout) -> None:
    if any(card.parts > 1 for card in bench.cards):
        pytest.skip("needs two GPUs: the parts of one cannot be told apart")
    bench.session.load(layout(n_ctx=8192, tensor_split=(3.0, 1.0))).result()
    bench.session.send("Write on rivers.", LONG).result()
    bench.session.send("And on lakes.", LONG).result()
    wait_until(lambda: len(bench.duties) == 2)
    duty = bench.duties[-1]
    assert sum(card.share or 0 for card in duty.cards) == pytest.approx(1)
    assert duty.cards[0].share is not None
    assert duty.cards[0].share > 0.5
    assert duty.idle is not None


def test_monitors_of_the_memory_where_a_card_has_them(bench: Bench, layout: MakeLayout) -> None:
    major, _ = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(0))
    if major < 9:
        pytest.skip("needs a Hopper card or a later one")
    served(bench, layout)
    threading.Thread(target=lambda: bench.session.send("Write on rivers.", LONG).result()).start()
    wait_until(lambda: (bench.card("CUDA0").dram_percent or 0) > 1)
    assert bench.card("CUDA0").pcie.sent_mib_s is not None


def test_a_card_takes_little_of_a_core(cuda_cards: tuple[Card, ...]) -> None:
    """At most 0.375 % of a core a card, which is 3 % for eight, and what the host's own figures take."""
    process = psutil.Process(os.getpid())

    def share(board: Board, cards: tuple[Card, ...]) -> float:
        board.read(watching(cards))
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        while time.monotonic() - began < 12:
            board.read(watching(cards))
            time.sleep(0.5)
        board.close()
        return (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)

    count = len({card.pci_bus_id for card in cuda_cards})
    host = share(Board(), ())
    assert (share(Board(), cuda_cards) - host) / count < 0.00375
    assert host < 0.01


def test_every_pair_of_cards_is_joined_somehow(cuda_cards: tuple[Card, ...]) -> None:
    topology = find_topology(cuda_cards)
    cells = [cell for row in topology.cells for cell in row if cell is not None]
    assert cells
    assert all(cell.joint != "?" for cell in cells)
