"""A virtual card: a loopback RPC server of llama.cpp in a process of its own, with a size.

`python -m workbench.engines.llama.child.rpc_card PORT SIZE_MIB STAGING_MIB THREADS`, started by the worker.
STAGING_MIB is room for the server's receive buffer, which is as large as the tensor on its way.
It answers each line on stdin with its ledger of buffers (one JSON line on stdout), and ends
when stdin ends: with the worker, whatever ended that.
"""

import ctypes
import importlib.util
import os
import re
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

MIB = 1024 * 1024
STACK_MIB = 9
"""What one compute thread adds to the process's data: its stack and heap arena."""
PR_SET_PDEATHSIG = 1
NICENESS = 5
"""A virtual card takes the cores that the screen and the forecast also need: it gives way to them."""


class Allocation(msgspec.Struct):
    """One buffer: when (ns, monotonic), bytes, whether it was refused, whether it is gone."""

    at_ns: int
    size: int
    failed: bool = False
    freed: bool = False


class Ledger:
    """The buffers of this card, read from the server's own debug lines."""

    _ALLOC = re.compile(
        rb"\[alloc_buffer\].* size: (\d{1,18}) -> (?:remote_ptr: ([0-9a-f]+), remote_size: (\d{1,18})|failed)"
    )
    _STAGING = re.compile(rb"Failed to allocate input buffer of size (\d{1,18})")
    _FREE = re.compile(rb"\[free_buffer\] remote_ptr: ([0-9a-f]+)")

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self._live: dict[bytes, Allocation] = {}

    def read(self, line: bytes) -> None:
        """Note what a debug line says of buffers."""
        if b"[alloc_buffer]" in line and (match := self._ALLOC.search(line)):
            failed = match[2] is None
            allocation = Allocation(time.monotonic_ns(), int(match[1] if failed else match[3]), failed)
            self.allocations.append(allocation)
            if not failed:
                self._live[match[2]] = allocation
        elif b"Failed" in line and (match := self._STAGING.search(line)):
            self.allocations.append(Allocation(time.monotonic_ns(), int(match[1]), failed=True))
        elif b"[free_buffer]" in line and (match := self._FREE.search(line)) and match[1] in self._live:
            self._live.pop(match[1]).freed = True


def _data_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _limit_memory(size_mib: float, staging_mib: float, threads: int) -> None:
    """Give the process a real size: past it the allocator is refused, as on a full card."""
    limit = int((_data_mib() + size_mib + staging_mib + STACK_MIB * (threads + 2)) * MIB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _answer(ledger: Ledger) -> None:
    for _ in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(ledger.allocations) + b"\n")
        sys.stdout.buffer.flush()
    os._exit(0)


def main() -> None:
    """Serve until stdin ends."""
    port, size_mib, staging_mib, threads = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    if sys.platform == "linux":
        # A stopped process cannot see its stdin end; the kernel's signal reaches it all the same.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(NICENESS)
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        sys.exit("llama_cpp is not installed")
    os.environ["GGML_RPC_DEBUG"] = "1"
    # llama_cpp itself is not imported: this process needs ggml alone, and starts five times faster.
    ggml = ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libggml.so"))

    ledger = Ledger()
    log_callback_type = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    on_line = log_callback_type(lambda level, text, data: ledger.read(text))
    ggml.ggml_log_set(on_line, None)
    ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    device = ctypes.c_void_p(ggml.ggml_backend_dev_by_type(0))

    _limit_memory(size_mib, staging_mib, threads)
    threading.Thread(target=_answer, args=(ledger,), daemon=True).start()
    # The server prints to C stdout, which here is the ledger's pipe: point fd 1 at the log.
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ggml.ggml_backend_rpc_start_server(
        f"127.0.0.1:{port}".encode(), None, ctypes.c_size_t(threads), ctypes.c_size_t(1), ctypes.byref(device)
    )
    os._exit(1)


if __name__ == "__main__":
    main()
