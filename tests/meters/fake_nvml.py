"""A stand-in for libnvidia-ml, on which the real binding runs."""

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

import pynvml

MIB = 2**20


class FakeGpu:
    """One card. `errors` maps a function's name to the code it returns."""

    def __init__(self, bus_id: str, *, uuid: str = "GPU-1", name: str = "NVIDIA H200", total_mib: int = 143771) -> None:
        self.bus_id = bus_id
        self.uuid = uuid
        self.name = name
        self.total_mib = total_mib
        self.used_mib = 30000
        self.reserved_mib = 615
        self.utilisation = 52
        self.power_mw = 432_000
        self.limit_mw = 700_000
        self.celsius = 48
        self.clock_mhz = 1980
        self.throttle = 0
        self.energy_mj = 0
        self.busy: dict[int, int] = {}
        self.processes: dict[int, int | None] = {}
        self.errors: dict[str, int] = {}


class FakeNvmlLib:
    """The functions that workbench asks for; `calls` counts them."""

    def __init__(self, *gpus: FakeGpu, init: int = pynvml.NVML_SUCCESS) -> None:
        self.gpus = gpus
        self.init = init
        self.calls: Counter[str] = Counter()
        self.without: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            if name in self.without:
                raise AttributeError(name)
            self.calls[name] += 1
        return object.__getattribute__(self, name)

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
            ctypes.cast(ctypes.byref(handle._obj), ctypes.POINTER(ctypes.c_void_p))[0] = number + 1
        return code

    def _gpu(self, handle: Any) -> FakeGpu:
        return self.gpus[int(ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1]

    def _give(self, function: str, handle: Any, write: Callable[[FakeGpu], None]) -> int:
        gpu = self._gpu(handle)
        code = gpu.errors.get(function, gpu.errors.get("*", 0))
        if code == 0:
            write(gpu)
        return code

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        def write(gpu: FakeGpu) -> None:
            info._obj.busId = gpu.bus_id.encode()

        return self._give("nvmlDeviceGetPciInfo_v3", handle, write)

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: Any) -> int:
        return self._give("nvmlDeviceGetUUID", handle, lambda gpu: setattr(text, "value", gpu.uuid.encode()))

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: Any) -> int:
        return self._give("nvmlDeviceGetName", handle, lambda gpu: setattr(text, "value", gpu.name.encode()))

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
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
        return self._give("nvmlDeviceGetPowerUsage", handle, lambda gpu: setattr(power._obj, "value", gpu.power_mw))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, limit: Any) -> int:
        return self._give(
            "nvmlDeviceGetEnforcedPowerLimit", handle, lambda gpu: setattr(limit._obj, "value", gpu.limit_mw)
        )

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, celsius: Any) -> int:
        return self._give("nvmlDeviceGetTemperature", handle, lambda gpu: setattr(celsius._obj, "value", gpu.celsius))

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, clock: Any) -> int:
        return self._give("nvmlDeviceGetClockInfo", handle, lambda gpu: setattr(clock._obj, "value", gpu.clock_mhz))

    def nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> int:
        text.value = b"580.95.05"
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, reasons: Any) -> int:
        name = "nvmlDeviceGetCurrentClocksThrottleReasons"
        return self._give(name, handle, lambda gpu: setattr(reasons._obj, "value", gpu.throttle))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, energy: Any) -> int:
        return self._give(
            "nvmlDeviceGetTotalEnergyConsumption", handle, lambda gpu: setattr(energy._obj, "value", gpu.energy_mj)
        )

    def nvmlDeviceGetProcessUtilization(self, handle: Any, used: Any, count: Any, since: Any) -> int:
        gpu = self._gpu(handle)
        code = gpu.errors.get("nvmlDeviceGetProcessUtilization", gpu.errors.get("*", 0))
        if code == 0 and not gpu.busy:
            code = int(pynvml.NVML_ERROR_NOT_FOUND)
        if code != 0:
            return code
        if used is None:
            count._obj.value = len(gpu.busy)
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for place, (pid, percent) in enumerate(gpu.busy.items()):
            used[place].pid = pid
            used[place].smUtil = percent
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, processes: Any) -> int:
        gpu = self._gpu(handle)
        code = gpu.errors.get("nvmlDeviceGetComputeRunningProcesses_v3", gpu.errors.get("*", 0))
        if code != 0:
            return code
        if processes is None:
            count._obj.value = len(gpu.processes)
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE) if gpu.processes else 0
        for place, (pid, mib) in enumerate(gpu.processes.items()):
            processes[place].pid = pid
            processes[place].usedGpuMemory = 2**64 - 1 if mib is None else mib * MIB
        count._obj.value = len(gpu.processes)
        return 0
