"""The machine's cards: llama.cpp's devices joined with what NVML knows of them."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from workbench.domain.card import CPU, Card, CardKind, pci_key
from workbench.domain.topology import Topology, lay_out
from workbench.engines.engine import Loaded
from workbench.engines.llama.client import list_devices
from workbench.engines.llama.wire import Device
from workbench.lab.remedies import Remedies
from workbench.meters.board import Watched, WatchedGpu, WatchedName, WatchedProcess, Watching
from workbench.meters.nvml import Gpu, Nvml
from workbench.meters.pagecache import model_files
from workbench.meters.sample import CardSample
from workbench.meters.topology import read_pairs
from workbench.store.places import places

CUDA = "CUDA"
"""llama.cpp's name for the backend of NVIDIA cards."""


class Lack(NamedTuple):
    """Why there is no GPU to use, the one command that helps, and the title bar's words if cards lie idle."""

    what: str
    helps: str
    warning: str = ""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The cards in llama.cpp's order, the CPU last.

    `lack` says why there is no GPU to use and `helps` is the one command that helps; both are
    None where there is one. `warning` is for the title bar: NVIDIA cards that this engine cannot use.
    """

    cards: tuple[Card, ...]
    lack: str | None = None
    helps: str | None = None
    warning: str = ""

    @property
    def advice(self) -> str | None:
        """Both in one sentence."""
        return None if self.lack is None else f"{self.lack}; try `{self.helps}`" if self.helps else self.lack


def inventory(env: Mapping[str, str | None] | None = None) -> Inventory:
    """Ask llama.cpp, in a process of its own, and NVML. `env` is a layout's, on top of ours.

    Takes about a second. Raises EngineDied if llama.cpp cannot be asked.
    """
    seen = list_devices(env or {}, places().engine_log)
    nvml = Nvml()
    try:
        # By now the child is gone, and so is the memory that asking took on each card.
        samples = {gpu.pci_bus_id: nvml.sample(gpu.pci_bus_id, gpu.pci_bus_id) for gpu in nvml.gpus}
        cards = join(seen.devices, nvml.gpus, samples)
        lack = lacking(cards, seen.backends, nvml, {**os.environ, **(env or {})})
        if lack is None:
            return Inventory(cards=cards)
        return Inventory(cards=cards, lack=lack.what, helps=lack.helps, warning=lack.warning)
    finally:
        nvml.close()


def join(devices: Sequence[Device], gpus: Sequence[Gpu], samples: Mapping[str, CardSample]) -> tuple[Card, ...]:
    """Cards of `devices`; those that NVML knows get its number, UUID and free memory.

    The two agree on PCI domain, bus and device, not on order. A part of a GPU has `-v<i>` behind
    its bus id and keeps llama.cpp's size; of what is free on the GPU it has its part.
    """
    by_key = {pci_key(gpu.pci_bus_id): gpu for gpu in gpus}
    parts = Counter(pci_key(device.device_id or "") for device in devices)
    cards = [
        _card(device, by_key.get(pci_key(device.device_id or "")), samples, parts[pci_key(device.device_id or "")])
        for device in devices
        if device.type != "accel"
    ]
    return tuple(sorted(cards, key=lambda card: card.kind is CardKind.CPU))


def find_topology(cards: Sequence[Card]) -> Topology:
    """How these cards reach each other; asks NVML."""
    nvml = Nvml()
    try:
        return lay_out(cards, read_pairs(nvml))
    finally:
        nvml.close()


def watched(cards: Sequence[Card], loaded: Loaded | None = None) -> tuple[Watched, ...]:
    """What the meters are to read: the cards of the split in its order, then the machine's other GPUs.

    A model that lies on no card is watched as the CPU, by the worker's own memory; one that a
    server holds is looked for on every GPU, by the server's processes.
    """
    by_name = {card.name: card for card in cards}
    if loaded is None or loaded.served is not None:
        pids = loaded.served.pids if loaded is not None and loaded.served is not None else ()
        return tuple(_watch(card.name, card, pids) for card in cards if card.kind is not CardKind.CPU)
    processes = {process.name: process for process in loaded.card_processes}
    out: list[Watched] = []
    for name in (card.name for card in loaded.cards):
        if (process := processes.get(name)) is not None:
            out.append(WatchedProcess(name=name, pid=process.pid, size_mib=process.size_mib))
        else:
            out.append(_watch(name, by_name.get(name), (loaded.pid,)))
    if not out:
        cpu = by_name.get(CPU)
        out.append(WatchedProcess(name=CPU, pid=loaded.pid, size_mib=None if cpu is None else cpu.total_mib))
    seen = {card.name for card in out}
    return (*out, *(card for card in watched(cards) if card.name not in seen))


def watching(cards: Sequence[Card], loaded: Loaded | None = None) -> Watching:
    """The same with what else belongs to a load: its file, its process."""
    if loaded is None or loaded.served is not None:
        return Watching(cards=watched(cards, loaded))
    return Watching(
        cards=watched(cards, loaded), model_files=model_files(loaded.model.path), engine_pid=loaded.pid or None
    )


def _watch(name: str, card: Card | None, pids: tuple[int, ...]) -> Watched:
    if card is None or card.pci_bus_id is None:
        return WatchedName(name=name)
    return WatchedGpu(name=name, pci_bus_id=card.pci_bus_id, pids=pids)


def _card(device: Device, gpu: Gpu | None, samples: Mapping[str, CardSample], parts: int) -> Card:
    bus_id, part, _ = (device.device_id or "").partition("-v")
    card = Card(
        name=device.name,
        kind=_kind(device),
        description=device.description,
        smi_index=None if gpu is None else gpu.index,
        pci_bus_id=bus_id if pci_key(bus_id) else None,
        uuid=None if gpu is None else gpu.uuid,
        total_mib=device.total_mib,
        free_mib=device.free_mib,
        parts=parts if part else 1,
    )
    free = None if gpu is None or gpu.pci_bus_id not in samples else samples[gpu.pci_bus_id].free_mib
    return card if free is None else msgspec.structs.replace(card, free_mib=card.part_of(free))


def _kind(device: Device) -> CardKind:
    if device.type == "cpu":
        return CardKind.CPU
    if re.match(r"CUDA\d", device.name):
        return CardKind.CUDA
    return CardKind.RPC if re.match(r"RPC\d", device.name) else CardKind.GPU


def lacking(
    cards: Sequence[Card], backends: Sequence[str], nvml: Nvml, env: Mapping[str, str | None]
) -> Lack | None:
    """Why there is no GPU to use; None if there is one."""
    if any(card.kind is not CardKind.CPU for card in cards):
        return None
    if not nvml.gpus:
        return Lack(f"no GPU: {nvml.missing or 'the driver names no card'}", "workbench demo")
    count = _counted(len(nvml.gpus))
    if CUDA not in backends:
        what = f"the driver knows {count}, but this llama.cpp was built without CUDA"
        return Lack(what, Remedies().build(cuda=True), f"{count}, built without CUDA")
    if (visible := env.get("CUDA_VISIBLE_DEVICES")) is not None:
        return Lack(f"CUDA_VISIBLE_DEVICES={visible} hides every card", "unset CUDA_VISIBLE_DEVICES")
    what = f"the driver knows {count}, but CUDA does not start on them"
    return Lack(what, "workbench doctor", f"{count}, CUDA does not start")


def _counted(cards: int) -> str:
    return f"{cards} NVIDIA card{'' if cards == 1 else 's'}"
