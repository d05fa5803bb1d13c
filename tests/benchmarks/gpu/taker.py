"""A second process that takes memory of a GPU: `python -m tests.benchmarks.gpu.taker PCI_BUS_ID`.

Each line on stdin is how many MiB to leave free there; `all` gives everything back. Each is
answered with the MiB that the driver then calls free. Ends, and frees all, when stdin ends.
"""

import ctypes
import os
import subprocess
import sys
from types import TracebackType
from typing import Any

MIB = 2**20
NEAR_MIB = 2
"""The driver gives memory in pieces of this size."""


class CudaError(Exception):
    """A call of the driver failed."""


class Driver:
    """The few calls of CUDA's driver that this takes, in a context on one card."""

    def __init__(self, pci_bus_id: str) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGetByPCIBusId", ctypes.byref(device), ctypes.c_char_p(pci_bus_id.encode()))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def free_mib(self) -> float:
        """What can still be allocated."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value / MIB

    def allocate(self, mib: int) -> int:
        """Take so much. Raises CudaError."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(mib * MIB))
        return address.value

    def free(self, address: int) -> None:
        """Give it back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise CudaError(f"{name} failed with {code}")


def take_all_but(driver: Driver, leave_mib: float) -> list[int]:
    """Allocate until no more than `leave_mib` is free; smaller pieces where large ones are refused."""
    taken: list[int] = []
    piece = int(driver.free_mib() - leave_mib)
    while (over := int(driver.free_mib() - leave_mib)) >= NEAR_MIB and piece >= NEAR_MIB:
        try:
            taken.append(driver.allocate(min(piece, over)))
        except CudaError:
            piece //= 2
    return taken


def main() -> None:
    driver = Driver(sys.argv[1])
    taken: list[int] = []
    print(driver.free_mib(), flush=True)
    for line in sys.stdin:
        for address in taken:
            driver.free(address)
        taken = [] if line.strip() == "all" else take_all_but(driver, float(line))
        print(driver.free_mib(), flush=True)


class Taker:
    """The process, from this side."""

    def __init__(self, pci_bus_id: str) -> None:
        env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, pci_bus_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self._hear()

    def leave(self, mib: float) -> float:
        """Leave so much free on the card; what the driver says is left."""
        return self._say(f"{mib:.0f}")

    def give_back(self) -> float:
        """Give everything back; what the driver says is free."""
        return self._say("all")

    def __enter__(self) -> "Taker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def _say(self, line: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the process that is to take memory ended; what it said is above")
        return float(line)


if __name__ == "__main__":
    main()
