"""A stand-in for libnvidia-ml, on which the real binding runs."""

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pynvml

MIB = 2**20
ALL_LINKS = 0xFFFFFFFF


@dataclass
class FakeLink:
    """One NVLink; `remote` is a card's bus id, or "" for a switch."""

    remote: str = ""
    active: bool = True


@dataclass
class FakeGpu:
    """One card. `errors` maps a function's name to the code it returns, `*` all of them.

    `slices` are MIG instances by place, None for an empty one; each is (name, total, used) in MiB.
    """

    bus_id: str
    uuid: str = "GPU-1"
    name: str = "NVIDIA H200"
    total_mib: int = 143771
    used_mib: int = 30000
    reserved_mib: int = 615
    utilisation: int = 52
    power_mw: int = 432_000
    limit_mw: int = 700_000
    celsius: int = 48
    clock_mhz: int = 1980
    memory_clock_mhz: int = 3201
    throttle: int = 0
    energy_mj: int = 0
    gpm: Mapping[int, float] | None = None
    pcie: tuple[int, int, int, int] = (5, 5, 16, 16)
    """Generation, best generation, width, best width."""
    pcie_kib_s: tuple[int, int] = (2048, 1024)
    links: list[FakeLink] = field(default_factory=list)
    link_kib: tuple[int, int] = (0, 0)
    link_at_us: int = 0
    ecc: tuple[int, int] = (0, 0)
    slices: list[tuple[str, int, int] | None] | None = None
    ancestors: dict[str, int] = field(default_factory=dict)
    peers: dict[str, int] = field(default_factory=dict)
    busy: dict[int, int] = field(default_factory=dict)
    processes: dict[int, int | None] = field(default_factory=dict)
    drawing: dict[int, int | None] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class FakeSlice:
    """What the handle of a MIG instance means."""

    name: str
    uuid: str
    total_mib: int
    used_mib: int


class FakeNvmlLib:
    """The functions that workbench asks for; `calls` counts them, `before` runs before each."""

    def __init__(self, *gpus: FakeGpu, init: int = pynvml.NVML_SUCCESS) -> None:
        self.gpus = gpus
        self.init = init
        self.calls: Counter[str] = Counter()
        self.without: set[str] = set()
        self.before: Callable[[str], None] = lambda name: None
        self._slices: list[FakeSlice] = []
        self._buffers = 0

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name) if name not in object.__getattribute__(self, "__dict__") else None
        if not name.startswith("nvml"):
            return object.__getattribute__(self, name)
        if name in self.without:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            self.before(name)
            assert found is not None
            return int(found(*arguments))

        return call

    def nvmlInitWithFlags(self, flags: int) -> int:
        return self.init

    def nvmlShutdown(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        number: int = index.value
        code = self.gpus[number].errors.get("nvmlDeviceGetHandleByIndex_v2", 0)
        if code == 0:
            _point(handle, number + 1)
        return code

    def _gpu(self, handle: Any) -> FakeGpu:
        return self.gpus[_place(handle) - 1]

    def _give(self, function: str, handle: Any, write: Callable[[FakeGpu], Any]) -> int:
        gpu = self._gpu(handle)
        code = gpu.errors.get(function, gpu.errors.get("*", 0))
        return code if code else int(write(gpu) or 0)

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        return self._give(
            "nvmlDeviceGetPciInfo_v3", handle, lambda gpu: setattr(info._obj, "busId", gpu.bus_id.encode())
        )

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: Any) -> int:
        return self._named("nvmlDeviceGetUUID", handle, text, "uuid")

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: Any) -> int:
        return self._named("nvmlDeviceGetName", handle, text, "name")

    def _named(self, function: str, handle: Any, text: Any, attribute: str) -> int:
        if (found := self._slice(handle)) is not None:
            text.value = str(getattr(found, attribute)).encode()
            return 0
        return self._give(function, handle, lambda gpu: setattr(text, "value", getattr(gpu, attribute).encode()))

    # ── figures ───────────────────────────────────────────────────────────────────────────
    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        if (found := self._slice(handle)) is not None:
            memory._obj.total, memory._obj.used = found.total_mib * MIB, found.used_mib * MIB
            return 0

        def write(gpu: FakeGpu) -> None:
            memory._obj.total = gpu.total_mib * MIB
            memory._obj.used = (gpu.used_mib + gpu.reserved_mib) * MIB

        return self._give("nvmlDeviceGetMemoryInfo", handle, write)

    def nvmlDeviceGetMemoryInfo_v2(self, handle: Any, memory: Any) -> int:
        def write(gpu: FakeGpu) -> None:
            assert memory._obj.version == pynvml.nvmlMemory_v2
            memory._obj.total = gpu.total_mib * MIB
            memory._obj.used = gpu.used_mib * MIB
            memory._obj.reserved = gpu.reserved_mib * MIB

        return self._give("nvmlDeviceGetMemoryInfo_v2", handle, write)

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        return self._give(
            "nvmlDeviceGetUtilizationRates", handle, lambda gpu: setattr(rates._obj, "gpu", gpu.utilisation)
        )

    def nvmlDeviceGetPowerUsage(self, handle: Any, power: Any) -> int:
        return self._value("nvmlDeviceGetPowerUsage", handle, power, lambda gpu: gpu.power_mw)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, limit: Any) -> int:
        return self._value("nvmlDeviceGetEnforcedPowerLimit", handle, limit, lambda gpu: gpu.limit_mw)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, celsius: Any) -> int:
        return self._value("nvmlDeviceGetTemperature", handle, celsius, lambda gpu: gpu.celsius)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, clock: Any) -> int:
        memory = kind.value == pynvml.NVML_CLOCK_MEM
        return self._value(
            "nvmlDeviceGetClockInfo", handle, clock, lambda gpu: gpu.memory_clock_mhz if memory else gpu.clock_mhz
        )

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, reasons: Any) -> int:
        return self._value("nvmlDeviceGetCurrentClocksThrottleReasons", handle, reasons, lambda gpu: gpu.throttle)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, energy: Any) -> int:
        return self._value("nvmlDeviceGetTotalEnergyConsumption", handle, energy, lambda gpu: gpu.energy_mj)

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, since: Any, count: Any) -> int:
        return self._value("nvmlDeviceGetTotalEccErrors", handle, count, lambda gpu: gpu.ecc[kind.value])

    def _value(self, function: str, handle: Any, target: Any, read: Callable[[FakeGpu], int]) -> int:
        return self._give(function, handle, lambda gpu: setattr(target._obj, "value", read(gpu)))

    def nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> int:
        text.value = b"580.95.05"
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = 13000
        return 0

    # ── processes ─────────────────────────────────────────────────────────────────────────
    def nvmlDeviceGetProcessUtilization(self, handle: Any, used: Any, count: Any, since: Any) -> int:
        def write(gpu: FakeGpu) -> int:
            if not gpu.busy:
                return int(pynvml.NVML_ERROR_NOT_FOUND)
            if used is None:
                count._obj.value = len(gpu.busy)
                return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
            for place, (pid, percent) in enumerate(gpu.busy.items()):
                used[place].pid = pid
                used[place].smUtil = percent
            return 0

        return self._give("nvmlDeviceGetProcessUtilization", handle, write)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, processes: Any) -> int:
        return self._list("nvmlDeviceGetComputeRunningProcesses_v3", handle, count, processes, "processes")

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, processes: Any) -> int:
        return self._list("nvmlDeviceGetGraphicsRunningProcesses_v3", handle, count, processes, "drawing")

    def _list(self, function: str, handle: Any, count: Any, processes: Any, attribute: str) -> int:
        def write(gpu: FakeGpu) -> int:
            held: dict[int, int | None] = getattr(gpu, attribute)
            if processes is None:
                count._obj.value = len(held)
                return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE) if held else 0
            for place, (pid, mib) in enumerate(held.items()):
                processes[place].pid = pid
                processes[place].usedGpuMemory = 2**64 - 1 if mib is None else mib * MIB
            count._obj.value = len(held)
            return 0

        return self._give(function, handle, write)

    # ── monitors ──────────────────────────────────────────────────────────────────────────
    def nvmlGpmQueryDeviceSupport(self, handle: Any, support: Any) -> int:
        return self._give(
            "nvmlGpmQueryDeviceSupport",
            handle,
            lambda gpu: setattr(support._obj, "isSupportedDevice", int(gpu.gpm is not None)),
        )

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:
        self._buffers += 1
        _point(sample, self._buffers)
        return 0

    def nvmlGpmSampleFree(self, sample: Any) -> int:
        self._buffers -= 1
        return 0

    @property
    def buffers(self) -> int:
        return self._buffers

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:
        def write(gpu: FakeGpu) -> None:
            self.sampled = gpu

        return self._give("nvmlGpmSampleGet", handle, write)

    def nvmlGpmMetricsGet(self, wanted: Any) -> int:
        figures = self.sampled.gpm or {}
        asked = wanted._obj
        assert asked.sample1
        assert asked.sample2
        for place in range(asked.numMetrics):
            value = figures.get(asked.metrics[place].metricId)
            asked.metrics[place].nvmlReturn = 0 if value is not None else pynvml.NVML_ERROR_NOT_SUPPORTED
            asked.metrics[place].value = value or 0.0
        return 0

    # ── links ─────────────────────────────────────────────────────────────────────────────
    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any, value: Any) -> int:
        return self._value("nvmlDeviceGetCurrPcieLinkGeneration", handle, value, lambda gpu: gpu.pcie[0])

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, value: Any) -> int:
        return self._value("nvmlDeviceGetMaxPcieLinkGeneration", handle, value, lambda gpu: gpu.pcie[1])

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any, value: Any) -> int:
        return self._value("nvmlDeviceGetCurrPcieLinkWidth", handle, value, lambda gpu: gpu.pcie[2])

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any, value: Any) -> int:
        return self._value("nvmlDeviceGetMaxPcieLinkWidth", handle, value, lambda gpu: gpu.pcie[3])

    def nvmlDeviceGetPcieThroughput(self, handle: Any, counter: Any, value: Any) -> int:
        return self._value("nvmlDeviceGetPcieThroughput", handle, value, lambda gpu: gpu.pcie_kib_s[counter.value])

    def _link(self, function: str, handle: Any, link: int, write: Callable[[FakeLink], None]) -> int:
        def give(gpu: FakeGpu) -> int:
            if not gpu.links:
                return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
            if link >= len(gpu.links):
                return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            write(gpu.links[link])
            return 0

        return self._give(function, handle, give)

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: Any, active: Any) -> int:
        return self._link(
            "nvmlDeviceGetNvLinkState", handle, link, lambda found: setattr(active._obj, "value", found.active)
        )

    def nvmlDeviceGetNvLinkVersion(self, handle: Any, link: Any, version: Any) -> int:
        return self._link("nvmlDeviceGetNvLinkVersion", handle, link, lambda _: setattr(version._obj, "value", 6))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: Any, kind: Any) -> int:
        def write(found: FakeLink) -> None:
            kind._obj.value = (
                pynvml.NVML_NVLINK_DEVICE_TYPE_GPU if found.remote else pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
            )

        return self._link("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, write)

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: Any, info: Any) -> int:
        return self._link(
            "nvmlDeviceGetNvLinkRemotePciInfo_v2",
            handle,
            link,
            lambda found: setattr(info._obj, "busId", found.remote.encode()),
        )

    def nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> int:
        def write(gpu: FakeGpu) -> None:
            counters = {
                pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: gpu.link_kib[0],
                pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: gpu.link_kib[1],
            }
            for place in range(count.value):
                value = values._obj[place]
                assert value.scopeId == ALL_LINKS
                value.nvmlReturn = 0 if gpu.links else pynvml.NVML_ERROR_NOT_SUPPORTED
                value.timestamp = gpu.link_at_us
                value.value.ullVal = counters[value.fieldId]

        return self._give("nvmlDeviceGetFieldValues", handle, write)

    def nvmlDeviceGetTopologyCommonAncestor(self, handle: Any, other: Any, level: Any) -> int:
        far = self._gpu(other).bus_id
        return self._value("nvmlDeviceGetTopologyCommonAncestor", handle, level, lambda gpu: gpu.ancestors.get(far, 50))

    def nvmlDeviceGetP2PStatus(self, handle: Any, other: Any, index: Any, status: Any) -> int:
        assert index == 0
        far = self._gpu(other).bus_id
        return self._value("nvmlDeviceGetP2PStatus", handle, status, lambda gpu: gpu.peers.get(far, 1))

    # ── MIG ───────────────────────────────────────────────────────────────────────────────
    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        def write(gpu: FakeGpu) -> int:
            if gpu.slices is None:
                return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
            current._obj.value = pending._obj.value = pynvml.NVML_DEVICE_MIG_ENABLE
            return 0

        return self._give("nvmlDeviceGetMigMode", handle, write)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, count: Any) -> int:
        return self._value("nvmlDeviceGetMaxMigDeviceCount", handle, count, lambda gpu: len(gpu.slices or ()))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, found: Any) -> int:
        gpu = self._gpu(handle)
        here = (gpu.slices or [])[index.value]
        if here is None:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        name, total, used = here
        self._slices.append(FakeSlice(name, f"MIG-{index.value}", total, used))
        _point(found, -len(self._slices))
        return 0

    def _slice(self, handle: Any) -> FakeSlice | None:
        place = ctypes.c_ssize_t(_place(handle)).value
        return self._slices[-place - 1] if place < 0 else None


def _point(pointer: Any, at: int) -> None:
    """Make a handle that the caller gave by reference point there."""
    ctypes.cast(ctypes.byref(pointer._obj), ctypes.POINTER(ctypes.c_void_p))[0] = ctypes.c_size_t(at).value


def _place(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)
