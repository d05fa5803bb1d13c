"""Servers that run for the length of a test session: the contract's, and llama-cpp-python's own."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Contract:
    """The contract's server: where it is, how it behaves, what it was asked."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def anew(self, **behaviour: Any) -> None:
        """Forget all that was asked, and behave as it should but for this."""
        self._call("PUT", {"anew": True})
        if behaviour:
            self.behave(**behaviour)

    def behave(self, **behaviour: Any) -> None:
        """Behave otherwise from now on."""
        self._call("PUT", behaviour)

    @property
    def state(self) -> dict[str, Any]:
        """What it was asked, and what it holds."""
        state: dict[str, Any] = self._call("GET")
        return state

    def asked(self, path: str) -> list[Any]:
        """The bodies of the requests to a path."""
        return [seen["body"] for seen in self.state["seen"] if seen["path"] == path]

    def _call(self, method: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/control", data, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return json.load(answer)


@contextmanager
def contract(dialect: str, *more: str) -> Iterator[Contract]:
    """The contract's server in a process of its own; with TLS it is at https and cannot be controlled."""
    with _process("tests.servers.contract", dialect, *more) as port:
        yield Contract(port)


@contextmanager
def llama_cpp_server(model: str | Path, n_ctx: int = 1024) -> Iterator[str]:
    """llama-cpp-python's own server, whose model is called `tiny`; its address."""
    with _process("tests.servers.llama_cpp_server", str(model), str(n_ctx)) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[int]:
    """A module that prints its port and serves until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
        # Threads that spin while they wait would take the cores from the tests.
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.strip().isdigit(), f"{module} did not start: {line}"
        yield int(line)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.terminate()
        process.wait(10)
