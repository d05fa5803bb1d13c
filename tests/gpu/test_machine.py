"""Cards of this machine under other names, behind a server, and with their memory in other hands."""

import pytest

from tests.benchmarks.gpu.rpc_server import serving
from tests.benchmarks.gpu.taker import Taker
from tests.gpu.conftest import MakeLayout, used_mib
from tests.gpu.test_engine import ask, opened
from workbench.domain.card import Card, CardKind
from workbench.domain.split import count_layers, place_layers
from workbench.engines.engine import LoadFailed
from workbench.lab.cards import inventory

N_CTX = 262144
"""Tokens whose KV takes more of a card than any driver's context, also of a tiny model."""


def test_a_card_that_is_made_visible_by_its_uuid_is_the_first_and_the_only_one(cuda_cards: tuple[Card, ...]) -> None:
    last = cuda_cards[-1]
    seen = [card for card in inventory({"CUDA_VISIBLE_DEVICES": last.uuid}).cards if card.kind is CardKind.CUDA]
    assert [(card.name, card.uuid, card.smi_index) for card in seen] == [("CUDA0", last.uuid, last.smi_index)]


def test_a_card_behind_an_rpc_server_of_this_machine_holds_its_half(
    layout: MakeLayout, cuda_env: dict[str, str | None]
) -> None:
    before = sum(used_mib())
    with (
        serving("CUDA1", cuda_env) as (endpoint, _),
        opened(layout(cards=("CUDA0", f"rpc://{endpoint}"))) as (engine, loaded),
    ):
        n, (first, second) = loaded.model.n_layer, loaded.cards
        assert (first.name, second.name) == ("CUDA0", "RPC0")
        assert (first.layers, second.layers) == count_layers(place_layers(n, n + 1, (1, 1)), 2)
        assert ask(engine, "Name a river.").stop_reason == "max_tokens"
        assert sum(used_mib()) - before > sum(card.total_mib for card in loaded.cards) - 1


def test_memory_that_another_process_holds_is_missed_with_card_and_size(
    layout: MakeLayout, cuda_cards: tuple[Card, ...]
) -> None:
    wanted = layout(n_ctx=N_CTX)
    with opened(wanted) as (_, loaded):
        kv_mib = loaded.cards[-1].kv_mib
    last = cuda_cards[1]
    with Taker(last.pci_bus_id or "") as taker:
        context_mib = 700.0
        left = taker.leave(context_mib + kv_mib / 2)
        with pytest.raises(LoadFailed) as caught, opened(wanted):
            pass
        assert left < context_mib + kv_mib
        assert caught.value.card in ("CUDA0", "CUDA1")
        assert (caught.value.wanted_mib or 0) > (caught.value.free_mib or 0)
        taker.give_back()
        with opened(wanted) as (engine, _):
            assert ask(engine, "Name a lake.").stop_reason == "max_tokens"
