"""Ring buffers of what was read: ten minutes of each card's figures."""

import math
from array import array
from collections.abc import Sequence

from workbench.meters.sample import CardSample, Snapshot

MINUTES = 10
_PER_SECOND = 2
FIGURES = (
    "utilisation",
    "used_mib",
    "power_w",
    "temperature_c",
    "sm_clock_mhz",
    "dram_percent",
    "tensor_percent",
)
"""What is kept of a card, beside its links' traffic: `pcie_mib_s` and `nvlink_mib_s`, both ways together."""
_LINKS = ("pcie_mib_s", "nvlink_mib_s")


class Ring:
    """The last `size` (time, value) pairs; NaN stands for unknown."""

    def __init__(self, size: int) -> None:
        self._times = array("d", [0.0]) * size
        self._values = array("f", [math.nan]) * size
        self._size = size
        self._count = 0

    def append(self, at: float, value: float | None) -> None:
        """Add one, over the oldest if it is full."""
        place = self._count % self._size
        self._times[place], self._values[place] = at, math.nan if value is None else value
        self._count += 1

    def tail(self, count: int) -> tuple[float | None, ...]:
        """The last values, oldest first."""
        first = max(0, self._count - min(count, self._size))
        return tuple(_known(self._values[place % self._size]) for place in range(first, self._count))

    def since(self, at: float) -> list[tuple[float, float | None]]:
        """All pairs from that time on, oldest first."""
        first = max(0, self._count - self._size)
        places = (place % self._size for place in range(first, self._count))
        return [(self._times[p], _known(self._values[p])) for p in places if self._times[p] >= at]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


class History:
    """Each card's rings by name; a card that is watched no longer is forgotten when it is dropped."""

    def __init__(self, seconds: float = MINUTES * 60, per_second: float = _PER_SECOND) -> None:
        self._size = max(2, round(seconds * per_second))
        self._rings: dict[str, dict[str, Ring]] = {}
        self.latest: dict[str, CardSample] = {}
        self.at = 0.0

    def add(self, snapshot: Snapshot) -> None:
        """Keep what was read."""
        self.at = snapshot.at
        for sample in snapshot.cards:
            self.latest[sample.name] = sample
            rings = self._rings.setdefault(sample.name, {name: Ring(self._size) for name in (*FIGURES, *_LINKS)})
            for name in FIGURES:
                rings[name].append(snapshot.at, getattr(sample, name))
            rings["pcie_mib_s"].append(snapshot.at, both_ways(sample.pcie.sent_mib_s, sample.pcie.received_mib_s))
            link = sample.nvlink
            rings["nvlink_mib_s"].append(
                snapshot.at, None if link is None else both_ways(link.sent_mib_s, link.received_mib_s)
            )

    def tail(self, card: str, figure: str, count: int) -> tuple[float | None, ...]:
        """The last values of a figure, oldest first; empty for a card that was never read."""
        rings = self._rings.get(card)
        return rings[figure].tail(count) if rings else ()

    def since(self, card: str, figure: str, seconds: float) -> list[tuple[float, float | None]]:
        """(seconds before the last reading, as a negative number; value) pairs, oldest first."""
        rings = self._rings.get(card)
        found: Sequence[tuple[float, float | None]] = rings[figure].since(self.at - seconds) if rings else ()
        return [(at - self.at, value) for at, value in found]

    def keep(self, names: set[str]) -> None:
        """Forget all other cards."""
        for name in self._rings.keys() - names:
            del self._rings[name]
            self.latest.pop(name, None)


def both_ways(sent: float | None, received: float | None) -> float | None:
    """Traffic in both directions together; None if either is unknown."""
    return None if sent is None or received is None else sent + received
