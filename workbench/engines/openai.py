"""Servers that speak OpenAI's chat completions as an engine: llama-server, vLLM, TabbyAPI, LM Studio and others."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from workbench.domain.conversation import StopReason
from workbench.domain.layout import Context, Layout
from workbench.domain.memory import CardMemory
from workbench.domain.servers import is_here
from workbench.domain.timing import Timing
from workbench.engines.engine import (
    EngineError,
    Loaded,
    LoadFailed,
    LoadProgress,
    ModelInfo,
    PromptTooLong,
    Request,
    Served,
)
from workbench.engines.here import family, listener
from workbench.engines.http import Http, ServerError, error_text, figure, whole
from workbench.engines.server import Ending, ServerEngine, image_base64, key_of, messages_of, stopped_by_length
from workbench.engines.streams import Events, Heard

MIB = 2**20
STARTING_S = 0.5
"""How often a server that is still starting is asked again."""
NOT_STANDARD = ("top_k", "min_p", "ignore_eos", "cache_prompt", "stream_options")
"""What is sent beyond the standard, and left out from then on where a server refuses it."""


class OpenAIEngine(ServerEngine):
    """A model on a server that loaded it by itself, or does when it is asked."""

    def __init__(self, layout: Layout, key: str | None = None) -> None:
        super().__init__(layout, key)
        self._http = Http(api_base(layout.served_by or ""), layout.timeouts, key)
        self._sends_key_openly = bool(key) and self._http.url.startswith("http:") and not is_here(self._http.url)
        self._refused: set[str] = set()
        self._model = _model({"id": layout.model})
        self._n_ctx = 0
        self._seen = False
        self._name = "OpenAI-compatible server"
        self._warnings: list[str] = []

    @classmethod
    def open(cls, layout: Layout) -> "OpenAIEngine":
        """An engine that has seen its model. Raises LoadFailed."""
        engine = cls(layout, key_of(layout))
        engine.look_at_model()
        return engine

    def look_at_model(self) -> None:
        """See `ServerEngine`. A server without a list of models is believed to have it."""
        try:
            rows = _models(self._http)
        except ServerError as error:
            if error.status == 503:
                return  # it is starting, which `load` waits for
            if error.status not in (404, 405, 501):
                raise LoadFailed(error.reason, key="api_key_env" if error.status in (401, 403) else None) from error
            self._seen = True
            self._warnings.append("the server lists no models, so the model was not looked for")
            return
        row = next((row for row in rows if row["id"] == self._layout.model), None)
        if row is None:
            there = ", ".join(row["id"] for row in rows) or "none"
            raise LoadFailed(f"{self._http.url} has no model {self._layout.model}; it has: {there}", key="model")
        self._seen = True
        self._model = _model(row)
        self._n_ctx = _context_of(row)
        self._name = {"vllm": "vLLM", "llamacpp": "llama-server"}.get(str(row.get("owned_by")).lower(), self._name)

    def _load(self, on_progress: Callable[[LoadProgress], None]) -> Loaded:
        on_progress(LoadProgress(0.0, "the server is asked"))
        begun = time.monotonic()
        self._wait_until_started(begun)
        self._look_at_props()
        on_progress(LoadProgress(1.0, "ready"))
        warnings = list(self._warnings)
        if self._sends_key_openly:
            warnings.append(f"the key goes to {urlsplit(self._http.url).hostname} unencrypted: the url is http")
        return Loaded(
            model=self._model,
            cards=(),
            host=CardMemory(name="CPU", weights_mib=0.0, kv_mib=0.0, compute_mib=0.0, source="server"),
            places=(),
            n_ctx=self._n_ctx,
            flash_attn=None,
            template="the server's own",
            template_is_fallback=False,
            load_s=time.monotonic() - begun,
            pid=0,
            warnings=tuple(warnings),
            served=Served(name=self._name, url=self._http.url, pids=tuple(sorted(family(listener(self._http.url))))),
        )

    def _wait_until_started(self, begun: float) -> None:
        """A server that still loads its model says 503."""
        while True:
            self._still()
            try:
                self._http.ask("GET", "/models")
            except ServerError as error:
                if error.status != 503 or time.monotonic() - begun > self._layout.timeouts.first_token_s:
                    if error.status in (404, 405, 501):
                        return
                    raise
            else:
                if not self._seen:
                    self.look_at_model()
                return
            self._http.pause(STARTING_S)

    def _look_at_props(self) -> None:
        """What llama-server, alone of all, tells of itself."""
        props = Http(self._http.url.removesuffix("/v1"), self._layout.timeouts, self._http.key)
        try:
            answer = props.ask("GET", "/props", patience_s=self._layout.timeouts.connect_s)
        except EngineError:
            return
        settings = answer.get("default_generation_settings") if isinstance(answer, dict) else None
        if isinstance(settings, dict):
            self._n_ctx = whole(settings, "n_ctx") or self._n_ctx
            build = answer.get("build_info")
            self._name = f"llama-server {build}" if isinstance(build, str) else "llama-server"

    def new_context(self, context: Context) -> Loaded:
        """Raises LoadFailed: the context is the server's own."""
        raise LoadFailed("the context of a server is set where it is started", key="context.n_ctx")

    def close(self) -> None:
        """The server and its model stay as they are."""
        self._http.cancel()

    # ── chat ──────────────────────────────────────────────────────────────────────────────
    def _answer(self, request: Request, heard: Heard) -> Ending:
        while True:
            self._still()
            body = self._body(request)
            reply = _Reply(self._http)
            try:
                self._http.stream("/chat/completions", body, partial(reply.take, heard))
                reply.end(heard)
                return self._ending(reply, request, heard)
            except ServerError as error:
                if heard.count:
                    raise
                if not self._leave_out(error, body):
                    raise self._failure(error) from error

    def _body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = dict(self._layout.options)
        body |= {
            "model": self._layout.model,
            "messages": [_message(m.role, m.content, m.images) for m in messages_of(request)],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
        }
        if sampling.max_tokens:
            body["max_tokens"] = sampling.max_tokens
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.ignore_eos:
            body["ignore_eos"] = True
        if request.filler is not None:
            body["cache_prompt"] = False
        return {name: value for name, value in body.items() if name not in self._refused}

    def _leave_out(self, error: ServerError, body: Mapping[str, Any]) -> bool:
        """Whether the server refuses something that it need not know; that is not sent again."""
        named = [name for name in NOT_STANDARD if name in body and re.search(rf"\b{name}\b", error.said)]
        self._refused.update(named)
        return bool(named) and error.status in (400, 422)

    def _failure(self, error: ServerError) -> EngineError:
        body = error.body if isinstance(error.body, dict) else {}
        detail = body.get("error") if isinstance(body.get("error"), dict) else {}
        assert isinstance(detail, dict)
        words = error.said.lower()
        if whole(detail, "n_prompt_tokens") and whole(detail, "n_ctx"):
            return PromptTooLong(whole(detail, "n_prompt_tokens"), whole(detail, "n_ctx"))
        if detail.get("code") == "context_length_exceeded" or "maximum context length" in words:
            figures = [int(figure) for figure in re.findall(r"\d+", words)]
            n_ctx, asked, own = (*figures, 0, 0, 0)[:3]
            # The prompt's own count stands in brackets behind the sum, where it stands at all.
            return PromptTooLong(own if own >= n_ctx else asked, n_ctx)
        if error.status == 404:
            return EngineError(f"{error.reason}; is it the model, or the url? (most end in /v1)")
        return error

    def _ending(self, reply: "_Reply", request: Request, heard: Heard) -> Ending:
        usage = reply.usage
        tokens = whole(usage, "completion_tokens") or None
        details = usage.get("prompt_tokens_details")
        cached = whole(details, "cached_tokens") if isinstance(details, dict) else 0
        timing, caveat = heard.timing(whole(usage, "prompt_tokens"), tokens, cached)
        told = server_timing(reply.timings, heard)
        stop: StopReason = "stop"
        if reply.finish == "length":
            stop = stopped_by_length((told or timing).tokens, request.sampling.max_tokens)
        if told is not None:
            return Ending(stop_reason=stop, timing=told)
        return Ending(stop_reason=stop, timing=timing, caveat=caveat)


class _Reply:
    """What a stream said: its end, its counts, its times; or a whole answer where no stream came."""

    def __init__(self, http: Http) -> None:
        self.finish = ""
        self.usage: Mapping[str, Any] = {}
        self.timings: Mapping[str, Any] = {}
        self._http = http
        self._events = Events()
        self._whole = bytearray()
        self._done = False

    def take(self, heard: Heard, read: bytes, kind: str) -> bool | None:
        """More of the stream; whether text has begun to come, None at its end."""
        heard.read()
        if kind == "application/json":
            self._whole += read
        else:
            for event in self._events.feed(read):
                self._event(event, heard)
                if self._done:
                    return None
        return heard.count > 0

    def end(self, heard: Heard) -> None:
        """The stream is over. Raises EngineError where that was too soon."""
        if self._whole:
            self._event(self._whole.decode("utf-8", "replace"), heard)
        rest = None if self._done else self._events.rest()
        if rest is not None and (rest.strip() == "[DONE]" or rest.rstrip().endswith("}")):
            self._event(rest, heard)
        if not self.finish and not self._done and not heard.count:
            raise EngineError("the server ended the reply before its first word; its log may say why (a prompt that "
                              "is longer than its context?)")
        if not self.finish and not self._done:
            raise EngineError("the server ended the reply without saying so, so some of it may be missing")

    def _event(self, event: str, heard: Heard) -> None:
        if event.strip() == "[DONE]":
            self._done = True
            return
        try:
            value = json.loads(event)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ServerError("the server sent something that is no JSON; is that the address of its API?")
        if value.get("error") or ("message" in value and "choices" not in value):
            said = self._http.clean(error_text(value))
            raise ServerError(f"the server broke off: {said or 'an error without a text'}", said=said, body=value)
        for name in ("usage", "timings"):
            if isinstance(value.get(name), dict):
                setattr(self, name, value[name])
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._choice(choice, heard)

    def _choice(self, choice: Mapping[str, Any], heard: Heard) -> None:
        said = choice.get("delta") or choice.get("message")
        said = said if isinstance(said, dict) else {}
        for name in ("reasoning_content", "reasoning"):
            if isinstance(said.get(name), str):
                heard.think(said[name])
                break
        if isinstance(said.get("content"), str):
            heard.say(said["content"])
        if choice.get("finish_reason"):
            self.finish = str(choice["finish_reason"])


def server_timing(timings: Mapping[str, Any], heard: Heard) -> Timing | None:
    """llama-server's own times; None without them."""
    predicted_ms, predicted_n = figure(timings, "predicted_ms"), whole(timings, "predicted_n")
    if not predicted_n:
        return None
    # Newer ones do not count the first token, which the prompt's last step gave, in their rate.
    per_s = figure(timings, "predicted_per_second")
    decoded = round(per_s * predicted_ms / 1e3) if per_s else predicted_n
    return Timing(
        prompt_tokens=whole(timings, "prompt_n") + whole(timings, "cache_n"),
        evaluated_tokens=whole(timings, "prompt_n"),
        tokens=predicted_n,
        decoded_tokens=min(decoded, predicted_n),
        ttft_s=heard.ttft_s,
        prefill_s=figure(timings, "prompt_ms") / 1e3,
        decode_s=predicted_ms / 1e3,
        source="server",
    )


# ── what it has ───────────────────────────────────────────────────────────────────────────
def api_base(url: str) -> str:
    """Where its API begins: the url, with the usual /v1 where it has no path."""
    return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1"


def list_models(http: Http) -> tuple[ModelInfo, ...]:
    """The models that the server names. Raises EngineError."""
    return tuple(_model(row) for row in _models(http))


def _models(http: Http) -> list[Mapping[str, Any]]:
    answer = http.ask("GET", "/models", patience_s=http.timeouts.connect_s * 2)
    rows = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise ServerError(f"{http.url} does not list its models as OpenAI's servers do; is the url right?")
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]


def _model(row: Mapping[str, Any]) -> ModelInfo:
    """A row of /models; llama-server, vLLM and LM Studio each tell some more."""
    meta = row.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    name = str(row["id"])
    quantisation = row.get("quantization") or meta.get("ftype")
    return ModelInfo(
        path=name,
        name=name.rpartition("/")[2],
        arch=str(row.get("arch") or ""),
        quantisation=quantisation if isinstance(quantisation, str) else "",
        n_layer=0,
        n_ctx_train=whole(meta, "n_ctx_train") or whole(row, "max_context_length"),
        n_params=whole(meta, "n_params"),
        size_mib=whole(meta, "size") / MIB,
    )


def _context_of(row: Mapping[str, Any]) -> int:
    return whole(row, "max_model_len") or whole(row, "loaded_context_length")


def _message(role: str, content: str, images: Sequence[str]) -> dict[str, Any]:
    if not images:
        return {"role": role, "content": content}
    urls = [f"data:{kind};base64,{data}" for kind, data in map(image_base64, images)]
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}]
    return {"role": role, "content": [*parts, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]}
