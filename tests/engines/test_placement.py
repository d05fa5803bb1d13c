"""What the engine says landed where, against the rule; what each card weighs, against the tensors' sizes."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.engines.conftest import DEMO, Open, Opened, layout, opened
from workbench.domain.split import OFF_CARDS, Split, Virtual, layer_counts, n_gpu_layers_asked, place_layers
from workbench.engines.engine import Loaded
from workbench.store.models import resolve_model

THREE_CARDS = Virtual(("300MiB", "300MiB", "300MiB"))
N_LAYER = 7

SPLITS: list[dict[str, Any]] = [
    {"tensor_split": (1, 1)},
    {"tensor_split": (3, 1)},
    {"tensor_split": (0.37, 0.63)},
    {"tensor_split": (0, 1)},
    {"layers": (5, 3)},
    {"layers": (8, 0)},
    {"layers": (2, 3)},
    {"tensor_split": (1, 1), "n_gpu_layers": 5},
    {"tensor_split": (2, 1), "n_gpu_layers": 1},
    {"tensor_split": (1, 1), "n_gpu_layers": 0},
    {"tensor_split": (1, 1, 1), "cards": THREE_CARDS},
    {"tensor_split": (5, 0, 2), "cards": THREE_CARDS},
    {"layers": (1, 2, 4), "cards": THREE_CARDS},
    {"tensor_split": (1,)},
]


def asked(split: Split, n_layer: int, cards: Sequence[str]) -> tuple[str, ...]:
    """The card of each position by domain/split.py."""
    shares = split.layers or split.tensor_split
    assert not isinstance(shares, str)
    padded = (*shares, *(0,) * (len(cards) - len(shares)))
    places = place_layers(n_layer, n_gpu_layers_asked(split, n_layer), padded)
    return tuple("CPU" if place == OFF_CARDS else cards[place] for place in places)


def by_percent(split: Split, n_layer: int, cards: Sequence[str]) -> tuple[str, ...]:
    """A wrong rule: whole percents of the layers, rounded."""
    shares = split.layers or split.tensor_split
    assert not isinstance(shares, str)
    places: list[str] = []
    for card, share in zip(cards, shares, strict=False):
        places += [card] * round((n_layer + 1) * round(100 * share / sum(shares)) / 100)
    return tuple(places)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_layers_land_by_the_rule(split: dict[str, Any], tiny: Path, open_engine: Open) -> None:
    of = layout(tiny, n_ctx=256, **split)
    with open_engine(of) as it:
        cards = [card.name for card in it.loaded.cards]
        assert it.loaded.places == asked(of.split, N_LAYER, cards)
        assert tuple(card.layers for card in it.loaded.cards) == layer_counts(of.split, N_LAYER, len(cards))
        assert it.loaded.host.layers == it.loaded.places.count("CPU")
        assert {card.source for card in it.loaded.cards} == {"log"}


def test_what_landed_is_the_engines_word_and_a_wrong_rule_is_told_from_it(tiny: Path, open_engine: Open) -> None:
    of = layout(tiny, n_ctx=256, tensor_split=(0.4, 0.6))
    with open_engine(of) as it:
        cards = [card.name for card in it.loaded.cards]
        assert it.loaded.places == asked(of.split, N_LAYER, cards)
        assert it.loaded.places != by_percent(of.split, N_LAYER, cards)


def test_the_report_does_not_come_from_the_rule(
    tiny: Path, open_engine: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker whose copy of the rule is wrong reports the same places."""
    (tmp_path / "sitecustomize.py").write_text(
        "import workbench.domain.split as split\n"
        "split.place_layers = lambda n_layer, *_: (0,) * (n_layer + 1)\n"
        "split.count_layers = split.layer_counts = lambda *_: (1, 1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with open_engine(layout(tiny, n_ctx=256, layers=(5, 3))) as it:
        assert it.loaded.places == ("RPC0",) * 5 + ("RPC1",) * 3
        assert [card.layers for card in it.loaded.cards] == [5, 3]


def test_weights_are_the_tensors_of_the_layers(demo: Opened) -> None:
    """Layers 0–15 on the first card, 16–29 and the output on the second; the input embedding on the host."""
    sizes = tensor_mib(resolve_model(DEMO))
    first = sum(mib for name, mib in sizes.items() if name.startswith("blk.") and int(name.split(".")[1]) < 16)
    second = sum(mib for name, mib in sizes.items() if name.startswith("blk.") and int(name.split(".")[1]) >= 16)
    # The output is tied to the embedding here: a copy of it stands with the output layer.
    second += sizes["token_embd.weight"] + sizes["output_norm.weight"]
    assert demo.loaded.places == ("RPC0",) * 16 + ("RPC1",) * 15
    assert demo.loaded.cards[0].weights_mib == pytest.approx(first, rel=0.01)
    assert demo.loaded.cards[1].weights_mib == pytest.approx(second, rel=0.01)
    assert demo.loaded.host.weights_mib == pytest.approx(sizes["token_embd.weight"], rel=0.01)
    assert demo.loaded.cards[0].kv_mib / demo.loaded.cards[1].kv_mib == pytest.approx(16 / 14)
    assert min(card.compute_mib for card in demo.loaded.cards) > 0


@functools.cache
def tensor_mib(path: Path) -> dict[str, float]:
    return {tensor.name: int(tensor.n_bytes) / 2**20 for tensor in gguf.GGUFReader(path).tensors}


@pytest.fixture(scope="module")
def tensor_mode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    of = layout(n_ctx=512, split_mode="tensor", tensor_split=(3, 1))
    with opened(of, tmp_path_factory.mktemp("tensor") / "engine.log") as it:
        yield it.loaded


def test_tensor_mode_is_measured_at_each_cards_process(tensor_mode: Loaded) -> None:
    assert tensor_mode.places == ()
    assert [(card.source, card.layers) for card in tensor_mode.cards] == [("process", None)] * 2
    first, second = tensor_mode.cards
    assert first.weights_mib > 1.5 * second.weights_mib > 0
    assert first.kv_mib > 1.5 * second.kv_mib > 0
    # What is split is there once; what is replicated is on both.
    sizes = tensor_mib(resolve_model(DEMO))
    whole = sum(sizes.values())
    assert whole * 0.95 < first.weights_mib + second.weights_mib < whole * 1.6
    assert min(first.compute_mib, second.compute_mib) > 0


def test_tensor_mode_without_a_second_context_counts_the_first_once(tiny: Path, open_engine: Open) -> None:
    of = layout(tiny, n_ctx=256, split_mode="tensor", tensor_split=(1, 1))
    with open_engine(of) as it:
        context = of.context
        again = it.engine.new_context(context)
        assert [card.kv_mib for card in again.cards] == [card.kv_mib for card in it.loaded.cards]
        assert [card.weights_mib for card in again.cards] == [card.weights_mib for card in it.loaded.cards]
