"""How the driver's cards reach each other, pair by pair."""

from collections import Counter
from functools import partial
from itertools import combinations
from typing import Any

from workbench.domain.card import pci_key
from workbench.domain.topology import Pair
from workbench.meters.links import active_nvlinks
from workbench.meters.nvml import Nvml

_READ = 0
_REFUSALS = {
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the I/O hub's topology does not support it",
    4: "disabled in the driver's settings",
    5: "not supported",
    6: "the driver does not tell",
}
_SWITCH = "switch"


def read_pairs(nvml: Nvml) -> tuple[Pair, ...]:
    """Every pair of the driver's cards."""
    ends = {gpu.pci_bus_id: _link_ends(nvml, gpu.pci_bus_id) for gpu in nvml.gpus}
    bus_ids = [gpu.pci_bus_id for gpu in nvml.gpus]
    return tuple(_pair(nvml, first, second, ends) for first, second in combinations(bus_ids, 2))


def _pair(nvml: Nvml, first: str, second: str, ends: dict[str, Counter[Any]]) -> Pair:
    binding = nvml.binding
    other = nvml.ask(second, "handle", lambda card: card)
    ancestor = status = None
    if other is not None:
        ancestor = nvml.ask(
            first, f"ancestor {second}", lambda card: binding.nvmlDeviceGetTopologyCommonAncestor(card, other)
        )
        status = nvml.ask(first, f"peer {second}", lambda card: binding.nvmlDeviceGetP2PStatus(card, other, _READ))
    direct = ends[first][pci_key(second)]
    through = min(ends[first][_SWITCH], ends[second][_SWITCH])
    return Pair(
        first=first,
        second=second,
        ancestor=ancestor,
        nvlinks=direct or through,
        switched=not direct and through > 0,
        peer=None if status is None else status == binding.NVML_P2P_STATUS_OK,
        refusal="" if status is None else _REFUSALS.get(status, "" if status == 0 else "not supported"),
    )


def _link_ends(nvml: Nvml, pci_bus_id: str) -> Counter[Any]:
    """How many of the card's links lead where: to a card by its PCI key, or to a switch."""
    binding = nvml.binding
    ends: Counter[Any] = Counter()
    for link in active_nvlinks(nvml, pci_bus_id):
        kind = nvml.ask(pci_bus_id, f"end of link {link}", partial(_end_kind, binding, link))
        if kind == binding.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            ends[_SWITCH] += 1
        elif (remote := nvml.ask(pci_bus_id, f"remote of link {link}", partial(_remote, binding, link))) is not None:
            ends[pci_key(remote)] += 1
    return ends


def _end_kind(binding: Any, link: int, card: Any) -> Any:
    return binding.nvmlDeviceGetNvLinkRemoteDeviceType(card, link)


def _remote(binding: Any, link: int, card: Any) -> str:
    bus_id = binding.nvmlDeviceGetNvLinkRemotePciInfo(card, link).busId
    return bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else str(bus_id)
