"""The meters on CUDA cards: what nvidia-smi says too, whose memory it is, what a reply takes."""

import subprocess
import threading
from collections.abc import Iterator, Sequence

import pynvml
import pytest

from tests.gpu.bench import Bench, core_share, energy_j
from tests.gpu.conftest import MakeLayout
from tests.waiting import wait_until
from workbench.domain.card import Card, pci_key
from workbench.domain.conversation import Sampling
from workbench.lab.cards import find_topology
from workbench.meters.processes import pids_are_the_hosts
from workbench.meters.sample import CardSample

LONG = Sampling(temperature=0, max_tokens=400, ignore_eos=True)


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


def test_nvidia_smi_says_the_same(bench: Bench, layout: MakeLayout) -> None:
    served(bench, layout)
    # A card that cools or whose power falls tells each of the two something else: they come to agree.
    for _ in range(20):
        apart = [_apart(bench.card(card.name), said_by_smi()[pci_key(card.pci_bus_id or "")]) for card in bench.cards]
        if not any(apart):
            break
    assert not any(apart)


QUERIED = {"memory.total": 1, "memory.used": 2, "power.draw": 5, "clocks.sm": 30, "temperature.gpu": 1,
           "pcie.link.width.current": 0}  # fmt: skip
"""What nvidia-smi is asked for, and how far ours may be from it."""


def said_by_smi() -> dict[tuple[int, int, int] | None, list[str]]:
    """Figures of each GPU by its bus id."""
    answer = subprocess.run(
        ["nvidia-smi", f"--query-gpu=pci.bus_id,{','.join(QUERIED)}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = ([cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines())
    return {pci_key(bus_id): figures for bus_id, *figures in rows}


def _apart(sample: CardSample, said: Sequence[str]) -> dict[str, tuple[float | None, str]]:
    """Where the two differ: ours and nvidia-smi's word. What neither knows is the same."""
    ours = (sample.total_mib, sample.used_mib, sample.power_w, sample.sm_clock_mhz, sample.temperature_c,
            sample.pcie.width)  # fmt: skip
    return {
        name: (mine, theirs)
        for (name, within), mine, theirs in zip(QUERIED.items(), ours, said, strict=True)
        if not (mine is None and theirs == "[N/A]") and mine != pytest.approx(_number(theirs), abs=within)
    }


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def test_the_owners_of_the_memory_add_up_and_ours_is_among_them(bench: Bench, layout: MakeLayout) -> None:
    served(bench, layout)
    loaded = bench.session.loaded
    assert loaded is not None
    whole = {card.name for card in bench.cards if card.parts == 1}
    for memory in loaded.cards:
        sample, owners = bench.card(memory.name), bench.owners(memory.name)
        assert sum(owner.mib for owner in owners) == pytest.approx(sample.used_mib)
        sizes = {owner.kind: owner.mib for owner in owners}
        assert sizes["weights"] == pytest.approx(memory.weights_mib)
        if memory.name in whole and not pids_are_the_hosts():
            assert 100 < sizes["context"] < 2000
            assert any(one.name == "workbench worker" for one in sample.processes or ())


def test_joules_per_token_are_those_of_the_counter(bench: Bench, layout: MakeLayout) -> None:
    served(bench, layout)
    used = tuple(card for card in bench.cards if card.name in ("CUDA0", "CUDA1"))
    seconds, tokens = 0.0, 400
    while seconds < 3.0 and tokens <= 6400:
        before = energy_j(used)
        duty = bench.reply(tokens)
        taken, seconds, tokens = energy_j(used) - before, duty.seconds, tokens * 4
    assert duty.joules is not None
    assert duty.per_token(duty.joules) == pytest.approx(taken / duty.tokens, rel=0.05)


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
    count = len({card.pci_bus_id for card in cuda_cards})
    host = core_share((), 12)
    assert (core_share(cuda_cards, 12) - host) / count < 0.00375
    assert host < 0.01


def test_every_pair_of_cards_is_joined_somehow(cuda_cards: tuple[Card, ...]) -> None:
    topology = find_topology(cuda_cards)
    cells = [cell for row in topology.cells for cell in row if cell is not None]
    assert cells
    assert all(cell.joint != "?" for cell in cells)
