"""OpenAI's side of the contract, with what llama-server, vLLM, TabbyAPI and LM Studio add or leave out."""

import json
from collections.abc import Iterator
from typing import Any

from tests.servers.contract import Behaviour

N_CTX = 2048
STANDARD = {"model", "messages", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed"}
ROWS: dict[str, dict[str, Any]] = {
    "llama-server": {
        "owned_by": "llamacpp",
        "meta": {"n_ctx_train": 8192, "n_params": 135_000_000, "size": 96 << 20, "ftype": "Q4_0"},
    },
    "vllm": {"owned_by": "vllm", "max_model_len": N_CTX},
    "lm studio": {"arch": "llama", "quantization": "Q4_0", "max_context_length": 8192, "loaded_context_length": N_CTX},
    "tabby": {"owned_by": "tabbyAPI"},
    "strict": {"owned_by": "openai"},
    "plain": {},
}


class OpenAI:
    """One model, always loaded."""

    chat_path = "/v1/chat/completions"
    stream_type = "text/event-stream"

    def __init__(self) -> None:
        self.behaviour = Behaviour()

    def state(self) -> dict[str, Any]:
        """Nothing of its own."""
        return {}

    def forget(self) -> None:
        """Nothing is kept."""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """See `Dialect`."""
        flavour = self.behaviour.flavour
        if path == "/v1/models" and flavour != "no list":
            return 200, {"object": "list", "data": [{"id": "tiny", "object": "model"} | ROWS[flavour]]}
        if path == "/props" and flavour == "llama-server":
            return 200, {"default_generation_settings": {"n_ctx": N_CTX}, "build_info": "b7000-abc"}
        return 404, {"error": {"message": f"no such path {path}", "code": 404}}

    def refuses(self, body: Any) -> tuple[int, Any] | None:
        """See `Dialect`."""
        if body["model"] != "tiny":
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}}
        unknown = [name for name in body if name not in STANDARD]
        if self.behaviour.flavour == "strict" and unknown:
            return 400, {"error": {"message": f"Unrecognized request argument supplied: {unknown[0]}"}}
        asked = _words(body)
        if asked >= N_CTX and self.behaviour.flavour == "llama-server":
            return 400, {"error": {"message": "too long", "type": "exceed_context_size_error",
                                   "n_prompt_tokens": asked, "n_ctx": N_CTX}}  # fmt: skip
        if asked >= N_CTX:
            return 400, {"object": "error", "message": f"This model's maximum context length is {N_CTX} tokens. "
                         f"However, you requested {asked + 16} tokens ({asked} in the messages, 16 in the completion)."}
        return None

    def lines(self, body: Any) -> Iterator[bytes]:
        """See `Dialect`."""
        flavour = self.behaviour.flavour
        pieces = list(self.behaviour.reply)
        wanted = body.get("max_tokens", 0)
        said = (pieces * (wanted // len(pieces) + 1))[:wanted] if wanted else pieces
        yield _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for piece in self.behaviour.thinking:
            yield self._piece({"reasoning_content": piece})
        for piece in said:
            yield self._piece({"content": piece})
        last: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length" if wanted else "stop"}]}
        if flavour == "llama-server" and self.behaviour.trouble != "no counters":
            steps = max(1, len(said) - 1)
            last["timings"] = {"cache_n": 3, "prompt_n": _words(body), "prompt_ms": _words(body) * 2.0,
                               "predicted_n": self._counted(said), "predicted_ms": steps * 10.0,
                               "predicted_per_second": 100.0}  # fmt: skip
        yield _event(last)
        if flavour not in ("plain", "tabby") and self.behaviour.trouble != "no counters":
            usage = {"prompt_tokens": _words(body), "completion_tokens": self._counted(said)}
            yield _event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"
        if self.behaviour.trouble in ("goes on", "stays open"):
            yield self._piece({"content": " And on."})

    def _counted(self, said: list[str]) -> int:
        return len(said) if self.behaviour.counted is None else self.behaviour.counted

    def _piece(self, delta: dict[str, Any]) -> bytes:
        return _event({"choices": [{"index": 0, "delta": delta}]}, ascii_only=self.behaviour.trouble == "surrogates")

    def error_line(self) -> bytes:
        """See `Dialect`."""
        return _event({"error": {"message": "CUDA error: out of memory", "code": 500}})


def _event(value: dict[str, Any], *, ascii_only: bool = False) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=ascii_only)}\n\n".encode()


def _words(body: Any) -> int:
    return sum(len(str(message["content"]).split()) for message in body["messages"])
