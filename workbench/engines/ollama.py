"""Ollama as an engine: a model that it loads, answers with and unloads when told to."""

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from workbench.domain.conversation import Sampling
from workbench.domain.layout import Context, Layout
from workbench.domain.memory import CardMemory
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
from workbench.engines.here import family, gone, listener
from workbench.engines.http import Cancelled, Http, ServerError, whole
from workbench.engines.server import Ending, ServerEngine, image_base64, key_of, messages_of, stopped_by_length
from workbench.engines.streams import Heard, Lines

MIB = 2**20
MOST_LAYERS = 4096
"""A model that claims more is not believed."""
LOOK_S = 0.1
"""How often it is asked what it has loaded, while that is waited for."""
LOADED_S = 30.0
UNLOADED_S = 60.0
RELOAD_S = 0.5
"""A prompt before which the model was loaded for longer than this was not timed on a loaded one."""


class OllamaEngine(ServerEngine):
    """One model on one Ollama server.

    n_ctx and n_batch are sent with every request, since the server loads anew when they change.
    """

    def __init__(self, layout: Layout, key: str | None = None) -> None:
        super().__init__(layout, key)
        self._model = ModelInfo(path=layout.model, name=layout.model, arch="", quantisation="", n_layer=0,
                                n_ctx_train=0, n_params=0, size_mib=0.0)  # fmt: skip
        self._version = ""
        self._n_ctx = layout.context.n_ctx
        self._asked_to_load = False
        self._before: frozenset[int] = frozenset()
        """The server's processes before it loaded for us."""
        self._own: frozenset[int] = frozenset()

    @classmethod
    def open(cls, layout: Layout) -> "OllamaEngine":
        """An engine that has seen its model. Raises LoadFailed."""
        engine = cls(layout, key_of(layout))
        engine.look_at_model()
        return engine

    def look_at_model(self) -> None:
        """See `ServerEngine`."""
        try:
            self._version = _version(self._http)
            self._model = self._shown()
        except LoadFailed:
            raise
        except EngineError as error:
            raise LoadFailed(error.reason) from error

    def _shown(self) -> ModelInfo:
        name = self._layout.model
        try:
            shown = self._http.ask("POST", "/api/show", {"model": name})
        except ServerError as error:
            if error.status not in (400, 404):
                raise
            there = ", ".join(model.path for model in list_models(self._http)) or "none"
            reason = f"Ollama has no model {name}; it has: {there} (`ollama pull {name}` fetches it)"
            raise LoadFailed(reason, key="model") from None
        listed = next((model for model in list_models(self._http) if same_name(model.path, name)), None)
        return model_info(name, shown, listed)

    # ── load and unload ───────────────────────────────────────────────────────────────────
    def _load(self, on_progress: Callable[[LoadProgress], None]) -> Loaded:
        on_progress(LoadProgress(0.0, "Ollama loads the model"))
        self._before = family(listener(self._http.url))
        begun = time.monotonic()
        self._asked_to_load = True
        self._http.ask("POST", "/api/chat", self._body(()) | {"stream": False})
        entry = self._wait_until_loaded()
        load_s = time.monotonic() - begun
        self._n_ctx = self._n_ctx or whole(entry, "context_length")
        self._own = family(listener(self._http.url)) - self._before
        on_progress(LoadProgress(1.0, "loaded"))
        return self._loaded(entry, load_s)

    def _wait_until_loaded(self) -> Mapping[str, Any]:
        deadline = time.monotonic() + LOADED_S
        while True:
            self._still()
            entry = self._entry()
            if entry is not None:
                return entry
            if time.monotonic() > deadline:
                raise LoadFailed(f"Ollama said that it loaded {self._layout.model}, and does not list it as loaded; "
                                 "does it have the memory?")
            self._http.pause(LOOK_S)

    def _entry(self) -> Mapping[str, Any] | None:
        entries = _rows(self._http.ask("GET", "/api/ps"))
        return next((entry for entry in entries if same_name(_name(entry), self._layout.model)), None)

    def _loaded(self, entry: Mapping[str, Any], load_s: float) -> Loaded:
        total, on_cards = whole(entry, "size"), whole(entry, "size_vram")
        others = [_name(each) for each in _rows(self._http.ask("GET", "/api/ps"))
                  if not same_name(_name(each), self._layout.model)]  # fmt: skip
        warnings = [f"Ollama holds {name} too, which takes memory and may take time" for name in others]
        if total > on_cards and self._layout.split.n_gpu_layers == "all":
            warnings.append(f"{(total - on_cards) / MIB:.0f} of {total / MIB:.0f} MiB are not on the cards")
        return Loaded(
            model=self._model,
            cards=(),
            host=CardMemory(name="CPU", weights_mib=(total - on_cards) / MIB, kv_mib=0.0, compute_mib=0.0,
                            source="server"),
            places=(),
            n_ctx=whole(entry, "context_length") or self._n_ctx,
            flash_attn=None,
            template="Ollama's own",
            template_is_fallback=False,
            load_s=load_s,
            pid=0,
            warnings=tuple(warnings),
            served=Served(
                name=f"Ollama {self._version}".strip(),
                url=self._http.url,
                total_mib=total / MIB if total else None,
                on_cards_mib=on_cards / MIB if total else None,
                pids=tuple(sorted(family(listener(self._http.url)))),
            ),
        )  # fmt: skip

    def new_context(self, context: Context) -> Loaded:
        """See `Engine`: Ollama loads the model anew for it. Raises LoadFailed, LoadCancelled."""
        self._layout = msgspec.structs.replace(self._layout, context=context)
        self._n_ctx = context.n_ctx
        return self.load(lambda _: None)

    def close(self) -> None:
        """Unload what this engine had loaded."""
        if not self._asked_to_load:
            return
        self._asked_to_load = False
        self._http.cancel()
        self.unload()

    def is_in_memory(self) -> bool:
        """Whether the server holds the model, whoever had it loaded. Raises EngineError."""
        return self._entry() is not None

    def unload(self) -> None:
        """Have the model unloaded, and see it gone: from the server's list, and its process if that is here."""
        with contextlib.suppress(EngineError, Cancelled):
            body = {"model": self._layout.model, "messages": [], "keep_alive": 0, "stream": False}
            self._http.ask("POST", "/api/chat", body, patience_s=UNLOADED_S)
            deadline = time.monotonic() + UNLOADED_S
            while self._entry() is not None and time.monotonic() < deadline:
                self._http.pause(LOOK_S)
            gone(self._own, deadline - time.monotonic())

    # ── chat ──────────────────────────────────────────────────────────────────────────────
    def _body(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling | None = None) -> dict[str, Any]:
        layout = self._layout
        own = dict(layout.options)
        body: dict[str, Any] = {"model": layout.model, "messages": list(messages)}
        if "think" in own:
            body["think"] = own.pop("think")
        if layout.keep_alive is not None:
            body["keep_alive"] = layout.keep_alive
        body["options"] = own | load_options(layout, self._n_ctx) | (sampling_options(sampling) if sampling else {})
        return body

    def _answer(self, request: Request, heard: Heard) -> Ending:
        messages = [_message(message.role, message.content, message.images) for message in messages_of(request)]
        # Nothing is to be left out of the conversation without a word.
        body = self._body(messages, request.sampling) | {"stream": True, "truncate": False, "shift": False}
        lines, last = Lines(), _Last()

        def take(read: bytes, kind: str) -> bool:
            heard.read()
            for line in lines.feed(read):
                last.take(self._line(line), heard)
            return heard.count > 0

        self._still()
        try:
            self._http.stream("/api/chat", body, take)
            rest = lines.rest()
            if rest.rstrip().endswith(b"}"):
                last.take(self._line(rest), heard)
        except ServerError as error:
            raise self._failure(error) from error
        if last.error:
            raise self._failure(ServerError(f"Ollama broke off: {self._http.clean(last.error)}", said=last.error))
        if last.line is None:
            raise EngineError("Ollama ended the reply without its last line, so some of it may be missing")
        return ending(last.line, request, heard)

    def _line(self, line: bytes) -> Mapping[str, Any]:
        if not line.strip():
            return {}
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise EngineError("Ollama sent a line that is no JSON; is that the address of an Ollama server?")
        return value

    def _failure(self, error: ServerError) -> EngineError:
        words = error.said.lower()
        if "context" in words and ("exceed" in words or "too long" in words or "length" in words):
            figures = [int(word) for word in words.replace("(", " ").split() if word.isdigit()]
            return PromptTooLong(max([number for number in figures if number > self._n_ctx], default=self._n_ctx + 1),
                                 self._n_ctx)  # fmt: skip
        return error


class _Last:
    """The line that ends a reply, or the error that does."""

    def __init__(self) -> None:
        self.line: Mapping[str, Any] | None = None
        self.error = ""

    def take(self, line: Mapping[str, Any], heard: Heard) -> None:
        message = line.get("message")
        if isinstance(message, dict):
            heard.think(_text(message.get("thinking")))
            heard.say(_text(message.get("content")))
        if "error" in line:
            self.error = _text(line["error"]) or "an error without a text"
        if line.get("done") is True:
            self.line = line


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _message(role: str, content: str, images: Sequence[str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": content}
    if images:
        message["images"] = [image_base64(path)[1] for path in images]
    return message


def ending(line: Mapping[str, Any], request: Request, heard: Heard) -> Ending:
    """What the last line says. A counter that is 0 is left out of it; without any this side's clock counts."""
    tokens = whole(line, "eval_count")
    reason = line.get("done_reason")
    stop = stopped_by_length(tokens, request.sampling.max_tokens) if reason == "length" else "stop"
    if not tokens and heard.count:
        timing, caveat = heard.timing(whole(line, "prompt_eval_count"))
        return Ending(stop_reason=stop, timing=timing, caveat=caveat)
    prompt_tokens = whole(line, "prompt_eval_count")
    prefill_s = whole(line, "prompt_eval_duration") / 1e9
    # The count is of the whole prompt, the time of what no cache held: a rate only where nothing was cached.
    evaluated = prompt_tokens if request.filler is not None and prefill_s else 0
    timing = Timing(
        prompt_tokens=prompt_tokens,
        evaluated_tokens=evaluated,
        tokens=tokens,
        decoded_tokens=tokens,
        ttft_s=heard.ttft_s,
        prefill_s=prefill_s if evaluated else 0.0,
        decode_s=whole(line, "eval_duration") / 1e9,
        source="server",
    )
    reload_s = whole(line, "load_duration") / 1e9
    caveat = f"Ollama loaded the model again first, for {reload_s:.1f} s" if reload_s > RELOAD_S else ""
    return Ending(stop_reason=stop, timing=timing, caveat=caveat)


def load_options(layout: Layout, n_ctx: int) -> dict[str, Any]:
    """The options that a load depends on. Any main_gpu, 0 too, pins to one card, so it is sent in mode none only."""
    context, split = layout.context, layout.split
    options: dict[str, Any] = {"num_batch": context.n_batch}
    if n_ctx:
        options["num_ctx"] = n_ctx
    if context.n_threads != "auto":
        options["num_thread"] = context.n_threads
    if split.n_gpu_layers != "all":
        options["num_gpu"] = split.n_gpu_layers
    if split.split_mode == "none":
        options["main_gpu"] = split.main_gpu
    return options


def sampling_options(sampling: Sampling) -> dict[str, Any]:
    """Sampling under Ollama's names. It cannot go on past a reply's end."""
    options: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "num_predict": sampling.max_tokens or -1,
    }
    return options if sampling.seed is None else options | {"seed": sampling.seed}


# ── what it has ───────────────────────────────────────────────────────────────────────────
def list_models(http: Http) -> tuple[ModelInfo, ...]:
    """The models that the server has. Raises EngineError."""
    return tuple(_listed(row) for row in _rows(http.ask("GET", "/api/tags")) if _name(row))


def _version(http: Http) -> str:
    try:
        answer = http.ask("GET", "/api/version", patience_s=http.timeouts.connect_s * 2)
    except ServerError as error:
        if error.status == 404:
            raise LoadFailed(f"{http.url} does not answer as Ollama does; is it engine: openai?", key="url") from None
        raise
    return _text(answer.get("version")) if isinstance(answer, dict) else ""


def same_name(one: str, other: str) -> bool:
    """Whether two names mean the same model: without a tag `latest` is meant."""
    first, second = (name if ":" in name.rpartition("/")[2] else f"{name}:latest" for name in (one, other))
    return first.lower() == second.lower()


def _rows(answer: Any) -> list[Mapping[str, Any]]:
    rows = answer.get("models") if isinstance(answer, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _name(row: Mapping[str, Any]) -> str:
    return _text(row.get("model")) or _text(row.get("name"))


def _listed(row: Mapping[str, Any]) -> ModelInfo:
    details = row.get("details")
    details = details if isinstance(details, dict) else {}
    return ModelInfo(
        path=_name(row),
        name=_name(row),
        arch=_text(details.get("family")),
        quantisation=_text(details.get("quantization_level")),
        n_layer=0,
        n_ctx_train=0,
        n_params=0,
        size_mib=whole(row, "size") / MIB,
        digest=_text(row.get("digest")),
    )


def model_info(name: str, shown: Any, listed: ModelInfo | None) -> ModelInfo:
    """What /api/show and the list tell of a model."""
    shown = shown if isinstance(shown, dict) else {}
    details, header = (shown.get(part) if isinstance(shown.get(part), dict) else {} for part in ("details",
                                                                                                 "model_info"))
    assert details is not None
    assert header is not None
    arch = _text(header.get("general.architecture")) or _text(details.get("family"))
    n_layer = whole(header, f"{arch}.block_count")
    return ModelInfo(
        path=name,
        name=name,
        arch=arch,
        quantisation=_text(details.get("quantization_level")),
        n_layer=n_layer if n_layer <= MOST_LAYERS else 0,
        n_ctx_train=whole(header, f"{arch}.context_length"),
        n_params=whole(header, "general.parameter_count"),
        size_mib=listed.size_mib if listed else 0.0,
        digest=listed.digest if listed else "",
    )
