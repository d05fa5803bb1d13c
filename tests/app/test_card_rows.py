"""Two lines a card, whatever is known and however wide."""

import pytest
from rich.cells import cell_len

from tests.app.stage import cuda_cards, snapshot
from workbench.app.card_rows import KINDS, CardRow, card_rows, draw
from workbench.domain.card import Card, CardKind
from workbench.domain.memory import CardMemory
from workbench.engines.engine import CardProcess, Loaded
from workbench.engines.scripted import MODEL
from workbench.meters.sample import CardSample

HELD = CardMemory(name="CUDA0", weights_mib=27955, kv_mib=9946, compute_mib=3072, layers=61)


def loaded(*cards: CardMemory, processes: tuple[CardProcess, ...] = ()) -> Loaded:
    host = CardMemory(name="CPU", weights_mib=0, kv_mib=0, compute_mib=0)
    return Loaded(
        model=MODEL, cards=cards, host=host, places=(), n_ctx=4096, flash_attn=True, template="chatml",
        template_is_fallback=False, load_s=1.0, pid=1, card_processes=processes,
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 8, 16])
@pytest.mark.parametrize("width", range(40, 81, 5))
def test_two_lines_a_card_that_fit(count: int, width: int) -> None:
    cards = cuda_cards(count)
    held = tuple(CardMemory(name=card.name, weights_mib=20000, kv_mib=900, compute_mib=300) for card in cards)
    samples = {sample.name: [sample] * 9 for sample in snapshot(cards, 3.0).cards}
    lines = draw(card_rows(loaded(*held), cards, samples), width).plain.split("\n")
    assert len(lines) == 2 * count
    assert max(map(cell_len, lines)) <= width


def test_both_numbers_and_all_figures_are_shown() -> None:
    card = cuda_cards(2)[0]
    sample = CardSample(
        name="CUDA0", total_mib=143771, used_mib=42000, utilisation=52, power_w=432, temperature_c=48, sm_clock_mhz=1980
    )
    first, second = draw(card_rows(loaded(HELD), [card], {"CUDA0": [sample]}), 78).plain.split("\n")
    assert "CUDA0" in first
    assert "41.0/140 GiB" in first
    assert "w 27.3  kv 9.7  c 3.0" in first
    for figure in ("smi 1", "52%", "432 W", "48°", "1980 MHz", "H200"):
        assert figure in second


def test_the_bar_tells_kinds_apart_by_glyph_and_colour() -> None:
    sample = CardSample(name="CUDA0", total_mib=60000, used_mib=50000)
    text = draw(card_rows(loaded(HELD), [], {"CUDA0": [sample]}), 78)
    bar = text.plain.split("\n")[0]
    assert all(glyph in bar for _, glyph, _ in KINDS)
    assert len({glyph for _, glyph, _ in KINDS}) == len({colour for _, _, colour in KINDS}) == 4
    assert bar.count("█") > bar.count("▓") > bar.count("▒")


def test_what_nobody_knows_is_a_dash_and_never_zero() -> None:
    row = CardRow(name="RPC0", kind=CardKind.RPC)
    first, second = draw([row], 70).plain.split("\n")
    assert "–/–" in first
    assert "w –  kv –  c –" in first
    assert "0" not in (first + second).replace("RPC0", "")


def test_other_memory_is_never_negative() -> None:
    row = CardRow(name="RPC0", kind=CardKind.VIRTUAL, memory=HELD, used_mib=100.0, total_mib=60000.0)
    assert row.by_kind[3] == 0


def test_a_lost_card_says_so_and_keeps_its_place() -> None:
    samples = {sample.name: [sample] for sample in snapshot(cuda_cards(3), 1.0, lost="CUDA1").cards}
    lines = draw(card_rows(None, cuda_cards(3), samples), 60).plain.split("\n")
    assert len(lines) == 6
    assert "LOST" in lines[2]
    assert "LOST" not in lines[0] + lines[4]


def test_a_virtual_card_shows_its_process_against_its_size() -> None:
    held = CardMemory(name="RPC0", weights_mib=34, kv_mib=48, compute_mib=33)
    process = CardProcess("RPC0", 42, "127.0.0.1:1", 600.0)
    rows = card_rows(
        loaded(held, processes=(process,)),
        [Card(name="CUDA0", kind=CardKind.CUDA)],
        {"RPC0": [CardSample(name="RPC0", used_mib=151.0)]},
    )
    assert [row.name for row in rows] == ["RPC0"]
    assert "151/600 MiB" in draw(rows, 60).plain
    assert "virt" in draw(rows, 60).plain
