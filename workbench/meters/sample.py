"""What the meters read, at one moment. Unknown figures are None, never 0."""

import msgspec


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds memory on a card; `mib` None where the driver does not tell.

    `pid` is the host's. `name` is None where it cannot be looked up, as in a container.
    """

    pid: int
    name: str | None = None
    mib: float | None = None


class Pcie(msgspec.Struct, frozen=True, kw_only=True):
    """The card's PCIe link now and at its best, and what goes over it in MiB/s, seen from the card."""

    generation: int | None = None
    max_generation: int | None = None
    width: int | None = None
    max_width: int | None = None
    sent_mib_s: float | None = None
    received_mib_s: float | None = None


class NvLink(msgspec.Struct, frozen=True, kw_only=True):
    """The card's active NVLinks together; `switched` if they lead to a switch. Traffic in MiB/s."""

    links: int
    version: str | None = None
    switched: bool = False
    sent_mib_s: float | None = None
    received_mib_s: float | None = None


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance of a card; it reports memory (MiB), but no utilisation."""

    index: int
    name: str | None = None
    uuid: str | None = None
    total_mib: float | None = None
    used_mib: float | None = None


class CardSample(msgspec.Struct, frozen=True, kw_only=True):
    """One card. Sizes in MiB, power in W, temperature in °C, clocks in MHz; `throttle` says why it is slowed.

    `used_mib` leaves out `reserved_mib`, what the driver keeps for itself; `ours_mib` is what
    our own processes hold there, `processes` is everyone. Percentages are 0 … 100:
    `utilisation` is of a GPU the time in which a kernel ran, of a virtual card its process's
    share of all cores; `dram_percent` is the memory bandwidth in use, `tensor_percent` the time
    in which tensor cores worked. `energy_j` is a counter, read at `energy_at` (monotonic
    seconds). `ecc_errors` are (corrected, uncorrected) since the driver started. `unified`
    marks a card that shares the host's memory.

    `lost` says that the card, or the process behind it, is gone; `asleep` that it is powered
    down and was left so.
    """

    name: str
    lost: bool = False
    asleep: bool = False
    unified: bool = False
    total_mib: float | None = None
    used_mib: float | None = None
    reserved_mib: float | None = None
    ours_mib: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    utilisation: float | None = None
    dram_percent: float | None = None
    tensor_percent: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle: tuple[str, ...] | None = None
    energy_j: float | None = None
    energy_at: float | None = None
    pcie: Pcie = Pcie()
    nvlink: NvLink | None = None
    ecc_errors: tuple[int, int] | None = None
    slices: tuple[Slice, ...] = ()

    @property
    def free_mib(self) -> float | None:
        """What can still be allocated, never negative; None if unknown."""
        if self.total_mib is None or self.used_mib is None:
            return None
        return max(0.0, self.total_mib - self.used_mib - (self.reserved_mib or 0.0))


class HostSample(msgspec.Struct, frozen=True, kw_only=True):
    """The machine itself: CPU use 0 … 100 over all cores, memory in MiB, what its disks read in MiB/s.

    `cached` is the part, 0 … 1, of the model's file that lies in the page cache.
    `engine_cores` is how many cores the engine's own process keeps busy, virtual cards apart.
    """

    cpu_percent: float | None
    total_mib: float
    available_mib: float
    cached: float | None = None
    disk_read_mib_s: float | None = None
    engine_cores: float | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All cards that are watched, in their order. `at` is monotonic seconds.

    `mark` is the number of the last mark that was asked for before these figures were read.
    `missing` says why NVML is not there.
    """

    at: float
    cards: tuple[CardSample, ...]
    host: HostSample
    mark: int = 0
    missing: str | None = None
