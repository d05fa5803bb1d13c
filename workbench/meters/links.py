"""The links of a card: PCIe and NVLink, how they are and what goes over them."""

import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from workbench.meters.nvml import Nvml
from workbench.meters.sample import NvLink, Pcie

_KIB_PER_MIB = 1024
_ALL_LINKS = 0xFFFFFFFF
_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}


def pcie_link(nvml: Nvml, pci_bus_id: str) -> Pcie:
    """Generation and width, without traffic. An idle card lowers its generation."""
    binding = nvml.binding
    return Pcie(
        generation=nvml.ask(pci_bus_id, "pcie generation", binding.nvmlDeviceGetCurrPcieLinkGeneration),
        max_generation=nvml.ask(pci_bus_id, "pcie max generation", binding.nvmlDeviceGetMaxPcieLinkGeneration),
        width=nvml.ask(pci_bus_id, "pcie width", binding.nvmlDeviceGetCurrPcieLinkWidth),
        max_width=nvml.ask(pci_bus_id, "pcie max width", binding.nvmlDeviceGetMaxPcieLinkWidth),
    )


def active_nvlinks(nvml: Nvml, pci_bus_id: str) -> list[int]:
    """The numbers of the card's links that are up."""
    binding, found = nvml.binding, []
    for link in range(binding.NVML_NVLINK_MAX_LINKS):
        state = nvml.ask(pci_bus_id, f"nvlink {link}", partial(_state, binding, link))
        if state is None:
            break
        if state:
            found.append(link)
    return found


def _state(binding: Any, link: int, card: Any) -> Any:
    return binding.nvmlDeviceGetNvLinkState(card, link)


def nvlinks(nvml: Nvml, pci_bus_id: str) -> NvLink | None:
    """The card's links together, without traffic; None where there are none."""
    links = active_nvlinks(nvml, pci_bus_id)
    if not links:
        return None
    binding, first = nvml.binding, links[0]
    version = nvml.ask(pci_bus_id, "nvlink version", lambda card: binding.nvmlDeviceGetNvLinkVersion(card, first))
    remote = nvml.ask(
        pci_bus_id, "nvlink remote", lambda card: binding.nvmlDeviceGetNvLinkRemoteDeviceType(card, first)
    )
    return NvLink(
        links=len(links),
        version=_VERSIONS.get(version or 0),
        switched=remote == binding.NVML_NVLINK_DEVICE_TYPE_SWITCH,
    )


class NvLinkTraffic:
    """Rates from the counters of all links, on NVML's own timestamps."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._last: dict[str, tuple[int, int, int]] = {}

    def read(self, pci_bus_id: str) -> tuple[float | None, float | None]:
        """(sent, received) in MiB/s since the last call; None at first and after a counter began anew."""
        binding = self._nvml.binding
        fields = [
            (binding.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
            (binding.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
        ]
        found = self._nvml.ask(
            pci_bus_id, "nvlink traffic", lambda card: binding.nvmlDeviceGetFieldValues(card, fields)
        )
        if found is None or any(value.nvmlReturn != binding.NVML_SUCCESS for value in found):
            self._last.pop(pci_bus_id, None)
            return None, None
        sent, received = (int(value.value.ullVal) for value in found)
        now_us = int(found[1].timestamp)
        before = self._last.get(pci_bus_id)
        self._last[pci_bus_id] = (now_us, sent, received)
        if before is None:
            return None, None
        return rate(before[1], sent, now_us - before[0]), rate(before[2], received, now_us - before[0])


def rate(before_kib: int, now_kib: int, elapsed_us: int) -> float | None:
    """MiB/s between two readings of a counter; None if it went back or no time passed."""
    if elapsed_us <= 0 or now_kib < before_kib:
        return None
    return (now_kib - before_kib) / _KIB_PER_MIB / (elapsed_us / 1e6)


class PcieTraffic:
    """Reads PCIe traffic on a thread of its own: each call measures for 20 ms."""

    def __init__(self, nvml: Nvml, every_s: float = 2.0) -> None:
        self._nvml = nvml
        self._every_s = every_s
        self._cards: tuple[str, ...] = ()
        self._found: dict[str, tuple[float | None, float | None]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, pci_bus_ids: Iterable[str]) -> None:
        """Read these cards from now on; the thread begins with the first."""
        self._cards = tuple(pci_bus_ids)
        if self._cards and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pcie", daemon=True)
            self._thread.start()

    def read(self, pci_bus_id: str) -> tuple[float | None, float | None]:
        """(sent, received) in MiB/s when last measured."""
        return self._found.get(pci_bus_id, (None, None))

    def close(self, timeout_s: float = 1.0) -> bool:
        """End the thread; whether it ended in time. One that hangs in the driver is left behind."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        binding = self._nvml.binding

        def measure(card: str, metric: str, counter: Any) -> float | None:
            kib_s = self._nvml.ask(card, metric, lambda handle: binding.nvmlDeviceGetPcieThroughput(handle, counter))
            return None if kib_s is None else kib_s / _KIB_PER_MIB

        while not self._stop.is_set():
            cards = self._cards
            began = time.monotonic()
            for card in cards:
                if self._stop.is_set():
                    return
                sent = measure(card, "pcie sent", binding.NVML_PCIE_UTIL_TX_BYTES)
                received = measure(card, "pcie received", binding.NVML_PCIE_UTIL_RX_BYTES)
                self._found[card] = (sent, received)
            self._stop.wait(max(0.1, self._every_s - (time.monotonic() - began)))


