"""NVIDIA cards through NVML; the only place that imports its binding.

Every metric may be missing on some card, driver or container, so a missing one is None and
is not asked for again. A card that is lost is reported as lost and left alone; the others go on.
"""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from workbench.domain.card import pci_key
from workbench.domain.text import flat
from workbench.meters.processes import Names
from workbench.meters.sample import CardSample, GpuProcess

_MIB = 2**20
_NOT_AVAILABLE = 2**64 - 1
_UNKNOWN = frozenset({2**32 - 1, _NOT_AVAILABLE})
"""All ones is no figure."""
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
WSL_LIBRARY = Path("/usr/lib/wsl/lib/libnvidia-ml.so.1")
"""Where Windows puts the library, which the loader there need not search."""
PCI_DEVICES = Path("/sys/bus/pci/devices")
_UNIFIED = 0.02
"""A card without reserved memory whose size is the host's to within this part of it shares the host's."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A card as NVML names it; `index` is nvidia-smi's number, `pci_bus_id` in lower case."""

    index: int
    pci_bus_id: str
    uuid: str | None = None
    name: str | None = None


class Asking(msgspec.Struct, frozen=True):
    """A call that has not returned: of which card, for what, since when (monotonic seconds)."""

    pci_bus_id: str
    metric: str
    since: float


class Nvml:
    """An open NVML. Without a driver it has no cards, and `missing` says why.

    `driver` is its version, `cuda` the newest CUDA that it runs, as (major, minor).
    `gone` says that the driver went away after it was opened. Calls may come from any thread.
    """

    def __init__(self, *, host_mib: float | None = None) -> None:
        import pynvml

        self.binding: Any = pynvml
        self._host_mib = host_mib
        self._names = Names()
        self._handles: dict[str, Any] = {}
        self._never: set[tuple[str, str]] = set()
        self._lost: set[str] = set()
        self._spelt: dict[str, str | None] = {}
        self._asking: dict[int, Asking] = {}
        self.gone = False
        self.gpus: tuple[Gpu, ...] = ()
        self.missing: str | None = None
        self.driver: str | None = None
        self.cuda: tuple[int, int] | None = None
        if WSL_LIBRARY.exists() and pynvml.nvmlLib is None:
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(WSL_LIBRARY))
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.missing = _reason(pynvml, error)
            return
        with contextlib.suppress(pynvml.NVMLError, UnicodeDecodeError):
            self.driver = text_of(pynvml.nvmlSystemGetDriverVersion())
        with contextlib.suppress(pynvml.NVMLError):
            cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
            self.cuda = cuda // 1000, cuda % 1000 // 10
        self.gpus = tuple(gpu for index in range(count) if (gpu := self._open(index)) is not None)

    def ask(self, pci_bus_id: str, metric: str, call: Callable[[Any], Any]) -> Any:
        """What `call` makes of the card's handle, or None; a metric that is missing is not asked for again."""
        spelt = self._spell(pci_bus_id)
        if spelt is None or spelt not in self._handles or spelt in self._lost or (spelt, metric) in self._never:
            return None
        nvml = self.binding
        self._asking[threading.get_ident()] = Asking(spelt, metric, time.monotonic())
        try:
            found = call(self._handles[spelt])
            return None if isinstance(found, int) and found in _UNKNOWN else found
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
                self._lost.add(spelt)
            elif error.value in (nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
                self.gone = True
            elif error.value in (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            ):
                self._never.add((spelt, metric))
            return None
        except UnicodeDecodeError:  # a name that the binding cannot read
            return None
        finally:
            self._asking.pop(threading.get_ident(), None)

    @property
    def asking(self) -> Asking | None:
        """The call that has run longest, by which one that hangs is told."""
        return min(list(self._asking.values()), key=lambda call: call.since, default=None)

    def lost(self, pci_bus_id: str) -> bool:
        """Whether the card stopped answering for good."""
        return self._spell(pci_bus_id) in self._lost

    def sample(self, name: str, pci_bus_id: str) -> CardSample:
        """What the card at this PCI bus id does now, under the caller's `name` for it: what costs microseconds."""
        if self._spell(pci_bus_id) not in self._handles:
            return CardSample(name=name)
        if self.lost(pci_bus_id):
            return CardSample(name=name, lost=True)
        nvml = self.binding

        def ask(metric: str, call: Callable[[Any], Any]) -> Any:
            return self.ask(pci_bus_id, metric, call)

        total, used, reserved = self._memory(pci_bus_id)
        rates = ask("utilisation", nvml.nvmlDeviceGetUtilizationRates)
        power = ask("power", nvml.nvmlDeviceGetPowerUsage)
        limit = ask("limit", nvml.nvmlDeviceGetEnforcedPowerLimit)
        celsius = ask("temperature", lambda card: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU))
        clock = ask("clock", lambda card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM))
        memory_clock = ask("memory clock", lambda card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM))
        reasons = ask("throttle", nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        if self.lost(pci_bus_id):
            return CardSample(name=name, lost=True)
        return CardSample(
            name=name,
            unified=self._unified(pci_bus_id, total, reserved, answers=rates is not None or celsius is not None),
            total_mib=total,
            used_mib=used,
            reserved_mib=reserved,
            utilisation=None if rates is None or rates.gpu > 100 else float(rates.gpu),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            temperature_c=None if celsius is None else float(celsius),
            sm_clock_mhz=None if clock is None else float(clock),
            memory_clock_mhz=None if memory_clock is None else float(memory_clock),
            throttle=None if reasons is None else tuple(why for bit, why in _THROTTLE.items() if reasons & bit),
        )

    def processes(self, pci_bus_id: str) -> tuple[GpuProcess, ...] | None:
        """Everyone who holds memory there, the largest first; None where the driver does not tell.

        A process that both computes and draws counts once.
        """
        nvml = self.binding
        computing = self.ask(pci_bus_id, "processes", nvml.nvmlDeviceGetComputeRunningProcesses)
        drawing = self.ask(pci_bus_id, "drawing", nvml.nvmlDeviceGetGraphicsRunningProcesses)
        if computing is None and drawing is None:
            return None
        held: dict[int, int | None] = {}
        for process in (*(computing or ()), *(drawing or ())):
            held[process.pid] = max(held.get(process.pid) or 0, process.usedGpuMemory or 0) or None
        return tuple(
            GpuProcess(pid=pid, name=self._names.of(pid), mib=None if used is None else used / _MIB)
            for pid, used in sorted(held.items(), key=lambda item: (-(item[1] or 0), item[0]))
        )

    def energy_j(self, pci_bus_id: str) -> float | None:
        """Joules that the card has used since the driver started. Takes milliseconds."""
        used = self.ask(pci_bus_id, "energy", self.binding.nvmlDeviceGetTotalEnergyConsumption)
        return None if used is None else used / 1000

    def foreign_percent(self, pci_bus_id: str, pids: Collection[int], since_us: int) -> float | None:
        """How long processes other than `pids` kept the card busy, 0 … 100, since a time (µs, wall clock).

        None where the driver does not list `pids` either, as in a container. Takes milliseconds.
        """
        found = self.ask(
            pci_bus_id, "others", lambda card: self.binding.nvmlDeviceGetProcessUtilization(card, since_us)
        )
        busy = {used.pid: float(used.smUtil) for used in found or ()}
        if not busy.keys() & set(pids):
            return None
        return min(100.0, sum(percent for pid, percent in busy.items() if pid not in pids))

    def forget_names(self) -> None:
        """Look the names of processes up again: pids are reused."""
        self._names = Names()

    def close(self) -> None:
        """Let go of the driver."""
        if self.missing is None:
            with contextlib.suppress(self.binding.NVMLError):
                self.binding.nvmlShutdown()
            self.missing = "closed"
            self._handles.clear()

    def _open(self, index: int) -> Gpu | None:
        nvml = self.binding
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus_id = self._spell(text_of(nvml.nvmlDeviceGetPciInfo(handle).busId))
        except (nvml.NVMLError, UnicodeDecodeError):
            return None
        if bus_id is None:
            return None
        self._handles[bus_id] = handle
        return Gpu(
            index=index,
            pci_bus_id=bus_id,
            uuid=self.ask(bus_id, "uuid", lambda card: text_of(nvml.nvmlDeviceGetUUID(card))),
            name=self.ask(bus_id, "name", lambda card: text_of(nvml.nvmlDeviceGetName(card))),
        )

    def _spell(self, pci_bus_id: str) -> str | None:
        """The bus id as sysfs spells it; None if it is none."""
        if pci_bus_id not in self._spelt:
            key = pci_key(pci_bus_id)
            self._spelt[pci_bus_id] = None if key is None else f"{key[0]:04x}:{key[1]:02x}:{key[2]:02x}.0"
        return self._spelt[pci_bus_id]

    def _memory(self, pci_bus_id: str) -> tuple[float | None, float | None, float | None]:
        """Total, used and reserved MiB; a driver without the second version counts reserved as used."""
        nvml = self.binding
        second = nvml.nvmlMemory_v2
        info = self.ask(pci_bus_id, "memory v2", lambda card: nvml.nvmlDeviceGetMemoryInfo(card, version=second))
        if info is not None:
            return mib(info.total), mib(info.used), mib(info.reserved)
        info = self.ask(pci_bus_id, "memory", nvml.nvmlDeviceGetMemoryInfo)
        return (None, None, None) if info is None else (mib(info.total), mib(info.used), None)

    def _unified(self, pci_bus_id: str, total: float | None, reserved: float | None, *, answers: bool) -> bool:
        if total is None:
            return answers and (str(self._spell(pci_bus_id)), "memory") in self._never
        return not reserved and self._host_mib is not None and abs(total / self._host_mib - 1) < _UNIFIED


def asleep(pci_bus_id: str, devices: Path = PCI_DEVICES) -> bool:
    """Whether the card is powered down, as a laptop's is while nothing uses it. Asking NVML would wake it."""
    try:
        return (devices / pci_bus_id / "power" / "runtime_status").read_text().strip() == "suspended"
    except OSError:
        return False


def mib(count: int) -> float | None:
    """MiB of a byte count; NVML writes all ones for unknown."""
    return None if count >= _NOT_AVAILABLE else count / _MIB


def text_of(value: str | bytes) -> str:
    """A name that the driver gave, on one line and fit to be shown."""
    return flat(value.decode(errors="replace") if isinstance(value, bytes) else value)


def _reason(nvml: Any, error: Any) -> str:
    """Why NVML is not there, for people."""
    if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "no NVIDIA driver is installed"
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "the NVIDIA driver was updated while it ran: its library and its kernel module differ; reboot"
    return f"NVIDIA's driver does not answer ({type(error).__name__.removeprefix('NVMLError_')})"
