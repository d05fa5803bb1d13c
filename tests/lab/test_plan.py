import msgspec
import psutil
import pytest

from workbench.domain.card import Card, CardKind
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split, Virtual
from workbench.engines.engine import LoadFailed
from workbench.lab.plan import cores, find_card, plan_load

CARDS = (
    Card(name="CUDA0", kind=CardKind.CUDA, pci_bus_id="0000:c1:00.0", uuid="GPU-AA", free_mib=100),
    Card(name="CUDA1", kind=CardKind.CUDA, pci_bus_id="0000:41:00.0", uuid="GPU-BB", free_mib=200),
    Card(name="CPU", kind=CardKind.CPU),
)


def layout(split: Split, **context: object) -> Layout:
    return Layout(name="test", model="m.gguf", split=split, context=msgspec.convert(context, Context))


def refused(split: Split, cards: tuple[Card, ...] = CARDS, **context: object) -> LoadFailed:
    with pytest.raises(LoadFailed) as caught:
        plan_load(layout(split, **context), "m.gguf", lambda: cards)
    return caught.value


def never_asked() -> tuple[Card, ...]:
    raise AssertionError("the machine's cards are asked for")


def test_every_gpu_in_the_machines_order_unless_the_split_names_some() -> None:
    load = plan_load(layout(Split()), "m.gguf", lambda: CARDS)
    assert [(card.name, card.device, card.free_mib) for card in load.cards] == [
        ("CUDA0", "CUDA0", 100), ("CUDA1", "CUDA1", 200),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["CUDA1", "cuda1", "0000:41:00.0", "00000000:41:00.0", "41:00.0", "GPU-bb"])
def test_a_card_is_found_by_name_bus_id_and_uuid(name: str) -> None:
    assert find_card(name, CARDS) is CARDS[1]


def test_the_order_of_cards_is_the_splits() -> None:
    load = plan_load(layout(Split(cards=("GPU-BB", "0000:c1:00.0"))), "m.gguf", lambda: CARDS)
    assert [card.device for card in load.cards] == ["CUDA1", "CUDA0"]


def test_virtual_and_remote_cards_ask_nothing_of_the_machine() -> None:
    virtual = plan_load(layout(Split(cards=Virtual(("600MiB", "1GiB")))), "m.gguf", never_asked)
    assert [(card.name, card.virtual_mib) for card in virtual.cards] == [("RPC0", 600), ("RPC1", 1024)]
    remote = plan_load(layout(Split(cards=("rpc://a:1", "rpc://b:2"))), "m.gguf", never_asked)
    assert [(card.name, card.endpoint) for card in remote.cards] == [("RPC0", "a:1"), ("RPC1", "b:2")]
    assert plan_load(layout(Split(cards=("CPU",))), "m.gguf", never_asked).cards == ()


def test_virtual_cards_share_the_cores_with_those_that_live_beside() -> None:
    two = Split(cards=Virtual(("600MiB", "600MiB")))
    assert plan_load(layout(two), "m", never_asked).card_threads == max(1, cores() // 2)
    assert plan_load(layout(two), "m", never_asked, beside=2).card_threads == max(1, cores() // 4)
    assert plan_load(layout(Split(cards=Virtual(("600MiB",)))), "m", never_asked).card_threads == cores()


def test_virtual_cards_beyond_the_hosts_memory() -> None:
    host = psutil.virtual_memory().total / 2**20
    error = refused(Split(cards=Virtual((f"{host / 2 + 1:.0f}MiB",) * 2)))
    assert (error.key, error.free_mib) == ("split.cards.virtual", host)


@pytest.mark.parametrize(
    ("split", "key", "says"),
    [
        (Split(cards=("CUDA7",)), "split.cards[0]", "there are: CUDA0, CUDA1, CPU"),
        (Split(cards=("CUDA0", "CPU")), "split.cards[1]", "CPU stands alone"),
        (Split(split_mode="none", main_gpu=2), "split.main_gpu", "main_gpu 2 is out of range"),
        (Split(tensor_split=(1, 1, 1)), "split.tensor_split", "3 shares, but there are 2 cards"),
        (Split(layers=(0, 0)), "split.layers", "puts no layer on any card"),
        (Split(split_mode="row"), "split.split_mode", "row does not work on CUDA0"),
        (Split(split_mode="row", cards=("rpc://a:1",)), "split.split_mode", "row does not work on RPC0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_split_that_the_cards_cannot_do_names_the_key(split: Split, key: str, says: str) -> None:
    error = refused(split)
    assert error.key == key
    assert says in error.reason


def test_context_settings_that_contradict_name_the_key() -> None:
    assert refused(Split(), type_v="q8_0", flash_attn=False).key == "context.type_v"
    assert refused(Split(split_mode="tensor"), flash_attn=False).key == "context.flash_attn"


def test_shares_without_any_gpu_are_no_silent_load_on_the_cpu() -> None:
    error = refused(Split(tensor_split=(3, 1)), cards=CARDS[2:])
    assert error.key == "split.cards"
    assert "no GPU here" in error.reason
    assert plan_load(layout(Split()), "m.gguf", lambda: CARDS[2:]).cards == ()
