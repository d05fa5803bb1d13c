"""Two lines a card, whatever is known and however wide."""

import pytest
from rich.cells import cell_len

from tests.app.stage import cuda_cards, snapshot
from workbench.app.card_rows import KINDS, CardRow, card_rows, draw
from workbench.domain.card import Card, CardKind
from workbench.domain.memory import CardMemory
from workbench.domain.owners import Owner
from workbench.engines.engine import CardProcess, Loaded
from workbench.engines.scripted import MODEL
from workbench.meters.history import History
from workbench.meters.sample import CardSample, GpuProcess, HostSample, Snapshot

HELD = CardMemory(name="CUDA0", weights_mib=27955, kv_mib=9946, compute_mib=3072, layers=61)


def loaded(*cards: CardMemory, processes: tuple[CardProcess, ...] = ()) -> Loaded:
    host = CardMemory(name="CPU", weights_mib=0, kv_mib=0, compute_mib=0)
    return Loaded(
        model=MODEL, cards=cards, host=host, places=(), n_ctx=4096, flash_attn=True, template="chatml",
        template_is_fallback=False, load_s=1.0, pid=1, card_processes=processes,
    )  # fmt: skip


HOST = HostSample(cpu_percent=1.0, total_mib=64000.0, available_mib=40000.0)


def read(*samples: CardSample, times: int = 1) -> History:
    history = History(seconds=20)
    for at in range(times):
        history.add(Snapshot(at=float(at), cards=samples, host=HOST))
    return history


@pytest.mark.parametrize("count", [1, 2, 8, 16])
@pytest.mark.parametrize("width", range(40, 81, 5))
def test_two_lines_a_card_that_fit(count: int, width: int) -> None:
    cards = cuda_cards(count)
    held = tuple(CardMemory(name=card.name, weights_mib=20000, kv_mib=900, compute_mib=300) for card in cards)
    rows = card_rows(loaded(*held), cards, read(*snapshot(cards, 3.0).cards, times=9))
    lines = draw(rows, width).plain.split("\n")
    assert len(lines) == 2 * count
    assert max(map(cell_len, lines)) <= width
    compact = draw(rows, width, compact=True).plain.split("\n")
    assert len(compact) == count
    assert max(map(cell_len, compact)) <= width
    assert all("GiB" in line for line in compact)


def test_both_numbers_and_all_figures_are_shown() -> None:
    card = cuda_cards(2)[0]
    sample = CardSample(
        name="CUDA0", total_mib=143771, used_mib=42000, utilisation=52, power_w=432, temperature_c=48, sm_clock_mhz=1980
    )
    first, second = draw(card_rows(loaded(HELD), [card], read(sample)), 78).plain.split("\n")
    assert "CUDA0" in first
    assert "41.0/140 GiB" in first
    assert "w 27.3  kv 9.7  c 3.0" in first
    for figure in ("smi 1", "52%", "432 W", "48°", "1980 MHz", "H200"):
        assert figure in second


def test_the_bar_tells_kinds_apart_by_glyph_and_colour() -> None:
    stranger = GpuProcess(pid=815, name="jupyter", mib=4000)
    sample = CardSample(name="CUDA0", total_mib=60000, used_mib=50000, processes=(stranger,))
    text = draw(card_rows(loaded(HELD), [], read(sample)), 78)
    bar = text.plain.split("\n")[0]
    assert all(glyph in bar for _, glyph, _ in KINDS)
    assert len({glyph for _, glyph, _ in KINDS}) == len({colour for _, _, colour in KINDS}) == 5
    assert bar.count("█") > bar.count("▓") > bar.count("▒")


def test_what_nobody_knows_is_a_dash_and_never_zero() -> None:
    row = CardRow(name="RPC0", kind=CardKind.RPC)
    first, second = draw([row], 70).plain.split("\n")
    assert "–/–" in first
    assert "w –  kv –  c –" in first
    assert "0" not in (first + second).replace("RPC0", "")


def test_other_memory_is_never_negative() -> None:
    sample = CardSample(name="CUDA0", used_mib=100.0, total_mib=60000.0)
    (row,) = card_rows(loaded(HELD), [], read(sample))
    assert row.owners == (Owner(kind="weights", mib=100.0),)
    assert row.by_kind == (100, 0, 0, 0, 0)


def test_a_lost_card_says_so_and_keeps_its_place() -> None:
    history = read(*snapshot(cuda_cards(3), 1.0, lost="CUDA1").cards)
    lines = draw(card_rows(None, cuda_cards(3), history), 60).plain.split("\n")
    assert len(lines) == 6
    assert "LOST" in lines[2]
    assert "LOST" not in lines[0] + lines[4]


def test_a_virtual_card_shows_its_process_against_its_size() -> None:
    held = CardMemory(name="RPC0", weights_mib=34, kv_mib=48, compute_mib=33)
    process = CardProcess("RPC0", 42, "127.0.0.1:1", 600.0)
    rows = card_rows(
        loaded(held, processes=(process,)),
        [Card(name="CUDA0", kind=CardKind.CUDA)],
        read(CardSample(name="RPC0", used_mib=151.0)),
    )
    assert [row.name for row in rows] == ["RPC0"]
    assert "151/600 MiB" in draw(rows, 60).plain
    assert "virt" in draw(rows, 60).plain


def test_a_little_on_a_large_card_is_not_nothing() -> None:
    held = CardMemory(name="CUDA0", weights_mib=51, kv_mib=72, compute_mib=0)
    card = Card(name="CUDA0", kind=CardKind.CUDA, total_mib=143771.0)
    drawn = draw(card_rows(loaded(held), [card], read(CardSample(name="CUDA0", used_mib=759.0))), 80).plain
    assert "0.7/140 GiB" in drawn
    assert "w 0.05  kv 0.07  c 0.0" in drawn


def test_what_a_virtual_card_uses_is_at_least_what_its_buffers_add_up_to() -> None:
    held = CardMemory(name="RPC0", weights_mib=34, kv_mib=480, compute_mib=33)
    process = CardProcess("RPC0", 42, "127.0.0.1:1", 600.0)
    (row,) = card_rows(loaded(held, processes=(process,)), [], read(CardSample(name="RPC0", used_mib=151.0)))
    assert row.used_mib == 547
    assert row.by_kind == (34, 480, 33, 0, 0)


def test_the_parts_of_one_gpu_share_its_figures_and_count_nothing_twice() -> None:
    halves = [
        Card(name=f"CUDA{i}", kind=CardKind.CUDA, description="NVIDIA H200", smi_index=0, pci_bus_id="0000:41:00.0",
             total_mib=71885.0, parts=2)
        for i in range(2)
    ]  # fmt: skip
    memory = (HELD, CardMemory(name="CUDA1", weights_mib=900, kv_mib=80, compute_mib=20))
    whole = CardSample(name="CUDA0", total_mib=143771, used_mib=43000, reserved_mib=615, utilisation=52, power_w=432)
    other = CardSample(name="CUDA1", total_mib=143771, used_mib=43000, reserved_mib=615, utilisation=52, power_w=432)
    rows = card_rows(loaded(*memory), halves, read(whole, other))
    assert [row.used_mib for row in rows] == [HELD.total_mib, 1000]
    assert [row.total_mib for row in rows] == [71885, 71885]
    text = draw(rows, 78).plain
    assert text.count("whole gpu") == 2
    assert text.count("1/2 of H200") == 2


def test_a_card_that_shares_the_hosts_memory_shows_the_hosts() -> None:
    card = Card(name="CUDA0", kind=CardKind.CUDA, description="NVIDIA GB10")
    history = read(CardSample(name="CUDA0", unified=True, utilisation=40))
    (row,) = card_rows(None, [card], history, HOST)
    assert (row.used_mib, row.total_mib) == (24000, 64000)
    assert "host's memory" in draw([row], 100).plain


def test_why_a_card_is_slow_stays_in_sight_however_narrow() -> None:
    hot = ("hardware thermal",)
    sample = CardSample(name="CUDA0", used_mib=1.0, total_mib=60000.0, throttle=hot, ecc_errors=(0, 3))
    rows = card_rows(None, [Card(name="CUDA0", kind=CardKind.CUDA)], read(sample))
    assert "▼hardware thermal" in draw(rows, 60).plain
    assert "ecc 3!" in draw(rows, 78).plain
    assert "▼hardware thermal" in draw(rows, 60, compact=True).plain
