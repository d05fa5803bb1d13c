"""What changes seldom about a card: its links, its memory errors, its MIG slices."""

from typing import Any

import msgspec

from workbench.meters.links import nvlinks, pcie_link
from workbench.meters.nvml import Nvml, mib, text_of
from workbench.meters.sample import NvLink, Pcie, Slice


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """See the fields of the same names in `CardSample`."""

    pcie: Pcie = Pcie()
    nvlink: NvLink | None = None
    ecc_errors: tuple[int, int] | None = None
    slices: tuple[Slice, ...] = ()


def read_standing(nvml: Nvml, pci_bus_id: str) -> Standing:
    """Read all of it; some 200 µs and more."""
    return Standing(
        pcie=pcie_link(nvml, pci_bus_id),
        nvlink=nvlinks(nvml, pci_bus_id),
        ecc_errors=_ecc_errors(nvml, pci_bus_id),
        slices=_slices(nvml, pci_bus_id),
    )


def _ecc_errors(nvml: Nvml, pci_bus_id: str) -> tuple[int, int] | None:
    binding = nvml.binding

    def count(metric: str, kind: int) -> Any:
        since = binding.NVML_VOLATILE_ECC
        return nvml.ask(pci_bus_id, metric, lambda card: binding.nvmlDeviceGetTotalEccErrors(card, kind, since))

    corrected = count("corrected", binding.NVML_MEMORY_ERROR_TYPE_CORRECTED)
    uncorrected = count("uncorrected", binding.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    return None if corrected is None or uncorrected is None else (int(corrected), int(uncorrected))


def _slices(nvml: Nvml, pci_bus_id: str) -> tuple[Slice, ...]:
    """The MIG instances of a card that is divided; a place without one is passed over."""
    binding = nvml.binding
    mode = nvml.ask(pci_bus_id, "mig", binding.nvmlDeviceGetMigMode)
    if mode is None or mode[0] != binding.NVML_DEVICE_MIG_ENABLE:
        return ()

    def read(card: Any) -> tuple[Slice, ...]:
        found = []
        for index in range(binding.nvmlDeviceGetMaxMigDeviceCount(card)):
            try:
                found.append(_slice(binding, index, binding.nvmlDeviceGetMigDeviceHandleByIndex(card, index)))
            except binding.NVMLError_NotFound:
                continue
        return tuple(found)

    return nvml.ask(pci_bus_id, "mig slices", read) or ()


def _slice(binding: Any, index: int, handle: Any) -> Slice:
    memory = binding.nvmlDeviceGetMemoryInfo(handle)
    name = binding.nvmlDeviceGetName(handle)
    uuid = binding.nvmlDeviceGetUUID(handle)
    return Slice(
        index=index,
        name=text_of(name),
        uuid=text_of(uuid),
        total_mib=mib(memory.total),
        used_mib=mib(memory.used),
    )
