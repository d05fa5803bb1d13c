"""An RPC server of llama.cpp that owns one card: `python -m tests.benchmarks.gpu.rpc_server PORT DEVICE`.

DEVICE is llama.cpp's name, `CUDA1`, or `CPU`. On the loopback interface; it ends when stdin ends.
"""

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.waiting import wait_until
from workbench.engines.llama.process import worker_environment

THREADS = 1
READY = "ready"


def main() -> None:
    """Serve until stdin ends."""
    from workbench.engines.llama.child import native

    port, name = int(sys.argv[1]), sys.argv[2]
    device = native.device_named(name)
    if device is None:
        sys.exit(f"there is no {name} here; there are: {', '.join(map(native.device_name, native.devices()))}")
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    # It serves on and on, one client after another.
    native.ggml.ggml_backend_rpc_start_server(
        f"127.0.0.1:{port}".encode(), None, ctypes.c_size_t(THREADS), ctypes.c_size_t(1),
        ctypes.byref(ctypes.c_void_p(device)),
    )  # fmt: skip
    sys.exit("the RPC server ended")


@contextmanager
def serving(device: str, env: Mapping[str, str | None]) -> Iterator[tuple[str, int]]:
    """A server that owns the card as an engine with this environment sees it: its `host:port`, and its pid."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(port), device],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=worker_environment(env, virtual=device == "CPU"),
    )

    def listens() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"the RPC server of {device} ended with code {process.returncode}, see above")
        # In the list of the kernel: it serves one client at a time, and a look would be one.
        wanted = f"0100007F:{port:04X}"
        with open("/proc/net/tcp") as table:
            return any(line.split()[1] == wanted and line.split()[3] == "0A" for line in table)

    try:
        wait_until(listens)
        yield f"127.0.0.1:{port}", process.pid
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
