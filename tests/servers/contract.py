"""A server that keeps to Ollama's or OpenAI's contract, and can be told to break it. Its own process, a real socket.

`python -m tests.servers.contract ollama|openai [CERTIFICATE]` prints its port. PUT /control changes how it
behaves, GET /control tells what it was asked.
"""

import json
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

LONGEST_WAIT_S = 30.0


@dataclass
class Behaviour:
    """What a test may set. `trouble` is what goes wrong with the next replies."""

    trouble: str = ""
    reply: list[str] = field(default_factory=lambda: ["Rivers", " run", " to", " the", " sea", ".", " Ünïcode", " 🦀"])
    each_s: float = 0.0
    first_s: float = 0.0
    load_s: float = 0.0
    unload_s: float = 0.0
    thinking: list[str] = field(default_factory=list)
    flavour: str = "llama-server"
    key: str = ""
    talks: bool = True
    """Whether a reply goes on to the length that is asked for, as that of a model that talks."""
    counted: int | None = None
    """How many tokens it says that a reply has, where that is not how many it has."""
    error_size: int = 0
    """Characters that the text of an error is filled up with."""
    starting: int = 0
    """How many requests are still answered with 503."""


class Dialect(Protocol):
    """What differs between the contracts."""

    behaviour: Behaviour
    chat_path: str
    stream_type: str

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON of anything but a streamed chat."""

    def refuses(self, body: Any) -> tuple[int, Any] | None:
        """Why a chat cannot begin."""

    def lines(self, body: Any) -> Iterator[bytes]:
        """A streamed chat, a line or an event each."""

    def error_line(self) -> bytes:
        """An error in the middle."""

    def state(self) -> dict[str, Any]:
        """What a test may look at."""

    def forget(self) -> None:
        """Be as at the start."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    dialect: Dialect
    seen: list[dict[str, Any]]

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_PUT(self) -> None:
        """Behave otherwise from now on."""
        changes = json.loads(self._read())
        if changes.pop("anew", False):
            self.dialect.behaviour = Behaviour()
            self.dialect.forget()
            self.seen.clear()
        self.dialect.behaviour = replace(self.dialect.behaviour, **changes)
        self._json(200, {})

    def do_GET(self) -> None:
        """Anything that is asked."""
        if self.path == "/control":
            self._json(200, {"seen": self.seen, "behaviour": asdict(self.dialect.behaviour), **self.dialect.state()})
        else:
            self._serve("GET", None)

    def do_POST(self) -> None:
        """A chat, or anything that is asked."""
        self._serve("POST", json.loads(self._read()))

    def _serve(self, method: str, body: Any) -> None:
        behaviour = self.dialect.behaviour
        self.seen.append({"path": self.path, "body": body, "headers": dict(self.headers)})
        if behaviour.key and self.headers.get("Authorization") != f"Bearer {behaviour.key}":
            self._json(401, {"error": {"message": f"no such key: {self.headers.get('Authorization')}"}})
        elif behaviour.trouble == "redirect":
            self._redirect()
        elif behaviour.trouble == "web page":
            self._send(200, b"<html>Welcome</html>", "text/html")
        elif behaviour.starting:
            behaviour.starting -= 1
            self._json(503, {"error": {"message": "Loading model"}})
        elif self.path == self.dialect.chat_path and body.get("messages") and body.get("stream", True):
            try:
                self._chat(body)
            except ConnectionError:  # the client has gone, while this waited or while it wrote
                self.seen.append({"path": "gone", "body": None, "headers": {}})
                raise
        else:
            self._json(*self.dialect.answer(method, self.path, body))

    # ── chats ─────────────────────────────────────────────────────────────────────────────
    def _chat(self, body: Any) -> None:
        behaviour = self.dialect.behaviour
        trouble = behaviour.trouble
        if trouble.isdigit():
            self._json(int(trouble), {"error": f"trouble number {trouble}{'!' * behaviour.error_size}"})
            return
        if trouble == "hangs up":
            self._abort()
            return
        refused = self.dialect.refuses(body)
        if refused is not None:
            self._json(*refused)
            return
        if trouble == "never answers":
            self._wait(LONGEST_WAIT_S)
            self.close_connection = True
            return
        if trouble == "whole":
            message = {"role": "assistant", "content": "".join(behaviour.reply)}
            usage = {"prompt_tokens": 3, "completion_tokens": len(behaviour.reply)}
            self._json(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
            return
        lines = list(self.dialect.lines(body)) if trouble == "buffered" else self.dialect.lines(body)
        if trouble == "buffered":
            self._send(200, b"".join(lines), self.dialect.stream_type)
            return
        self._stream(lines, trouble)

    def _stream(self, lines: Iterable[bytes], trouble: str) -> None:
        behaviour = self.dialect.behaviour
        self.send_response(200)
        self.send_header("Content-Type", self.dialect.stream_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pinged = time.monotonic()
        while trouble == "pings" and time.monotonic() - pinged < behaviour.first_s:
            self._chunk(b": still here\n\n" if self.dialect.stream_type == "text/event-stream" else b"\n")
            self._wait(0.05)
        if trouble != "pings":
            self._wait(behaviour.first_s)
        goes_wrong_at = 0 if trouble in ("error at once", "nothing at all") else 3
        for number, line in enumerate(lines):
            if number == goes_wrong_at and not self._goes_on(trouble):
                return
            if trouble == "byte by byte":
                for byte in line:
                    self._chunk(bytes([byte]))
            elif trouble == "in threes":
                for at in range(0, len(line), 3):
                    self._chunk(line[at : at + 3])
            else:
                self._chunk(line)
            self._wait(behaviour.each_s)
        if trouble == "stays open":
            self._wait(LONGEST_WAIT_S)
        self._chunk(b"")

    def _goes_on(self, trouble: str) -> bool:
        """What goes wrong in a reply, most of it after three lines; whether it goes on."""
        match trouble:
            case "silent":
                self._wait(LONGEST_WAIT_S)
            case "drops":
                self._abort()
            case "cut":
                self.wfile.write(b"40\r\n{\"half")  # a chunk of 64 bytes that never comes whole
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
            case "half a line":
                self._chunk(b'{"message": {"content": "ha' if self.dialect.chat_path == "/api/chat"
                            else b'data: {"choices": [{"delta": {"content": "ha')  # fmt: skip
                self._chunk(b"")
            case "error line" | "error at once":
                self._chunk(self.dialect.error_line())
                self._chunk(b"")
            case "no end" | "nothing at all":
                self._chunk(b"")
            case "no JSON":
                self._chunk(b"this is no JSON\n\n" if self.dialect.chat_path == "/api/chat" else b"data: no JSON\n\n")
                self._chunk(b"")
            case "endless line":
                while True:
                    self._chunk(b"x" * (1 << 20))
            case _:
                return True
        self.close_connection = True
        return False

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _wait(self, seconds: float) -> None:
        """Wait, but not for a client that has gone."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.connection.settimeout(min(left, 0.02))
            try:
                if not isinstance(self.connection, ssl.SSLSocket) and self.connection.recv(1, socket.MSG_PEEK) == b"":
                    raise ConnectionAbortedError
            except TimeoutError:
                continue
            finally:
                self.connection.settimeout(None)

    def _abort(self) -> None:
        """Reset the connection."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    # ── whole answers ─────────────────────────────────────────────────────────────────────
    def _read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _redirect(self) -> None:
        self.send_response(307)
        self.send_header("Location", "http://elsewhere.example/api")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """Threads that end with the process, and no tracebacks for clients that leave."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients of these tests leave when they like."""


def main(which: str, certificate: str | None = None) -> None:
    """Serve until stdin ends."""
    from tests.servers.ollama import Ollama
    from tests.servers.openai import OpenAI

    Handler.dialect = Ollama() if which == "ollama" else OpenAI()
    Handler.seen = []
    server = Server(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
