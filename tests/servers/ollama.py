"""Ollama's side of the contract: loads, unloads, counters and all their traps."""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.servers.contract import Behaviour

LAYERS = 30
SIZE = 120 << 20
OPTIONS = {
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "num_keep", "seed", "num_predict", "top_k",
    "top_p", "min_p", "typical_p", "repeat_last_n", "temperature", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "stop",
}  # fmt: skip
RELOADS = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread")
PREFILL_NS, DECODE_NS = 2_000_000, 10_000_000


@dataclass
class Loaded:
    """A model in memory, with its runner, which is a process as Ollama's are."""

    options: dict[str, Any]
    runner: subprocess.Popen[bytes]
    cache: str = ""


class Ollama:
    """Two models; one context each. It ignores options that it does not know, and warns in its log only."""

    chat_path = "/api/chat"
    stream_type = "application/x-ndjson"

    def __init__(self) -> None:
        self.behaviour = Behaviour()
        self._models = ("tiny:latest", "other:7b")
        self._loaded: dict[str, Loaded] = {}
        self._log: list[str] = []
        self._lock = threading.RLock()

    def state(self) -> dict[str, Any]:
        """What is in memory, and the log."""
        held = {name: {"options": it.options, "pid": it.runner.pid} for name, it in self._loaded.items()}
        return {"loaded": held, "log": self._log}

    def forget(self) -> None:
        """Unload everything."""
        with self._lock:
            self._log.clear()
            for name in list(self._loaded):
                self._end(name)

    # ── loads ─────────────────────────────────────────────────────────────────────────────
    def _load(self, name: str, options: dict[str, Any]) -> int:
        """Nanoseconds that loading took; 0 for a model that is loaded with these options."""
        self._log += [f"invalid option provided: {option}" for option in options if option not in OPTIONS]
        wanted = {option: options[option] for option in RELOADS if option in options}
        with self._lock:
            loaded = self._loaded.get(name)
            if loaded is not None and loaded.options == wanted:
                return 0
            if loaded is not None:
                self._end(name)
            time.sleep(self.behaviour.load_s)
            runner = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
            self._loaded[name] = Loaded(wanted, runner)
            return int(self.behaviour.load_s * 1e9) + 1_000_000

    def _end(self, name: str) -> None:
        loaded = self._loaded.pop(name)
        loaded.runner.kill()
        loaded.runner.wait()

    def _unload_soon(self, name: str) -> None:
        def unload() -> None:
            time.sleep(self.behaviour.unload_s)
            with self._lock:
                if name in self._loaded:
                    self._end(name)

        threading.Thread(target=unload, daemon=True).start()

    # ── whole answers ─────────────────────────────────────────────────────────────────────
    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """See `Dialect`."""
        match path:
            case "/api/version":
                return 200, {"version": "0.33.0"}
            case "/api/tags":
                return 200, {"models": [self._row(name) for name in self._models]}
            case "/api/ps":
                with self._lock:
                    return 200, {"models": [self._in_memory(name, it) for name, it in self._loaded.items()]}
            case "/api/show" if self._name(body) is None:
                return 404, {"error": f"model '{body['model']}' not found"}
            case "/api/show":
                return 200, {
                    "details": {"family": "llama", "quantization_level": "Q4_0", "parameter_size": "135M"},
                    "model_info": {"general.architecture": "llama", "general.parameter_count": 135_000_000,
                                   "llama.block_count": LAYERS, "llama.context_length": 8192},
                }  # fmt: skip
            case "/api/chat":
                return self._load_or_unload(body)
        return 404, {"error": "not found"}

    def _load_or_unload(self, body: Any) -> tuple[int, Any]:
        name = self._name(body)
        if name is None:
            return 404, {"error": f"model '{body['model']}' not found"}
        if self.behaviour.trouble.isdigit():
            return int(self.behaviour.trouble), {"error": f"trouble number {self.behaviour.trouble}"}
        if body.get("keep_alive") == 0:
            self._unload_soon(name)
            return 200, self._line(name, done=True, done_reason="unload")
        self._load(name, body.get("options", {}))
        return 200, self._line(name, done=True, done_reason="load")

    def _name(self, body: Any) -> str | None:
        name = body["model"] if ":" in body["model"] else f"{body['model']}:latest"
        return name if name in self._models else None

    def _row(self, name: str) -> dict[str, Any]:
        return {"name": name, "model": name, "size": SIZE, "digest": f"sha-of-{name}",
                "details": {"family": "llama", "quantization_level": "Q4_0"}}  # fmt: skip

    def _in_memory(self, name: str, it: Loaded) -> dict[str, Any]:
        on_cards = min(it.options.get("num_gpu", LAYERS + 1), LAYERS + 1)
        return self._row(name) | {
            "size_vram": SIZE * on_cards // (LAYERS + 1),
            "context_length": it.options.get("num_ctx", 4096),
            "expires_at": "2318-01-01T00:00:00Z",
        }

    # ── chats ─────────────────────────────────────────────────────────────────────────────
    def refuses(self, body: Any) -> tuple[int, Any] | None:
        """See `Dialect`."""
        if self._name(body) is None:
            return 404, {"error": f"model '{body['model']}' not found"}
        prompt, n_ctx = _prompt(body), body["options"].get("num_ctx", 4096)
        if not body.get("truncate", True) and len(prompt.split()) >= n_ctx:
            return 400, {"error": f"the input length {len(prompt.split())} exceeds the context length {n_ctx}"}
        return None

    def lines(self, body: Any) -> Iterator[bytes]:
        """See `Dialect`. Its own time jumps about, which is nobody's business."""
        name, options = self._name(body) or "", body["options"]
        load_ns = self._load(name, options)
        prompt = _prompt(body)
        evaluated = len(prompt.split()) - _shared(prompt, self._loaded[name].cache)
        room = options.get("num_ctx", 4096) - len(prompt.split())
        wanted = options.get("num_predict", -1)
        pieces = list(self.behaviour.reply)
        most = min(room, wanted if wanted > 0 else len(pieces))
        if self.behaviour.talks and wanted > len(pieces):
            pieces = (pieces * (wanted // len(pieces) + 1))[:wanted]
        said = pieces[:most]
        for piece in self.behaviour.thinking if body.get("think") else ():
            yield self._bytes(self._line(name, thinking=piece))
        for piece in said:
            yield self._bytes(self._line(name, piece))
        self._loaded[name].cache = prompt + " " + "".join(said)
        counters = {
            "total_duration": 1_000_000_000,
            "load_duration": load_ns,
            "prompt_eval_count": len(prompt.split()),
            "prompt_eval_duration": evaluated * PREFILL_NS,
            "eval_count": len(said) if self.behaviour.counted is None else self.behaviour.counted,
            "eval_duration": len(said) * DECODE_NS,
        }
        if self.behaviour.trouble == "no counters":
            counters = {}
        full = "length" if len(said) < len(pieces) or len(said) == wanted else "stop"
        present = {counter: value for counter, value in counters.items() if value}
        yield self._bytes(self._line(name, done=True, done_reason=full) | present)

    def error_line(self) -> bytes:
        """See `Dialect`."""
        return self._bytes({"error": "llama-server process no longer running"})

    def _line(self, name: str, text: str = "", *, thinking: str = "", **rest: Any) -> dict[str, Any]:
        year = random.choice((1970, 2026, 2095))
        message = {"role": "assistant", "content": text} | ({"thinking": thinking} if thinking else {})
        return {"model": name, "created_at": f"{year}-01-01T00:00:00Z", "message": message, "done": False} | rest

    def _bytes(self, line: dict[str, Any]) -> bytes:
        ascii_only = self.behaviour.trouble == "surrogates"
        return json.dumps(line, ensure_ascii=ascii_only).encode() + b"\n"


def _prompt(body: Any) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in body["messages"])


def _shared(one: str, other: str) -> int:
    """Words that two prompts begin with alike."""
    count = 0
    for mine, theirs in zip(one.split(), other.split(), strict=False):
        if mine != theirs:
            break
        count += 1
    return count
