"""llama-cpp-python's own server on a free port, with a clock of its own at its generator: GET /clock.

`python -m tests.servers.llama_cpp_server MODEL N_CTX` prints the port once it serves.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import llama_cpp
import uvicorn
from fastapi import FastAPI
from llama_cpp.server.app import create_app
from llama_cpp.server.settings import ModelSettings, ServerSettings


def timed(create: Callable[..., Any], rates: list[float]) -> Callable[..., Any]:
    """The call that makes replies; each stream's tokens per second, from first to last piece, go to `rates`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        return stamped(made) if kwargs.get("stream") else made

    def stamped(stream: Iterator[Any]) -> Iterator[Any]:
        at: list[float] = []
        for piece in stream:
            if piece["choices"][0]["delta"].get("content"):
                at.append(time.monotonic())
            yield piece
        if len(at) > 1:
            rates.append((len(at) - 1) / (at[-1] - at[0]))

    return call


def main(model: str, n_ctx: str) -> None:
    """Serve until stdin ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print must not stand before the port
    rates: list[float] = []
    llama_cpp.Llama.create_chat_completion = timed(llama_cpp.Llama.create_chat_completion, rates)  # type: ignore[method-assign]
    settings = ModelSettings(model=model, model_alias="tiny", n_ctx=int(n_ctx), verbose=False)
    app: FastAPI = create_app(server_settings=ServerSettings(), model_settings=[settings])
    app.add_api_route("/clock", lambda: rates)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))

    def tell() -> None:
        while not server.started:
            time.sleep(0.02)
        print(listening.getsockname()[1], file=out, flush=True)
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=tell, daemon=True).start()
    server.run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
