"""What a GPU's own performance monitors say (Hopper and later): bandwidth, tensor cores, traffic."""

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from workbench.meters.nvml import Nvml

_LEAST_S = 0.1
"""Two samples that are closer tell nothing."""


class GpmReading(msgspec.Struct, frozen=True, kw_only=True):
    """Means since the reading before: percentages 0 … 100, traffic in MiB/s seen from the card."""

    tensor_percent: float | None = None
    dram_percent: float | None = None
    pcie_sent_mib_s: float | None = None
    pcie_received_mib_s: float | None = None
    nvlink_sent_mib_s: float | None = None
    nvlink_received_mib_s: float | None = None


class Gpm:
    """Readings of all cards that can; needs no privilege. Each is over the time since the last one."""

    def __init__(self, nvml: Nvml, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        binding = nvml.binding
        self._ids = {
            "tensor_percent": binding.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            "dram_percent": binding.NVML_GPM_METRIC_DRAM_BW_UTIL,
            "pcie_sent_mib_s": binding.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
            "pcie_received_mib_s": binding.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
            "nvlink_sent_mib_s": binding.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
            "nvlink_received_mib_s": binding.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
        }
        self._able: dict[str, bool] = {}
        self._pairs: dict[str, list[Any]] = {}
        """Two sample buffers a card: the spare one, and the one last filled."""
        self._taken: dict[str, float] = {}
        self._last: dict[str, GpmReading] = {}

    def able(self, pci_bus_id: str) -> bool:
        """Whether the card has such monitors."""
        if pci_bus_id not in self._able:
            found = self._nvml.ask(pci_bus_id, "gpm", self._nvml.binding.nvmlGpmQueryDeviceSupport)
            self._able[pci_bus_id] = bool(found is not None and found.isSupportedDevice)
        return self._able[pci_bus_id]

    def read(self, pci_bus_id: str) -> GpmReading:
        """What happened since the last reading; a call that comes too soon repeats the last one."""
        if not self.able(pci_bus_id):
            return GpmReading()
        now = self._clock()
        if now - self._taken.get(pci_bus_id, float("-inf")) < _LEAST_S:
            return self._last.get(pci_bus_id, GpmReading())
        self._last[pci_bus_id] = self._measure(pci_bus_id, now)
        return self._last[pci_bus_id]

    def close(self) -> None:
        """Free the buffers; to be called before NVML is closed."""
        for pair in self._pairs.values():
            for sample in pair:
                with contextlib.suppress(self._nvml.binding.NVMLError):
                    self._nvml.binding.nvmlGpmSampleFree(sample)
        self._pairs.clear()

    def _measure(self, pci_bus_id: str, now: float) -> GpmReading:
        binding = self._nvml.binding
        if pci_bus_id not in self._pairs:
            pair = self._nvml.ask(
                pci_bus_id, "gpm buffers", lambda _: [binding.nvmlGpmSampleAlloc(), binding.nvmlGpmSampleAlloc()]
            )
            if pair is None:
                return GpmReading()
            self._pairs[pci_bus_id] = pair
        spare, last = self._pairs[pci_bus_id]
        taken = self._nvml.ask(pci_bus_id, "gpm sample", lambda card: binding.nvmlGpmSampleGet(card, spare))
        first = pci_bus_id not in self._taken
        if taken is None:
            self._taken.pop(pci_bus_id, None)
            return GpmReading()
        self._taken[pci_bus_id] = now
        self._pairs[pci_bus_id] = [last, spare]
        if first:
            return GpmReading()
        wanted = binding.c_nvmlGpmMetricsGet_t()
        wanted.version = binding.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics = len(self._ids)
        wanted.sample1, wanted.sample2 = last, spare
        for place, metric in enumerate(self._ids.values()):
            wanted.metrics[place].metricId = metric
        if self._nvml.ask(pci_bus_id, "gpm metrics", lambda _: binding.nvmlGpmMetricsGet(wanted)) is None:
            return GpmReading()
        values = {
            name: max(0.0, wanted.metrics[place].value)
            for place, name in enumerate(self._ids)
            if wanted.metrics[place].nvmlReturn == binding.NVML_SUCCESS and math.isfinite(wanted.metrics[place].value)
        }
        return GpmReading(**values)
