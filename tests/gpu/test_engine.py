"""The engine on CUDA cards: names, placement, memory, state, and what happens when memory ends."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gpu.conftest import MakeLayout, used_mib
from tests.waiting import wait_until
from workbench.domain.card import Card
from workbench.domain.conversation import Message, Sampling
from workbench.domain.layout import Layout
from workbench.domain.split import place_layers
from workbench.engines.engine import Engine, EngineDied, Loaded, LoadFailed, Reply, Request
from workbench.lab.kit import RealKit

SAID = ("Write about rivers. " * 20, "and then about lakes")


@contextmanager
def opened(layout: Layout) -> Iterator[tuple[Engine, Loaded]]:
    kit = RealKit()
    engine = kit.open_engine(layout, lambda error: None)
    kit.close()
    try:
        yield engine, engine.load(lambda progress: None)
    finally:
        engine.close()


def ask(engine: Engine, *said: str, max_tokens: int = 24) -> Reply:
    messages = tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(said))
    sampling = Sampling(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return engine.chat(Request(messages=messages, sampling=sampling), lambda text: None)


def test_cards_have_names_numbers_and_identities(cuda_cards: tuple[Card, ...]) -> None:
    assert len(cuda_cards) >= 2
    for i, card in enumerate(cuda_cards):
        assert card.name == f"CUDA{i}"
        assert card.smi_index is not None
        assert re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0", card.pci_bus_id or "")
        assert (card.uuid or "").startswith("GPU-")
        assert card.total_mib is not None
        assert card.free_mib is not None
        assert 0 < card.free_mib <= card.total_mib


@pytest.mark.parametrize("shares", [(1.0, 1.0), (3.0, 1.0), (0.0, 1.0)])
def test_layers_land_where_the_split_puts_them(layout: MakeLayout, shares: tuple[float, ...]) -> None:
    with opened(layout(tensor_split=shares)) as (_, loaded):
        n_layer = loaded.model.n_layer
        places = place_layers(n_layer, n_layer + 1, shares)
        assert loaded.places == tuple(f"CUDA{place}" for place in places)


def test_the_driver_sees_what_the_load_reports(layout: MakeLayout) -> None:
    before = sum(used_mib())
    with opened(layout(n_ctx=32768)) as (_, loaded):
        grown = sum(used_mib()) - before
        reported = sum(card.total_mib for card in loaded.cards)
        contexts = 1200 * len(used_mib())
        assert reported <= grown + 1
        assert grown <= reported + contexts


def test_in_tensor_mode_each_card_is_measured_by_itself(layout: MakeLayout) -> None:
    with opened(layout(split_mode="tensor", n_ctx=8192)) as (_, loaded):
        assert [card.source for card in loaded.cards] == ["process", "process"]
        assert all(card.layers is None for card in loaded.cards)
        assert all(card.total_mib > 0 for card in loaded.cards)
        first, second = loaded.cards
        for kind in ("weights_mib", "kv_mib", "compute_mib"):
            assert getattr(first, kind) == pytest.approx(getattr(second, kind), rel=0.03, abs=8)


def test_row_mode_is_refused_with_the_reason(layout: MakeLayout) -> None:
    with pytest.raises(LoadFailed, match="cannot hold rows"), opened(layout(split_mode="row")):
        pass


@pytest.mark.parametrize(("mode", "shares"), [("layer", (1.0, 3.0)), ("tensor", (1.0, 1.0)), ("none", (1.0,))])
def test_the_state_reads_back_byte_for_byte(
    layout: MakeLayout, tmp_path: Path, mode: str, shares: tuple[float, ...]
) -> None:
    context = {"flash_attn": True}
    with opened(layout(context=context)) as (engine, _):
        ask(engine, SAID[0])
        state = engine.save_state(tmp_path / "first")
    with opened(layout(context=context, split_mode=mode, tensor_split=shares)) as (engine, _):
        engine.restore_state(state)
        engine.save_state(tmp_path / "second")
        assert (tmp_path / "second").read_bytes() == (tmp_path / "first").read_bytes()


def test_a_conversation_goes_on_after_a_change_of_layers_as_if_there_was_none(
    layout: MakeLayout, tmp_path: Path
) -> None:
    context = {"flash_attn": True}
    with opened(layout(context=context)) as (engine, _):
        first = ask(engine, SAID[0])
        state = engine.save_state(tmp_path / "state")
        undisturbed = ask(engine, SAID[0], first.text, SAID[1])
    with opened(layout(context=context, tensor_split=(1.0, 3.0))) as (engine, _):
        engine.restore_state(state)
        carried = ask(engine, SAID[0], first.text, SAID[1])
    assert carried.text == undisturbed.text
    assert carried.timing.evaluated_tokens == undisturbed.timing.evaluated_tokens
    assert carried.timing.evaluated_tokens < carried.timing.prompt_tokens


BEYOND = 16_000_000
"""Tokens of context that no card holds."""


def test_memory_that_ends_in_layer_mode_names_card_and_size(layout: MakeLayout) -> None:
    with pytest.raises(LoadFailed) as caught, opened(layout(n_ctx=BEYOND)):
        pass
    assert caught.value.card in ("CUDA0", "CUDA1")
    assert caught.value.wanted_mib is not None
    assert caught.value.wanted_mib > 1000


def test_memory_that_ends_in_tensor_mode_is_a_death_with_card_and_size(layout: MakeLayout) -> None:
    with pytest.raises((EngineDied, LoadFailed)) as caught, opened(layout(n_ctx=BEYOND, split_mode="tensor")):
        pass
    assert caught.value.card in ("CUDA0", "CUDA1")
    assert caught.value.wanted_mib is not None


def test_memory_is_back_when_the_engine_is_closed_and_a_spare_holds_none(layout: MakeLayout) -> None:
    before = used_mib()
    kit = RealKit()
    engine = kit.open_engine(layout(), lambda error: None)
    try:
        time.sleep(2)  # the spare has been imported by now
        assert max(after - there for after, there in zip(used_mib(), before, strict=True)) < 8
        engine.load(lambda progress: None)
        assert max(after - there for after, there in zip(used_mib(), before, strict=True)) > 100
    finally:
        engine.close()
        kit.close()
    wait_until(lambda: max(after - there for after, there in zip(used_mib(), before, strict=True)) < 8)


def test_a_cancel_stops_a_long_prefill(layout: MakeLayout) -> None:
    with opened(layout(n_ctx=16384)) as (engine, _):
        begun = time.monotonic()
        ask(engine, "rivers and lakes " * 600, max_tokens=1)
        whole = time.monotonic() - begun
        threading.Timer(whole / 10, engine.cancel).start()
        begun = time.monotonic()
        reply = ask(engine, "seas and oceans " * 600, max_tokens=1)
        assert reply.stop_reason == "cancelled"
        assert time.monotonic() - begun < whole
        assert ask(engine, "Go on.").stop_reason == "max_tokens"
