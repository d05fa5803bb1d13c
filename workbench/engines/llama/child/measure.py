"""What each card holds after a load, by the log's word or by the card's own process."""

import time
from collections.abc import Sequence

from workbench.domain.memory import CardMemory
from workbench.engines.llama.child import native
from workbench.engines.llama.child.cards import VirtualCard
from workbench.engines.llama.child.loadlog import Kind, LoadLog

META = "Meta()"
"""The log's name for all cards of tensor mode together; its figures are the largest card's."""


class UsedCard:
    """A card of this load: its name, llama.cpp's device, and its process if it is virtual."""

    def __init__(self, name: str, device: int, endpoint: str | None = None, virtual: VirtualCard | None = None) -> None:
        self.name = name
        self.device = device
        self.device_name = native.device_name(device)
        self.endpoint = endpoint
        self.virtual = virtual

    def owns(self, buffer: str) -> bool:
        """Whether a buffer name of the log (`CUDA0`, `RPC0[host:port]`) is this card's.

        The log calls the first device of every RPC server RPC0; the endpoint tells them apart.
        """
        return f"[{self.endpoint}]" in buffer if self.endpoint else buffer == self.device_name

    def free_mib(self) -> float:
        """What it can still hold, in MiB. On CUDA this makes a context on the card."""
        if self.virtual is not None:
            return self.virtual.size_mib - self.virtual.live_mib(0, time.monotonic_ns())
        return native.device_memory_mib(self.device)[0]


class ProcessMeter:
    """Measures each card at the joints of a load: by its ledger of buffers, else by its free memory."""

    def __init__(self, cards: Sequence[UsedCard]) -> None:
        self._cards = cards
        self._at_ns: dict[str, int] = {}
        self._free: dict[str, list[float]] = {}

    def mark(self, joint: str) -> None:
        """Note the state at `start`, `weights`, `kv` (again and again: the last counts) and `end`."""
        self._at_ns[joint] = time.monotonic_ns()
        self._free[joint] = [0.0 if card.virtual else native.device_memory_mib(card.device)[0] for card in self._cards]

    def read(self, log: LoadLog) -> tuple[CardMemory, ...]:
        """Weights, KV and compute of each card, from the marks.

        A card's free memory also falls by what the driver and NCCL take on the way, the same on
        each card: what the largest card took beyond the log's figure for it, which is left out.
        """
        largest = meta_mib(log)
        taken = {kind: [self._between(i, card, kind) for i, card in enumerate(self._cards)] for kind in largest}
        driver = {kind: max(0.0, max(mib) - largest[kind]) for kind, mib in taken.items()}
        weights, kv, compute = (
            [mib if card.virtual else max(0.0, mib - driver[kind]) for card, mib in zip(self._cards, mibs, strict=True)]
            for kind, mibs in taken.items()
        )
        return tuple(
            CardMemory(name=card.name, weights_mib=weights[i], kv_mib=kv[i], compute_mib=compute[i], source="process")
            for i, card in enumerate(self._cards)
        )

    def _between(self, i: int, card: UsedCard, kind: Kind) -> float:
        first, last = _JOINTS[kind]
        if card.virtual is not None:
            return card.virtual.live_mib(self._at_ns[first], self._at_ns[last])
        return max(0.0, self._free[first][i] - self._free[last][i])


_JOINTS: dict[Kind, tuple[str, str]] = {
    "weights": ("start", "weights"),
    "kv": ("weights", "kv"),
    "compute": ("kv", "end"),
}


def meta_mib(log: LoadLog) -> dict[Kind, float]:
    """What the log says of the largest card in tensor mode, by kind."""
    sums: dict[Kind, float] = {"weights": 0.0, "kv": 0.0, "compute": 0.0}
    for buffer, kind, mib in log.buffers:
        if buffer == META:
            sums[kind] += mib
    return sums


def read_log(log: LoadLog, cards: Sequence[UsedCard]) -> tuple[tuple[CardMemory, ...], CardMemory]:
    """Each card's memory and the host's, from the log's buffer lines and assignment lines."""
    sums: dict[str, dict[Kind, float]] = {}
    for buffer, kind, mib in log.buffers:
        if buffer == META:
            continue
        owner = next((card.name for card in cards if card.owns(buffer)), native.HOST)
        kinds = sums.setdefault(owner, {})
        kinds[kind] = kinds.get(kind, 0.0) + mib
    landed = [place for _, place in sorted(log.places.items())]
    on_cards = {card.device_name for card in cards} | {META}

    def memory(name: str, layers: int) -> CardMemory:
        kinds = sums.get(name, {})
        return CardMemory(
            name=name,
            weights_mib=round(kinds.get("weights", 0.0), 2),
            kv_mib=round(kinds.get("kv", 0.0), 2),
            compute_mib=round(kinds.get("compute", 0.0), 2),
            layers=layers,
        )

    return (
        tuple(memory(card.name, landed.count(card.device_name)) for card in cards),
        memory(native.HOST, sum(1 for place in landed if place not in on_cards)),
    )
