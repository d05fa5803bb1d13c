"""Cards: the devices that can hold layers."""

import re
from enum import StrEnum

import msgspec

CPU = "CPU"


class CardKind(StrEnum):
    """How a card is reached."""

    CUDA = "cuda"
    GPU = "gpu"
    """A GPU of another backend (Metal, Vulkan, ROCm …)."""
    VIRTUAL = "virtual"
    """A loopback RPC server that the worker itself starts."""
    RPC = "rpc"
    CPU = "cpu"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One device, as llama.cpp and NVML name it.

    `name` is llama.cpp's own (`CUDA0`, `RPC1`, `CPU`); `smi_index` the number that
    nvidia-smi gives the same card; `pci_bus_id` is `0000:c1:00.0` in lower case. `parts` cards
    share one GPU, each being a part of it. Sizes are MiB, None where nobody knows.
    """

    name: str
    kind: CardKind
    description: str = ""
    smi_index: int | None = None
    pci_bus_id: str | None = None
    uuid: str | None = None
    endpoint: str | None = None
    total_mib: float | None = None
    free_mib: float | None = None
    parts: int = 1

    def part_of(self, whole_mib: float) -> float:
        """What this card has of a size of the whole GPU: an even part, and no more than its own size."""
        part = whole_mib / self.parts
        return part if self.total_mib is None or self.parts == 1 else min(part, self.total_mib)


def pci_key(text: str) -> tuple[int, int, int] | None:
    """(domain, bus, device) of a PCI bus id in either spelling; None if it is none.

    CUDA writes the domain with four digits, NVML with eight.
    """
    match = re.match(r"^(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.", text)
    if match is None:
        return None
    domain, bus, device = match.groups(default="0")
    return int(domain, 16), int(bus, 16), int(device, 16)


_UNITS = {"kib": 1 / 1024, "mib": 1.0, "gib": 1024.0, "mb": 1e6 / 2**20, "gb": 1e9 / 2**20}


def parse_mib(text: str) -> float:
    """MiB of a size such as `600MiB`, `1.5 GiB` or `2GB`; ValueError says what is right."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    if match is None or match[2].lower() not in _UNITS or float(match[1]) <= 0:
        raise ValueError(f"`{text}` is not a size; write for example 600MiB or 1.5GiB")
    return float(match[1]) * _UNITS[match[2].lower()]


def format_mib(mib: float) -> str:
    """A size for people: `640 MiB`, `30.2 GiB`."""
    return f"{mib:.0f} MiB" if abs(mib) < 1024 else f"{mib / 1024:.1f} GiB"
