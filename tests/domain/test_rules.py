"""The rules hold for drafts as for documents, and what they pass the placing can take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.domain.env import ALLOWED, READ_BY_PRESENCE, READ_BY_VALUE, means_off
from workbench.domain.faults import nearest
from workbench.domain.rules import check_env, check_split, n_cards_of
from workbench.domain.split import MODES, Split, Virtual, layer_counts

splits = st.builds(
    Split,
    split_mode=st.sampled_from(MODES),
    tensor_split=st.just("auto") | st.lists(st.floats(), max_size=4).map(tuple),
    layers=st.none() | st.lists(st.integers(-5, 200), max_size=4).map(tuple),
    main_gpu=st.integers(-2, 5),
    n_gpu_layers=st.just("all") | st.integers(-3, 400),
    cards=st.none() | st.lists(st.sampled_from(["CUDA0", "CUDA1", "CUDA2", ""]), max_size=3).map(tuple)
    | st.lists(st.sampled_from(["1GiB", "x"]), max_size=3).map(lambda sizes: Virtual(tuple(sizes))),
)


@given(splits, st.integers(1, 4), st.integers(1, 99))
def test_a_split_without_fault_can_be_placed(split: Split, cards: int, n_layer: int) -> None:
    faults = check_split(split, cards)
    assert all(key and message for key, message in faults)
    if not faults:
        n_cards = n_cards_of(split) or cards
        assert 0 <= sum(layer_counts(split, n_layer, n_cards)) <= n_layer + 1


def test_the_cards_of_the_machine_count_only_where_the_split_names_none() -> None:
    two = Split(tensor_split=(1, 1))
    assert check_split(two) == check_split(two, 2) == []
    assert [fault.key for fault in check_split(two, 1)] == ["tensor_split"]
    named = Split(tensor_split=(1, 1), cards=("CUDA0", "CUDA1"))
    assert check_split(named, 1) == []
    assert n_cards_of(named) == 2
    assert n_cards_of(Split(cards=Virtual(("1GiB",)))) == 1
    assert n_cards_of(two) is None


def test_a_mode_cycled_from_exact_counts_is_no_fault() -> None:
    for mode in MODES:
        assert check_split(Split(split_mode=mode, layers=(20, 11)), 2) == []


@pytest.mark.parametrize("name", sorted(READ_BY_PRESENCE))
def test_off_for_a_variable_read_by_presence_says_null(name: str) -> None:
    for off in ("0", "", "false", "No", "OFF"):
        assert means_off(off)
        (fault,) = check_env({name: off})
        assert fault.key == name
        assert "null" in fault.message
    assert check_env({name: "1"}) == check_env({name: None}) == []


def test_no_variable_names_a_file_or_code() -> None:
    assert not READ_BY_PRESENCE & READ_BY_VALUE
    for word in ("PATH", "PLUGIN", "FILE", "LIBRAR", "PRELOAD", "PYTHON", "_TOOL"):
        assert not [name for name in ALLOWED if word in name]


def test_off_is_fine_where_the_value_counts() -> None:
    assert check_env({"GGML_CUDA_PDL": "0", "CUDA_VISIBLE_DEVICES": "", "LLAMA_GRAPH_REUSE_DISABLE": "0"}) == []


def test_the_nearest_word() -> None:
    assert nearest("Q8_0", ["f16", "q8_0"]) == ", did you mean `q8_0`?"
    assert nearest("zebra", ["f16", "q8_0"]) == ""
