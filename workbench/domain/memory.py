"""Memory of a loaded model, per card and kind."""

from typing import Literal

import msgspec

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
