"""Which layer lands where, as llama.cpp decides it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.domain.split import (
    OFF_CARDS,
    Split,
    apportion,
    count_layers,
    layer_counts,
    n_gpu_layers_asked,
    place_layers,
)

counts = st.lists(st.integers(0, 200), min_size=1, max_size=16).filter(any)
shares = st.lists(st.floats(0, 1e6, width=32, allow_subnormal=False), min_size=1, max_size=16).filter(
    lambda values: sum(values) > 1e-6)


@given(counts)
def test_whole_counts_come_out_exact(asked: list[int]) -> None:
    n_layer = sum(asked) - 1
    places = place_layers(n_layer, n_layer + 1, asked)
    assert count_layers(places, len(asked)) == tuple(asked)
    assert layer_counts(Split(layers=tuple(asked)), n_layer, len(asked)) == tuple(asked)


@given(counts, st.integers(1, 60))
def test_counts_below_all_leave_the_first_layers_off(asked: list[int], off: int) -> None:
    n_layer = sum(asked) + off - 1
    places = place_layers(n_layer, sum(asked), asked)
    assert places[:off] == (OFF_CARDS,) * off
    assert OFF_CARDS not in places[off:]
    assert count_layers(places, len(asked)) == tuple(asked)


@given(st.integers(1, 200), st.integers(0, 260), shares)
def test_placing_is_llama_cpps_rule_in_single_precision(n_layer: int, n_gpu_layers: int, given: list[float]) -> None:
    bounds = np.cumsum(np.array(given, dtype=np.float32), dtype=np.float32)
    bounds /= bounds[-1]
    start = max(n_layer + 1 - n_gpu_layers, 0)
    on_cards = min(n_gpu_layers, n_layer + 1)
    expected = [OFF_CARDS] * min(start, n_layer + 1) + [
        int(np.searchsorted(bounds, np.float32(il - start) / np.float32(on_cards), side="right"))
        for il in range(start, n_layer + 1)
    ]
    assert list(place_layers(n_layer, n_gpu_layers, given)) == expected


@given(st.integers(1, 200), st.integers(0, 260), shares)
def test_layers_lie_in_the_order_of_the_cards(n_layer: int, n_gpu_layers: int, given: list[float]) -> None:
    places = place_layers(n_layer, n_gpu_layers, given)
    assert len(places) == n_layer + 1
    assert list(places) == sorted(places)
    assert max(places) < len(given)
    assert all(given[place] > 0 for place in set(places) - {OFF_CARDS})


def test_percentages_drift_where_counts_do_not() -> None:
    assert layer_counts(Split(tensor_split=(75, 25)), 80, 2) == (61, 20)
    assert layer_counts(Split(tensor_split=(74, 26)), 80, 2) == (60, 21)
    assert layer_counts(Split(layers=(60, 21)), 80, 2) == (60, 21)


@pytest.mark.parametrize(("split", "expected"), [
    (Split(), (16, 15)),
    (Split(tensor_split=(3, 1)), (24, 7)),
    (Split(tensor_split=(1,)), (31, 0)),
    (Split(tensor_split=(0, 1)), (0, 31)),
    (Split(layers=(20, 11)), (20, 11)),
    (Split(layers=(5, 5)), (5, 5)),
    (Split(n_gpu_layers=10), (5, 5)),
    (Split(n_gpu_layers=0), (0, 0)),
    (Split(n_gpu_layers=999), (16, 15)),
    (Split(split_mode="none", main_gpu=1), (0, 31)),
    (Split(split_mode="none", n_gpu_layers=7), (7, 0)),
])
def test_counts_of_a_split_of_thirty_layers(split: Split, expected: tuple[int, int]) -> None:
    assert layer_counts(split, 30, 2) == expected


def test_positions_asked_for() -> None:
    assert n_gpu_layers_asked(Split(), 30) == 31
    assert n_gpu_layers_asked(Split(layers=(4, 5)), 30) == 9
    assert n_gpu_layers_asked(Split(layers=(40, 50)), 30) == 31
    assert n_gpu_layers_asked(Split(split_mode="none", layers=(4, 5)), 30) == 31


@given(st.integers(0, 300), st.lists(st.floats(0, 1e5), min_size=1, max_size=16))
def test_apportioning_hands_out_everything_within_one_of_the_exact_part(total: int, weights: list[float]) -> None:
    parts = apportion(total, weights)
    assert sum(parts) == total
    whole = sum(weights)
    for part, weight in zip(parts, weights, strict=True):
        exact = total * weight / whole if whole > 0 else total / len(weights)
        assert abs(part - exact) < 1 + 1e-6


@pytest.mark.parametrize(("split", "label"), [
    (Split(), "layer auto"),
    (Split(tensor_split=(3, 1)), "layer 3:1"),
    (Split(tensor_split=(2.5, 1)), "layer 2.5:1"),
    (Split(layers=(23, 8)), "layer 23:8"),
    (Split(split_mode="tensor", tensor_split=(1, 1)), "tensor 1:1"),
    (Split(split_mode="none", main_gpu=1), "none on card 1"),
    (Split(tensor_split=(1, 1), n_gpu_layers=20), "layer 1:1, 20 on cards"),
])
def test_labels_are_short_and_say_what_counts(split: Split, label: str) -> None:
    assert split.label() == label
