"""How cards reach each other: pairwise facts laid out as a matrix."""

from collections.abc import Mapping, Sequence

import msgspec

from workbench.domain.card import Card, CardKind

LEVELS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's common ancestors, as nvidia-smi writes them."""
_SHOWN = 3
"""So many pairs are named with a reason."""
MEANINGS = {
    "same board": "one board",
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "through a PCIe host bridge, the CPU's",
    "NODE": "between host bridges of one NUMA node",
    "SYS": "between NUMA nodes",
    "NV#": "so many NVLinks",
    "same GPU": "two parts of one GPU",
    "PCIe": "card and host",
    "host": "through the host's memory and loopback",
    "net": "through the network",
    "?": "nobody knows",
}


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says of two GPUs, which are named by their PCI bus ids.

    `ancestor` is a key of `LEVELS`. `nvlinks` counts the links between them, or of either to a
    switch (`switched`). `peer` says whether they may read each other's memory; `refusal` why not.
    """

    first: str
    second: str
    ancestor: int | None = None
    nvlinks: int = 0
    switched: bool = False
    peer: bool | None = None
    refusal: str = ""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of cards: how they are joined, and whether peer to peer is allowed (None: no such question)."""

    joint: str
    peer: bool | None = None
    refusal: str = ""

    def text(self) -> str:
        """`NV18 ✓`, `SYS ✗`, `host`."""
        return self.joint if self.peer is None else f"{self.joint} {'✓' if self.peer else '✗'}"


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """Row and column `i` are of card `names[i]`; the diagonal is None."""

    names: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]

    def legend(self) -> tuple[tuple[str, str], ...]:
        """(joint, meaning) of every joint that occurs."""
        seen = {cell.joint for row in self.cells for cell in row if cell is not None}
        seen = {"NV#" if joint.startswith("NV") else joint for joint in seen}
        return tuple((joint, meaning) for joint, meaning in MEANINGS.items() if joint in seen)

    def refusals(self) -> tuple[str, ...]:
        """Why pairs may not read each other's memory, each reason with its pairs."""
        by_reason: dict[str, list[str]] = {}
        for row, name in enumerate(self.names):
            for column in range(row + 1, len(self.names)):
                cell = self.cells[row][column]
                if cell is not None and cell.peer is False:
                    by_reason.setdefault(cell.refusal or "not told why", []).append(f"{name}–{self.names[column]}")
        return tuple(f"{reason}: {_some(pairs)}" for reason, pairs in by_reason.items())


def lay_out(cards: Sequence[Card], pairs: Sequence[Pair]) -> Topology:
    """The matrix of all cards: GPUs by the driver's facts, virtual and remote ones by what they are."""
    facts: dict[frozenset[str], Pair] = {frozenset((pair.first, pair.second)): pair for pair in pairs}
    rows = tuple(
        tuple(None if one is other else _cell(one, other, facts) for other in cards) for one in cards
    )
    return Topology(names=tuple(card.name for card in cards), cells=rows)


def _cell(one: Card, other: Card, facts: Mapping[frozenset[str], Pair]) -> Cell:
    kinds = {one.kind, other.kind}
    if CardKind.RPC in kinds:
        return Cell(joint="net")
    if CardKind.VIRTUAL in kinds:
        return Cell(joint="host")
    if CardKind.CPU in kinds:
        return Cell(joint="PCIe" if kinds & {CardKind.CUDA, CardKind.GPU} else "host")
    if one.pci_bus_id is None or other.pci_bus_id is None:
        return Cell(joint="?")
    if one.pci_bus_id == other.pci_bus_id:
        return Cell(joint="same GPU")
    pair = facts.get(frozenset((one.pci_bus_id, other.pci_bus_id)))
    if pair is None:
        return Cell(joint="?")
    joint = f"NV{pair.nvlinks}" if pair.nvlinks else LEVELS.get(pair.ancestor if pair.ancestor is not None else -1, "?")
    return Cell(joint=joint, peer=pair.peer, refusal=pair.refusal)


def _some(pairs: Sequence[str]) -> str:
    shown = ", ".join(pairs[:_SHOWN])
    return shown if len(pairs) <= _SHOWN else f"{shown} and {len(pairs) - _SHOWN} more"
