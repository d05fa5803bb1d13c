"""NVIDIA cards through NVML; the only place that imports its binding.

Every metric may be missing on some card, driver or container, so a missing one is None and
is not asked for again. A card that is lost is reported as lost and left alone; the others go on.
"""

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from workbench.domain.card import pci_key
from workbench.meters.sample import CardSample

_MIB = 2**20
_NOT_AVAILABLE = 2**64 - 1
_THROTTLE = {
    0x2: "clocks set by hand",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""NVML's reasons for a lower clock; that a card is idle is none."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A card as NVML names it; `index` is nvidia-smi's number, `pci_bus_id` in lower case."""

    index: int
    pci_bus_id: str
    uuid: str | None = None
    name: str | None = None


class Nvml:
    """An open NVML. Without a driver it has no cards, and `missing` says why. `driver` is its version."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._handles: dict[tuple[int, int, int], Any] = {}
        self._never: set[tuple[int, int, int, str]] = set()
        self._lost: set[tuple[int, int, int]] = set()
        self.gpus: tuple[Gpu, ...] = ()
        self.missing: str | None = None
        self.driver: str | None = None
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.missing = _reason(error)
            return
        with contextlib.suppress(pynvml.NVMLError):
            self.driver = _text(pynvml.nvmlSystemGetDriverVersion())
        self.gpus = tuple(gpu for index in range(count) if (gpu := self._open(index)) is not None)

    def sample(self, name: str, pci_bus_id: str, pids: Collection[int] = ()) -> CardSample:
        """What the card at this PCI bus id does now, under the caller's `name` for it."""
        key = pci_key(pci_bus_id)
        if key is None or key not in self._handles:
            return CardSample(name=name)
        if key in self._lost:
            return CardSample(name=name, lost=True)
        nvml, handle = self._nvml, self._handles[key]
        memory = self._memory(key)
        rates = self._ask(key, "utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        power = self._ask(key, "power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit = self._ask(key, "limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        celsius = self._ask(
            key, "temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        )
        clock = self._ask(key, "clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        reasons = self._ask(key, "throttle", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        ours = self._ours(key, pids)
        if key in self._lost:
            return CardSample(name=name, lost=True)
        return CardSample(
            name=name,
            total_mib=memory[0],
            used_mib=memory[1],
            reserved_mib=memory[2],
            ours_mib=ours,
            utilisation=None if rates is None else float(rates.gpu),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            temperature_c=None if celsius is None else float(celsius),
            sm_clock_mhz=None if clock is None else float(clock),
            throttle=None if reasons is None else tuple(why for bit, why in _THROTTLE.items() if reasons & bit),
        )

    def energy_j(self, pci_bus_id: str) -> float | None:
        """Joules that the card has used since the driver started. Takes milliseconds."""
        key = pci_key(pci_bus_id)
        if key is None or key not in self._handles:
            return None
        handle = self._handles[key]
        used = self._ask(key, "energy", lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        return None if used is None else used / 1000

    def foreign_percent(self, pci_bus_id: str, pids: Collection[int], since_us: int) -> float | None:
        """How long processes other than `pids` kept the card busy, 0 … 100, since a time (µs, wall clock).

        None where the driver does not list `pids` either, as in a container. Takes milliseconds.
        """
        key = pci_key(pci_bus_id)
        if key is None or key not in self._handles:
            return None
        handle = self._handles[key]
        found = self._ask(key, "others", lambda: self._nvml.nvmlDeviceGetProcessUtilization(handle, since_us))
        busy = {used.pid: float(used.smUtil) for used in found or ()}
        if not busy.keys() & set(pids):
            return None
        return min(100.0, sum(percent for pid, percent in busy.items() if pid not in pids))

    def close(self) -> None:
        """Let go of the driver."""
        if self.missing is None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self.missing = "closed"
            self._handles.clear()

    def _open(self, index: int) -> Gpu | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus_id = _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()
        except nvml.NVMLError:
            return None
        key = pci_key(bus_id)
        if key is None:
            return None
        self._handles[key] = handle
        return Gpu(
            index=index,
            pci_bus_id=f"{key[0]:04x}:{key[1]:02x}:{key[2]:02x}.0",
            uuid=self._ask(key, "uuid", lambda: _text(nvml.nvmlDeviceGetUUID(handle))),
            name=self._ask(key, "name", lambda: _text(nvml.nvmlDeviceGetName(handle))),
        )

    def _ask(self, key: tuple[int, int, int], metric: str, call: Callable[[], Any]) -> Any:
        """The metric's value, or None; not asked again once it is known to be missing."""
        nvml = self._nvml
        if (*key, metric) in self._never or key in self._lost:
            return None
        try:
            return call()
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
                self._lost.add(key)
            elif error.value in (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            ):
                self._never.add((*key, metric))
            return None

    def _memory(self, key: tuple[int, int, int]) -> tuple[float | None, float | None, float | None]:
        """Total, used and reserved MiB; a driver without the second version counts reserved as used."""
        nvml, handle = self._nvml, self._handles[key]
        info = self._ask(key, "memory v2", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        if info is not None:
            return _mib(info.total), _mib(info.used), _mib(info.reserved)
        info = self._ask(key, "memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        return (None, None, None) if info is None else (_mib(info.total), _mib(info.used), None)

    def _ours(self, key: tuple[int, int, int], pids: Collection[int]) -> float | None:
        """MiB of `pids` on the card; None if the driver lists none of them, as in a container."""
        nvml, handle = self._nvml, self._handles[key]
        if not pids:
            return None
        listed = self._ask(key, "processes", lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        used = [p.usedGpuMemory for p in listed or () if p.pid in pids and p.usedGpuMemory is not None]
        return sum(used) / _MIB if used else None


def _mib(count: int) -> float | None:
    """MiB of a byte count; NVML writes all ones for unknown."""
    return None if count >= _NOT_AVAILABLE else count / _MIB


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _reason(error: Exception) -> str:
    """Why NVML is not there, for people."""
    name = type(error).__name__
    if "LibraryNotFound" in name:
        return "no NVIDIA driver is installed"
    return f"NVIDIA's driver does not answer ({name.removeprefix('NVMLError_')})"
