"""What the meters read, at one moment. Unknown figures are None, never 0."""

import msgspec


class CardSample(msgspec.Struct, frozen=True, kw_only=True):
    """One card. Sizes in MiB, power in W, temperature in °C, clock in MHz; `throttle` says why it is slowed.

    `used_mib` leaves out `reserved_mib`, what the driver keeps for itself; `ours_mib` is what
    our own processes hold there. `utilisation` is 0 … 100: of a GPU the time in which a kernel
    ran, of a virtual card its process's share of all cores. `lost` says that the card, or the
    process behind it, is gone.
    """

    name: str
    lost: bool = False
    total_mib: float | None = None
    used_mib: float | None = None
    reserved_mib: float | None = None
    ours_mib: float | None = None
    utilisation: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    throttle: tuple[str, ...] | None = None

    @property
    def free_mib(self) -> float | None:
        """What can still be allocated, never negative; None if unknown."""
        if self.total_mib is None or self.used_mib is None:
            return None
        return max(0.0, self.total_mib - self.used_mib - (self.reserved_mib or 0.0))


class HostSample(msgspec.Struct, frozen=True, kw_only=True):
    """The machine itself: CPU use 0 … 100 over all cores, memory in MiB."""

    cpu_percent: float | None
    total_mib: float
    available_mib: float


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All cards that are watched, in their order. `at` is monotonic seconds."""

    at: float
    cards: tuple[CardSample, ...]
    host: HostSample
