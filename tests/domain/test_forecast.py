import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.domain.forecast import (
    FROM_LLAMA,
    RESERVE,
    Forecast,
    Room,
    compare,
    correction,
    forecast,
    misplaced,
    relieve,
    resolve_auto,
    shares_by_room,
)
from workbench.domain.memory import CardMemory
from workbench.domain.rules import check_split
from workbench.domain.split import Split, SplitMode

GIB = 1024.0


def held(name: str, weights: float, kv: float = 0.0, compute: float = 0.0, layers: int | None = None) -> CardMemory:
    return CardMemory(name=name, weights_mib=weights, kv_mib=kv, compute_mib=compute, layers=layers)


def room(free: float | None, other: float = 0.0, beside: float | None = None) -> Room:
    return Room(free_mib=free, beside_mib=free if beside is None else beside, other_mib=other)


def of(
    *rooms: Room,
    host: Room | None = None,
    running: tuple[CardMemory, ...] = (),
    q8: tuple[CardMemory, ...] | None = None,
) -> Forecast:
    """20 GiB on the first card, 10 GiB on the second, 1 GiB with the host."""
    return forecast(
        source=FROM_LLAMA,
        split=Split(layers=(2, 1)),
        cards=(held("CUDA0", 18 * GIB, GIB, GIB), held("CUDA1", 9 * GIB, GIB / 2, GIB / 2))[: len(rooms)],
        host=held("CPU", GIB),
        n_ctx=4096,
        rooms=(*rooms, host or room(64 * GIB)),
        running=running,
        q8_cards=q8,
    )


# ── what is said ──────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("answer", "fits", "sentence"),
    [
        (of(room(24 * GIB), room(11.9 * GIB)), True, "fits, 1.9 GiB to spare on card 1"),
        (of(room(20 * GIB - 640), room(24 * GIB)), False, "misses by 640 MiB on card 0"),
        (of(room(19 * GIB), room(8 * GIB)), False, "misses by 2.0 GiB on card 1"),
        (of(room(20 * GIB), room(24 * GIB)), True, "fits, 0 MiB to spare on card 0"),
        (of(room(20.5 * GIB, other=600), room(24 * GIB)), False, "misses by 88 MiB on card 0"),
        (of(room(24 * GIB), room(24 * GIB), host=room(GIB / 2)), False, "misses by 512 MiB on the host"),
        (of(room(24 * GIB), room(None)), None, "what is free on CUDA1 is not known"),
        (of(room(19 * GIB), room(None)), False, "misses by 1.0 GiB on card 0"),
        (of(), True, "fits, 63.0 GiB to spare on the host"),
    ],
)
def test_the_sentence_names_the_tightest_card(answer: Forecast, fits: bool | None, sentence: str) -> None:
    assert answer.fits is fits
    assert answer.sentence() == sentence


def test_each_card_with_its_change_from_what_runs() -> None:
    running = (held("CUDA0", 10 * GIB), held("CUDA1", 19 * GIB))
    answer = of(room(24 * GIB), room(24 * GIB), running=running)
    assert answer.figures() == "0: 20.0 GiB +10.0 GiB · 1: 10.0 GiB −9.0 GiB"
    assert of(room(24 * GIB), room(24 * GIB)).figures() == "0: 20.0 GiB · 1: 10.0 GiB"


def test_beside_counts_what_is_free_while_the_running_layout_stays() -> None:
    assert of(room(24 * GIB, beside=21 * GIB), room(24 * GIB)).beside is True
    assert of(room(24 * GIB, beside=19 * GIB), room(24 * GIB)).beside is False
    assert of(room(24 * GIB), room(None)).beside is None


def test_limits_are_said_once_known() -> None:
    q8 = (held("CUDA0", 18 * GIB, GIB / 2, GIB), held("CUDA1", 9 * GIB, GIB / 4, GIB / 2))
    answer = of(room(24 * GIB), room(24 * GIB), q8=q8)
    assert answer.limits() == ""
    assert msgspec.structs.replace(answer, max_n_ctx=16384).limits() == "n_ctx up to 16384 · 768 MiB less with q8_0 KV"
    assert msgspec.structs.replace(answer, max_n_ctx=0).limits().startswith("no n_ctx fits")


# ── tensor_split: auto ────────────────────────────────────────────────────────────────────
WHOLE = held("CUDA0", 28 * GIB, 2 * GIB, GIB)
AUTO = Split()


def test_one_card_takes_it_all_where_it_fits_there() -> None:
    assert resolve_auto(AUTO, 30, WHOLE, [room(24 * GIB), room(48 * GIB)]).layers == (0, 31)


def test_the_driver_counts_before_one_card_does() -> None:
    rooms = [room(33 * GIB, other=600), room(24 * GIB, other=600)]
    layers = resolve_auto(AUTO, 30, WHOLE, rooms).layers
    assert layers is not None
    assert min(layers) > 0


def test_a_large_and_a_small_card_share_by_what_is_free() -> None:
    layers = resolve_auto(AUTO, 30, WHOLE, [room(24 * GIB), room(12 * GIB)]).layers
    assert layers is not None
    assert sum(layers) == 31
    assert layers[0] / layers[1] == pytest.approx(2.0, abs=0.3)


def test_tensor_mode_uses_all_cards_by_explicit_shares() -> None:
    split = resolve_auto(Split(split_mode="tensor"), 30, WHOLE, [room(24 * GIB), room(12 * GIB)], copied_mib=GIB)
    assert split.layers is None
    assert not isinstance(split.tensor_split, str)
    beyond_fixed = (24 * (1 - RESERVE) - 2) / (12 * (1 - RESERVE) - 2)
    assert split.tensor_split[0] / split.tensor_split[1] == pytest.approx(beyond_fixed, abs=0.3)
    small = resolve_auto(Split(split_mode="tensor"), 30, held("x", 100.0), [room(24 * GIB), room(24 * GIB)])
    assert not isinstance(small.tensor_split, str)
    assert min(small.tensor_split) > 0


@pytest.mark.parametrize("split", [Split(split_mode="none"), Split(layers=(3, 1)), Split(tensor_split=(1.0, 1.0))])
def test_what_is_explicit_stays(split: Split) -> None:
    assert resolve_auto(split, 30, WHOLE, [room(64 * GIB), room(64 * GIB)]) == split


def test_layers_off_the_cards_stay_off() -> None:
    assert resolve_auto(Split(n_gpu_layers=10), 30, WHOLE, [room(64 * GIB), room(1.0)]).layers == (10, 0)


@pytest.mark.parametrize("mode", ["layer", "tensor", "row"])
def test_no_layer_on_cards_is_a_split_too(mode: SplitMode) -> None:
    split = resolve_auto(Split(split_mode=mode, n_gpu_layers=0), 30, WHOLE, [room(GIB), room(GIB)])
    assert (split.n_gpu_layers, split.layers) == (0, None)
    assert check_split(split) == []


@given(
    st.integers(0, 120),
    st.floats(1, 2000),
    st.lists(st.tuples(st.floats(0, 200_000), st.floats(0, 3000)), min_size=1, max_size=8),
)
def test_no_card_gets_more_than_it_holds_while_another_has_room(
    on_cards: int, layer_mib: float, cards: list[tuple[float, float]]
) -> None:
    rooms = [room(free) for free, _ in cards]
    fixed = [compute for _, compute in cards]
    counts = shares_by_room(on_cards, layer_mib, fixed, rooms)
    assert sum(counts) == on_cards
    usable = [max(0.0, free * (1 - RESERVE) - compute) for free, compute in cards]
    over = [count * layer_mib > have + 1e-6 for count, have in zip(counts, usable, strict=True)]
    more = [(count + 1) * layer_mib <= have for count, have in zip(counts, usable, strict=True)]
    assert not (any(over) and any(more))


def test_a_layer_moves_from_the_card_that_misses_most_to_where_there_is_room() -> None:
    cards = [held("a", 100, 10), held("b", 40, 4)]
    assert relieve((10, 4), cards, [room(105), room(100)]) == (9, 5)
    assert relieve((10, 4), cards, [room(105), room(50)]) is None
    assert relieve((10, 4), cards, [room(200), room(100)]) is None


# ── after the load ────────────────────────────────────────────────────────────────────────
def test_forecast_measured_and_error_by_card_and_kind() -> None:
    answer = of(room(24 * GIB, other=600), room(24 * GIB, other=600))
    measured = (held("CUDA0", 18 * GIB, GIB, GIB + 64), held("CUDA1", 9 * GIB, GIB / 2, GIB / 2))
    first, second = compare(answer, measured, {"CUDA0": 20 * GIB + 664}, {"CUDA0": 23 * GIB})
    assert [(kind.kind, kind.error_mib) for kind in first.kinds] == [("weights", 0.0), ("kv", 0.0), ("compute", 64.0)]
    assert (first.other_forecast_mib, first.other_mib) == (600, 600)
    assert first.foreign_mib == 3 * GIB - 664
    assert first.error_mib == 664
    assert (second.other_mib, second.foreign_mib) == (None, None)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_what_is_left_over_is_never_negative(taken: float, used: float) -> None:
    answer = of(room(24 * GIB), room(24 * GIB))
    measured = (held("CUDA0", 18 * GIB, GIB, GIB), held("CUDA1", 9 * GIB))
    account = compare(answer, measured, {"CUDA0": taken}, {"CUDA0": used})[0]
    assert account.other_mib is not None
    assert account.other_mib >= 0
    assert account.foreign_mib is not None
    assert account.foreign_mib >= 0


def test_the_correction_is_the_median_and_never_negative() -> None:
    assert correction([598.0, 600.0, 4000.0]) == 600.0
    assert correction([-4.5, -4.0, 1.0]) == 0.0
    assert correction([]) == 0.0


def test_layers_that_landed_elsewhere_are_said() -> None:
    asked = Split(layers=(23, 8))
    assert misplaced(asked, 30, [held("RPC0", 1, layers=23), held("RPC1", 1, layers=8)]) == ()
    assert misplaced(asked, 30, [held("RPC0", 1, layers=24), held("RPC1", 1, layers=7)]) == (
        "RPC0 holds 24 layers, 23 were asked for",
        "RPC1 holds 7 layers, 8 were asked for",
    )
    assert misplaced(Split(), 30, [held("RPC0", 1, layers=31)]) == ()
    assert misplaced(Split(split_mode="tensor", tensor_split=(3.0, 1.0)), 30, [held("RPC0", 1)]) == ()
