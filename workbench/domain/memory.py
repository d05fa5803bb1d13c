"""Memory of a loaded model, per card and kind."""

from typing import Literal

import msgspec

from workbench.domain.card import format_mib

Source = Literal["log", "process", "server"]


class CardMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one card holds, in MiB, and how many of the n_layer + 1 positions.

    `layers` comes from the engine's own assignment lines and is None in tensor mode, where
    every card holds a part of each layer. `source` says who measured: the engine's log, the
    memory of the card's process, or a server, which tells no kinds: all is under weights.
    """

    name: str
    weights_mib: float
    kv_mib: float
    compute_mib: float
    layers: int | None = None
    source: Source = "log"

    @property
    def total_mib(self) -> float:
        """Weights, KV and compute together."""
        return self.weights_mib + self.kv_mib + self.compute_mib


def with_sizes(reason: str, card: str | None, wanted_mib: float | None, free_mib: float | None) -> str:
    """A reason, with its card, what was wanted of it and what was free there, unless it says so itself."""
    text = reason if card is None or card in reason else f"{card}: {reason}"
    named = ((wanted_mib, "wanted"), (free_mib, "free"))
    sizes = [(format_mib(max(0.0, size)), word) for size, word in named if size is not None]
    unsaid = [f"{size} {word}" for size, word in sizes if size not in reason]
    return f"{text} ({', '.join(unsaid)})" if unsaid else text
