"""Drafts keep every layer, and come out as the split they show."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.domain.card import CardKind
from workbench.domain.draft import (
    Draft,
    by_free,
    by_speed,
    changes,
    cycle,
    draft_of,
    even,
    mode_reasons,
    move,
    on_cards,
    to_split,
    with_main,
)
from workbench.domain.split import Split, layer_counts, n_gpu_layers_asked

THIRTY_ONE = draft_of(Split(tensor_split=(1, 1)), 30, 2)


def drafts() -> st.SearchStrategy[Draft]:
    def build(args: tuple[int, int, str, list[int], int | None]) -> Draft:
        n_layer, n_cards, mode, shares, on = args
        split = Split(
            split_mode=mode,  # type: ignore[arg-type]
            tensor_split=tuple(float(share) for share in shares[:n_cards]) if any(shares[:n_cards]) else "auto",
            n_gpu_layers="all" if on is None else on,
        )
        return draft_of(split, n_layer, n_cards)

    return st.tuples(
        st.integers(1, 90),
        st.integers(1, 16),
        st.sampled_from(["layer", "tensor", "none"]),
        st.lists(st.integers(0, 9), min_size=16, max_size=16),
        st.none() | st.integers(0, 95),
    ).map(build)


@given(drafts(), st.lists(st.tuples(st.integers(0, 16), st.integers(-7, 7)), max_size=12))
def test_no_layer_is_lost_by_moving(draft: Draft, moves: list[tuple[int, int]]) -> None:
    shares = sum(draft.shares)
    for row, by in moves:
        draft = move(draft, min(row, draft.n_cards), by)
        assert sum(draft.counts) + draft.off == draft.n_layer + 1
        assert sum(draft.shares) == shares
        assert min(*draft.counts, *draft.shares, draft.off) >= 0


@given(drafts(), st.lists(st.tuples(st.integers(0, 16), st.integers(-7, 7)), max_size=12))
def test_the_split_places_what_the_draft_shows(draft: Draft, moves: list[tuple[int, int]]) -> None:
    for row, by in moves:
        draft = move(draft, min(row, draft.n_cards), by)
    split = to_split(draft, Split())
    assert n_gpu_layers_asked(split, draft.n_layer) == draft.on_cards
    if draft.mode == "layer":
        assert layer_counts(split, draft.n_layer, draft.n_cards) == draft.counts
    assert draft_of(split, draft.n_layer, draft.n_cards).figures == draft.figures or draft.mode == "tensor"


def test_more_on_a_card_comes_from_the_next_and_then_from_further_on() -> None:
    draft = draft_of(Split(layers=(2, 1, 5)), 7, 3)
    assert move(draft, 0, 1).counts == (3, 0, 5)
    assert move(draft, 0, 3).counts == (5, 0, 3)
    assert move(draft, 2, 2).counts == (1, 0, 7)
    assert move(draft, 1, 99).counts == (0, 8, 0)


def test_fewer_on_a_card_go_to_the_next_and_from_the_last_to_the_one_before() -> None:
    assert move(THIRTY_ONE, 0, -5).counts == (11, 20)
    assert move(THIRTY_ONE, 1, -5).counts == (21, 10)
    assert move(THIRTY_ONE, 1, -50).counts == (31, 0)


def test_layers_off_the_cards_trade_with_card_0() -> None:
    off = move(THIRTY_ONE, 2, 4)
    assert (off.counts, off.off) == ((12, 15), 4)
    assert to_split(off, Split()).layers == (12, 15)
    assert move(off, 2, -4) == THIRTY_ONE


def test_a_single_card_trades_with_what_is_off_the_cards() -> None:
    draft = draft_of(Split(), 10, 1)
    fewer = move(draft, 0, -3)
    assert (fewer.counts, fewer.off) == ((8,), 3)
    assert move(fewer, 0, 1).off == 2
    assert move(draft_of(Split(split_mode="tensor"), 10, 1), 0, 1).shares == (100,)


def test_everything_off_the_cards_is_no_split_of_zeros() -> None:
    nothing = on_cards(THIRTY_ONE, 0)
    assert to_split(nothing, Split()) == Split(n_gpu_layers=0)


def test_shares_start_exact_and_come_out_short() -> None:
    draft = draft_of(Split(split_mode="tensor", tensor_split=(2, 1)), 30, 2)
    assert draft.shares == (66, 33)
    assert to_split(draft, Split()).tensor_split == (2, 1)
    assert to_split(move(draft, 0, -33), Split()).tensor_split == (1, 2)


def test_an_automatic_split_starts_from_what_landed() -> None:
    assert draft_of(Split(), 30, 2, landed=(25, 6)).counts == (25, 6)
    assert draft_of(Split(tensor_split=(1, 1)), 30, 2, landed=(25, 6)).counts == (16, 15)


def test_even_and_by_free() -> None:
    draft = move(THIRTY_ONE, 0, 9)
    assert even(draft).counts == (16, 15)
    assert by_free(draft, (3000.0, 1000.0)).counts == (23, 8)
    tensor = cycle(draft)
    assert by_free(tensor, (3000.0, 1000.0)).shares == (75, 25)


def test_by_speed_the_fastest_hold_what_they_can_where_cards_take_turns() -> None:
    three = draft_of(Split(tensor_split=(1, 1, 1)), 30, 3)
    speeds = (1.0, 3.0, 2.0)
    assert by_speed(three, speeds, (40, 20, 40)).counts == (0, 20, 11)
    assert by_speed(three, speeds, (10, 10, 10)).counts == (10, 11, 10)
    assert by_speed(on_cards(three, 12), speeds, (10, 10, 10)).counts == (0, 10, 2)
    assert by_speed(cycle(three), speeds, (1, 1, 1)).shares == (17, 50, 33)
    assert by_speed(msgspec.structs.replace(three, mode="none"), speeds, (1, 1, 1)).main_gpu == 1


def test_modes_come_round_and_keep_their_figures() -> None:
    draft = move(THIRTY_ONE, 0, 3)
    modes = []
    for _ in range(4):
        modes.append(draft.mode)
        draft = cycle(draft)
    assert modes == ["layer", "tensor", "row", "none"]
    assert draft == move(THIRTY_ONE, 0, 3)


def test_mode_none_puts_all_on_the_main_card() -> None:
    draft = with_main(draft_of(Split(split_mode="none"), 30, 2), 1)
    assert draft.figures == (0, 31)
    assert move(draft, 1, -6).figures == (0, 25)
    assert to_split(move(draft, 1, -6), Split()) == Split(split_mode="none", main_gpu=1, n_gpu_layers=25)


def test_changes_are_zero_across_modes() -> None:
    assert changes(move(THIRTY_ONE, 0, 3), THIRTY_ONE) == (3, -3)
    assert changes(cycle(THIRTY_ONE), THIRTY_ONE) == (0, 0)


@pytest.mark.parametrize("kind", [CardKind.CUDA, CardKind.VIRTUAL, CardKind.RPC])
def test_row_mode_says_which_device_lacks_it(kind: CardKind) -> None:
    assert mode_reasons([("CUDA0", kind)], "llama")["row"] == "device CUDA0 does not support split buffers"


def test_tensor_mode_needs_flash_attention_and_an_architecture_that_has_it() -> None:
    cards = [("SYCL0", CardKind.GPU)]
    assert mode_reasons(cards, "llama") == {}
    assert "flash attention" in mode_reasons(cards, "llama", flash_attn=False)["tensor"]
    assert "mamba" in mode_reasons(cards, "mamba")["tensor"]
