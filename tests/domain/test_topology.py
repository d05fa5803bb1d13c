"""The matrix of all pairs of cards."""

from typing import Any

from workbench.domain.card import Card, CardKind
from workbench.domain.topology import Pair, lay_out


def gpu(number: int) -> Card:
    return Card(name=f"CUDA{number}", kind=CardKind.CUDA, pci_bus_id=f"0000:0{number}:00.0")


def joints(cards: list[Card], *pairs: Pair) -> list[list[str]]:
    return [["" if cell is None else cell.text() for cell in row] for row in lay_out(cards, pairs).cells]


def pair(first: int, second: int, ancestor: int | None = 50, **more: Any) -> Pair:
    return Pair(first=f"0000:0{first}:00.0", second=f"0000:0{second}:00.0", ancestor=ancestor, **more)


def test_every_kind_of_joint() -> None:
    cards = [gpu(0), gpu(1), gpu(2)]
    found = joints(
        cards,
        pair(0, 1, 10, nvlinks=4, peer=True),
        pair(0, 2, 50, peer=False, refusal="the chipset does not support it"),
        pair(1, 2, 30),
    )
    assert found == [["", "NV4 ✓", "SYS ✗"], ["NV4 ✓", "", "PHB"], ["SYS ✗", "PHB", ""]]


def test_what_the_words_mean_and_why_pairs_are_refused() -> None:
    refused: dict[str, Any] = {"peer": False, "refusal": "the chipset does not support it"}
    topology = lay_out([gpu(0), gpu(1), gpu(2)], [pair(0, 1, **refused), pair(0, 2, **refused), pair(1, 2, nvlinks=18)])
    assert dict(topology.legend()).keys() == {"SYS", "NV#"}
    assert topology.refusals() == ("the chipset does not support it: CUDA0–CUDA1, CUDA0–CUDA2",)


def test_virtual_and_remote_cards_and_the_cpu_have_their_place() -> None:
    virtual = [Card(name=f"RPC{i}", kind=CardKind.VIRTUAL) for i in range(2)]
    remote = Card(name="RPC2", kind=CardKind.RPC)
    cpu = Card(name="CPU", kind=CardKind.CPU)
    assert joints([*virtual, remote, gpu(0), cpu]) == [
        ["", "host", "net", "host", "host"],
        ["host", "", "net", "host", "host"],
        ["net", "net", "", "net", "net"],
        ["host", "host", "net", "", "PCIe"],
        ["host", "host", "net", "PCIe", ""],
    ]


def test_two_parts_of_one_gpu_and_cards_that_nobody_knows() -> None:
    half = Card(name="CUDA9", kind=CardKind.CUDA, pci_bus_id="0000:00:00.0", parts=2)
    vulkan = Card(name="Vulkan0", kind=CardKind.GPU)
    assert joints([gpu(0), half, vulkan]) == [["", "same GPU", "?"], ["same GPU", "", "?"], ["?", "?", ""]]
    assert joints([gpu(0), gpu(1)], pair(0, 1, None)) == [["", "?"], ["?", ""]]
