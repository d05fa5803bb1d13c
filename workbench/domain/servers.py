"""What a layout may ask of a server that runs already, and what would do the rest."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from workbench.domain.faults import Fault, is_unprintable, nearest
from workbench.domain.layout import Context, EngineName, Layout
from workbench.domain.split import Split, Virtual
from workbench.domain.text import flat, visible

LONGEST_S = 86_400.0
SERVER_KEYS = ("url", "api_key_env", "keep_alive", "options", "timeouts")
_DURATION = re.compile(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+")
_SAMPLING = "comes with each prompt: --temperature, --seed, --max-tokens, or the prompt set"

OLLAMA_OPTIONS: dict[str, tuple[type, ...]] = {
    "frequency_penalty": (int, float),
    "num_keep": (int,),
    "presence_penalty": (int, float),
    "repeat_last_n": (int,),
    "repeat_penalty": (int, float),
    "stop": (list, tuple),
    "think": (bool, str),
    "typical_p": (int, float),
    "use_mmap": (bool,),
}
"""Ollama's options that have no key of their own in a layout. It ignores unknown ones without a word."""
OLLAMA_ELSEWHERE = {
    "num_ctx": "is context.n_ctx here; write context: {n_ctx: …}",
    "num_batch": "is context.n_batch here; write context: {n_batch: …}",
    "num_thread": "is context.n_threads here; write context: {n_threads: …}",
    "num_gpu": "is split.n_gpu_layers here; write split: {n_gpu_layers: …}",
    "main_gpu": "is split.main_gpu here; write split: {split_mode: none, main_gpu: …}, which pins to that card",
    **dict.fromkeys(("num_predict", "temperature", "top_k", "top_p", "min_p", "seed"), _SAMPLING),
    "tensor_split": "is no option of Ollama; start the server with LLAMA_ARG_TENSOR_SPLIT=…",
    "split_mode": "is no option of Ollama; start the server with LLAMA_ARG_SPLIT_MODE=…",
}
OPENAI_RESERVED = {
    **dict.fromkeys(("model", "messages", "stream", "stream_options", "n"), "is set by workbench; leave it out"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "temperature", "top_k", "top_p", "min_p", "seed",
                     "ignore_eos"), _SAMPLING),
    **dict.fromkeys(("api_key", "key", "authorization"), "never stands in a file; name its variable in api_key_env"),
}  # fmt: skip


def check_server(layout: Layout) -> list[Fault]:
    """Faults of a layout whose engine is a server."""
    faults = _check_url(layout) + _check_key(layout) + _check_timeouts(layout) + _check_keep_alive(layout)
    faults += [Fault(f"options.{name}", message) for name, message in _options(layout)]
    faults += [Fault(f"split.{key}", message) for key, message in _split(layout)]
    faults += [Fault(f"context.{key}", message) for key, message in _context(layout)]
    faults += [
        Fault(f"env.{name}", f"cannot be set for a server that runs already; start the server with {name}={value}"
              if value is not None else "cannot be unset for a server that runs already; leave it out")
        for name, value in layout.env.items()
    ]  # fmt: skip
    return faults


def check_no_server(layout: Layout) -> list[Fault]:
    """Faults of keys that only servers have, in a layout of llama.cpp."""
    return [
        Fault(key, "is for the engines ollama and openai; leave it out, or write engine: ollama")
        for key in SERVER_KEYS
        if getattr(layout, key) != next(f.default for f in msgspec.structs.fields(Layout) if f.name == key)
        and getattr(layout, key) not in ({}, None)
    ]


def is_here(url: str) -> bool:
    """Whether an address is of this machine's loopback for certain."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_reasons(engine: EngineName) -> dict[str, str]:
    """Why a key of the split cannot be asked of an engine, and what would do it; `{mode}` is for the mode asked."""
    if engine == "openai":
        return dict.fromkeys(
            ("split_mode", "tensor_split", "layers", "main_gpu", "n_gpu_layers", "cards"),
            "a server is split where it is started: `workbench export LAYOUT --as llama-server` prints how",
        )
    if engine == "ollama":
        return {
            "split_mode": "Ollama takes no mode in a request; start it with LLAMA_ARG_SPLIT_MODE={mode} ollama serve",
            "tensor_split": "Ollama takes no shares in a request; start it with LLAMA_ARG_TENSOR_SPLIT=3,1 ollama "
            "serve, or OLLAMA_SCHED_SPREAD=1 ollama serve to use all cards",
            "cards": "Ollama chooses the cards; start it with CUDA_VISIBLE_DEVICES=0,1 ollama serve",
        }
    return {}


# ── url, key, time ────────────────────────────────────────────────────────────────────────
def _check_url(layout: Layout) -> list[Fault]:
    url = layout.url
    if url is None:
        return [] if layout.engine == "ollama" else [Fault("url", "is missing; write for example "
                                                           "url: http://127.0.0.1:8080/v1")]
    message = url_fault(url)
    return [] if message is None else [Fault("url", message)]


def is_variable(name: str) -> bool:
    """Whether an environment variable can have this name."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", name) is not None


def url_fault(url: str) -> str | None:
    """What is wrong with a server's address, None if nothing is."""
    right = "write for example http://127.0.0.1:11434"
    if is_unprintable(url) or any(char.isspace() for char in url):
        return f"has a space or a control character; {right}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return f"is no address; {right}"
    if parts.username is not None or parts.password is not None:
        return "holds a name or a password; leave it out, and name the key's variable in api_key_env"
    if parts.scheme not in ("http", "https"):
        known = f"begins with {parts.scheme}:" if parts.scheme and host else "has no http:// or https://"
        return f"{known}; only http and https are spoken; {right}"
    if not host:
        return f"names no host; {right}"
    if port == 0:
        return f"has the port 0; {right}"
    if parts.query or parts.fragment:
        return f"has a ? or # part; {right}"
    if not host.isascii() or "xn--" in host:
        return _name_fault(url, right)
    return None


def _name_fault(url: str, right: str) -> str | None:
    """The same of a host whose name has letters of other scripts, or stands for such a one."""
    import httpx

    try:
        return None if httpx.URL(url).host else f"names no host; {right}"
    except (httpx.InvalidURL, UnicodeError) as error:
        return f"names a host that cannot be ({visible(flat(str(error)))}); {right}"


def _check_key(layout: Layout) -> list[Fault]:
    name = layout.api_key_env
    if name is None or is_variable(name):
        return []
    # What stands there may be the key itself: it is not repeated.
    return [Fault("api_key_env", "is no name of an environment variable; write the name of the variable that holds "
                  "the key, such as OPENAI_API_KEY, never the key")]


def _check_timeouts(layout: Layout) -> list[Fault]:
    return [
        Fault(f"timeouts.{name}", f"{value:g} cannot be; write seconds, more than 0 and at most {LONGEST_S:.0f}")
        for name in layout.timeouts.__struct_fields__
        if not 0 < (value := getattr(layout.timeouts, name)) <= LONGEST_S
    ]


def _check_keep_alive(layout: Layout) -> list[Fault]:
    value = layout.keep_alive
    if value is None:
        return []
    if layout.engine != "ollama":
        return [Fault("keep_alive", "is known to Ollama only; leave it out")]
    if isinstance(value, str) and not _DURATION.fullmatch(value):
        right = "write for example 10m, a number of seconds, or -1 for ever"
        return [Fault("keep_alive", f"`{value}` is no time; {right}")]
    return []


# ── options ───────────────────────────────────────────────────────────────────────────────
def _options(layout: Layout) -> Iterator[tuple[str, str]]:
    for name, value in layout.options.items():
        message = _ollama_option(name, value) if layout.engine == "ollama" else OPENAI_RESERVED.get(name)
        if message is not None:
            yield name, message


def _ollama_option(name: str, value: Any) -> str | None:
    if name in OLLAMA_ELSEWHERE:
        return OLLAMA_ELSEWHERE[name]
    kinds = OLLAMA_OPTIONS.get(name)
    if kinds is None:
        known = nearest(name, [*OLLAMA_OPTIONS, *OLLAMA_ELSEWHERE]) or f"; the options are {', '.join(OLLAMA_OPTIONS)}"
        return f"is no option of Ollama, which would ignore it without a word{known}"
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if name == "think":
        fits = isinstance(value, bool) or value in ("low", "medium", "high")
    if name == "stop":
        fits = fits and all(isinstance(text, str) for text in value)
    return None if fits else f"does not fit; write {_right(name, kinds)}"


def _right(name: str, kinds: tuple[type, ...]) -> str:
    if name == "think":
        return "true, false, low, medium or high"
    words = {bool: "true or false", int: "a whole number", float: "a number", list: "a list of texts"}
    return words[float if float in kinds else kinds[0]]


# ── split and context ─────────────────────────────────────────────────────────────────────
def _split(layout: Layout) -> Iterator[tuple[str, str]]:
    split, plain = layout.split, Split()
    reasons = split_reasons(layout.engine)
    if layout.engine == "openai":
        for name in split.__struct_fields__:
            if getattr(split, name) != getattr(plain, name):
                yield name, reasons[name]
        return
    if split.split_mode in ("tensor", "row"):
        mode = split.split_mode
        yield "split_mode", _start(f"takes no split_mode {mode}", f"LLAMA_ARG_SPLIT_MODE={mode}")
    if split.split_mode == "layer" and split.main_gpu:
        yield "main_gpu", "pins all layers to one card in Ollama; write split_mode: none beside it, or leave it out"
    if not isinstance(split.tensor_split, str):
        yield "tensor_split", _start("takes no shares", f"LLAMA_ARG_TENSOR_SPLIT={_joined(split.tensor_split)}")
    if split.layers is not None:
        rest = f", and write n_gpu_layers: {sum(split.layers)}"
        yield "layers", _start("takes no counts by card", f"LLAMA_ARG_TENSOR_SPLIT={_joined(split.layers)}") + rest
    if isinstance(split.cards, Virtual):
        yield "cards.virtual", "Ollama has no virtual cards; leave cards out"
    elif split.cards is not None:
        numbers = [re.sub(r"^CUDA", "", card) for card in split.cards]
        yield "cards", _start("chooses the cards itself", f"CUDA_VISIBLE_DEVICES={','.join(numbers)}")


def _joined(figures: tuple[float, ...]) -> str:
    return ",".join(f"{figure:g}" for figure in figures)


def _start(what: str, setting: str) -> str:
    return f"Ollama {what}; leave this out, and start the server with `{setting} ollama serve`"


def _context(layout: Layout) -> Iterator[tuple[str, str]]:
    context, plain = layout.context, Context()
    if layout.engine == "openai":
        for name in context.__struct_fields__:
            if getattr(context, name) != getattr(plain, name):
                yield name, "is set where the server is started; leave it out"
        return
    if context.n_ubatch != plain.n_ubatch:
        yield "n_ubatch", _start("takes no n_ubatch", f"LLAMA_ARG_UBATCH={context.n_ubatch}")
    for name in ("type_k", "type_v"):
        kind = getattr(context, name)
        if kind != "f16":
            yield name, _start(f"takes no {name}", f"OLLAMA_KV_CACHE_TYPE={kind}")
    if context.flash_attn != "auto":
        yield "flash_attn", _start("takes no flash_attn", f"OLLAMA_FLASH_ATTENTION={int(context.flash_attn)}")
