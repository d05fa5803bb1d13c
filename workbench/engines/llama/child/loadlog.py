"""What the library's log says of a load: where layers landed, how large each buffer is, what failed."""

import re
import time
from collections.abc import Callable
from typing import Literal

from workbench.engines.llama.child.native import ERROR_LEVEL, MIB

Kind = Literal["weights", "kv", "compute"]

_ASSIGNED = re.compile(r"layer\s+([0-9]{1,9}) assigned to device (\S+?),")
_SIZE = r"([0-9]{1,12}(?:\.[0-9]+)?)"
_BUFFER = re.compile(rf"(?:^|\s)(\S+)\s+(model|KV|RS|output|compute|DSV4 \S+ state) buffer size =\s+{_SIZE} MiB")
_CACHE = re.compile(rf"^llama_\w+: size =\s+{_SIZE} MiB \(")
_KINDS: dict[str, Kind] = {"model": "weights", "KV": "kv", "RS": "kv", "output": "compute", "compute": "compute"}
_REFUSED = (
    re.compile(r"failed to allocate (\S+) buffer of size ([0-9]{1,18})"),
    re.compile(rf"allocating {_SIZE} MiB on device ([0-9]{{1,4}})"),
)
_OUT_OF_MEMORY = re.compile(r"CUDA error: .*(?:out of memory|alloc)")
_ON_DEVICE = re.compile(r"current device: ([0-9]{1,4}),")
_FLASH = re.compile(r"flash_attn\s+= (\w+)|Flash Attention (enabled|disabled)|Flash Attention was auto, set to (\w+)")
_PREFIX = re.compile(r"^[a-zA-Z_:~]+: ")


class Refusal:
    """A buffer that a device would not give: its name as logged, and MiB, None where that is not logged."""

    def __init__(self, buffer: str, mib: float | None) -> None:
        self.buffer = buffer
        self.mib = mib


class LoadLog:
    """Collects from log lines; hand `read` to `LibraryLog.listen`.

    `buffers` holds (name as logged, kind, MiB) in order, `cache_mib` the size of all caches
    together, of a simulation too. `on_kv` is called when the KV cache
    stands and the compute buffers do not yet; `kv_done_ns` is when that was (monotonic).
    """

    def __init__(self) -> None:
        self.on_kv: Callable[[], None] | None = None
        self.start()

    def start(self) -> None:
        """Forget everything: a load begins."""
        self.places: dict[int, str] = {}
        self.buffers: list[tuple[str, Kind, float]] = []
        self.start_context()

    def start_context(self) -> None:
        """Forget all but the weights: a context is made."""
        self.buffers = [buffer for buffer in self.buffers if buffer[1] == "weights"]
        self.cache_mib = 0.0
        self.errors: list[str] = []
        self.refusal: Refusal | None = None
        self._out_of_memory = False
        self.flash_attn = False
        self.kv_done_ns = 0

    def read(self, level: int, line: str) -> None:
        """Take one line."""
        if match := _ASSIGNED.search(line):
            self.places[int(match[1])] = match[2]
        elif match := _BUFFER.search(line):
            self._buffer(match[1], match[2], float(match[3]))
        elif match := _CACHE.search(line):
            self.cache_mib += float(match[1])
        elif match := _FLASH.search(line):
            self.flash_attn = "enabled" in match.groups()
        elif match := _REFUSED[0].search(line):
            self.refusal = self.refusal or Refusal(match[1], int(match[2]) / MIB)
        elif match := _REFUSED[1].search(line):
            self.refusal = self.refusal or Refusal(f"CUDA{match[2]}", float(match[1]))
        elif _OUT_OF_MEMORY.search(line):
            self._out_of_memory = True  # the next line names the device
        elif self._out_of_memory and (match := _ON_DEVICE.search(line)):
            self.refusal = self.refusal or Refusal(f"CUDA{match[1]}", None)
        if level == ERROR_LEVEL:
            self.errors.append(line)

    def _buffer(self, name: str, what: str, mib: float) -> None:
        kind = _KINDS.get(what, "kv")
        self.buffers.append((name, kind, mib))
        if kind == "kv":
            self.kv_done_ns = time.monotonic_ns()
            if self.on_kv is not None:
                self.on_kv()

    def reason(self, otherwise: str) -> str:
        """The library's own last word on what went wrong, without its function names."""
        telling = [line for line in self.errors if not line.startswith("common_")]
        for line in telling:
            if "error loading model" in line or "failed to initialize the context" in line:
                return line.split(": ", 2)[-1]
        return _PREFIX.sub("", telling[-1]) if telling else otherwise
