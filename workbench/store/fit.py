"""Plain values against the domain's types, one message a fault."""

import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from workbench.domain.conversation import Message, Sampling
from workbench.domain.duty import Price
from workbench.domain.faults import Fault, nearest
from workbench.domain.layout import Context, Layout, Timeouts
from workbench.domain.prompts import Prompt, PromptSet, Synthetic
from workbench.domain.rules import check_env
from workbench.domain.split import Split, Virtual
from workbench.store.config import Config, UserKeys
from workbench.store.tree import Tree, join

_COUNT = "a whole number"
_TEXT = "text"
RIGHT: dict[type, dict[str, str]] = {
    Layout: {
        "name": "a short name",
        "engine": "",
        "model": "a path, a glob, demo:smollm2, or a model's name on a server",
        "url": "a server's address, for example http://127.0.0.1:11434",
        "api_key_env": "the name of the environment variable that holds the key",
        "keep_alive": "a time, for example 10m, or -1 for ever",
        "options": "a mapping of the server's own options",
        "timeouts": "a mapping, for example {connect_s: 5, first_token_s: 600, silence_s: 120}",
        "split": "a mapping, for example {split_mode: layer, tensor_split: [3, 1]}",
        "context": "a mapping, for example {n_ctx: 8192}",
        "env": "a mapping of engine variables, for example {GGML_CUDA_P2P: \"1\"}",
    },
    Timeouts: dict.fromkeys(("connect_s", "first_token_s", "silence_s"), "a number of seconds"),
    Split: {
        "split_mode": "",
        "tensor_split": "auto, or shares in the order of the cards, for example [3, 1]",
        "layers": "whole layer counts in the order of the cards, for example [61, 20]",
        "main_gpu": "the number of a card, counted from 0",
        "n_gpu_layers": "all, or a count",
        "cards": "a list such as [CUDA0, CUDA1], or {virtual: [600MiB, 300MiB]}",
    },
    Virtual: {"virtual": "one size a card, for example [600MiB, 300MiB]"},
    Context: {
        "n_ctx": "a number of tokens, for example 8192",
        "n_batch": "a number of tokens, for example 2048",
        "n_ubatch": "a number of tokens, for example 512",
        "n_threads": "auto, or a count",
        "type_k": "",
        "type_v": "",
        "flash_attn": "auto, true or false",
    },
    PromptSet: {
        "name": "a short name",
        "defaults": "a mapping, for example {max_tokens: 128, temperature: 0}",
        "prompts": "a list, for example [{id: hello, text: Say hello.}]",
    },
    Prompt: {
        "id": "a short name",
        "text": _TEXT,
        "system": _TEXT,
        "messages": "a list, for example [{role: user, content: Hello}]",
        "synthetic": "a mapping, for example {prompt_tokens: 2048, max_tokens: 64}",
        "depth": _COUNT,
        "repeat": _COUNT,
    },
    Synthetic: {"prompt_tokens": _COUNT, "max_tokens": _COUNT},
    Message: {"role": "", "content": _TEXT, "images": "a list of image files, for example [chart.png]"},
    Sampling: {
        "max_tokens": _COUNT,
        "temperature": "a number, for example 0.8",
        "top_k": _COUNT,
        "top_p": "a number from 0 to 1",
        "min_p": "a number from 0 to 1",
        "seed": _COUNT,
        "ignore_eos": "true or false",
    },
    Config: {
        "model_folders": "a list of folders, for example [~/models]",
        "price": "a mapping, for example {currency: EUR, per_hour: 2.5}",
        "api_keys": "a mapping, for example {OPENAI_API_KEY: [https://api.openai.com]}",
        "rpc_servers": "a list, for example [\"gpu-2:50052\"]",
    },
    UserKeys: {"keys": "a mapping of actions to keys, for example {compare: F3}"},
    Price: {"currency": "a currency, for example EUR", "per_hour": "a number", "per_kwh": "a number"},
}
"""What is right for each key; empty where the type lists its words itself."""
RIGHT[Prompt] |= RIGHT[Sampling]
_SWITCHES = {"on": True, "yes": True, "off": False, "no": False}


def fit(tree: Tree, kind: type) -> tuple[Any, list[Fault]]:
    """The tree's value, ready for msgspec.convert to `kind`, and every fault that stands in the way."""
    fields = msgspec.structs.fields(kind)
    if tree.value is None and not any(field.required for field in fields):
        return {}, []
    if not isinstance(tree.value, dict):
        holds = "is empty" if tree.value is None else f"holds {_shown(tree.value)} where keys belong"
        return None, [Fault("", f"{holds}; write `key: value` lines, first `{fields[0].name}: …`")]
    fitter = _Fitter(tree)
    return fitter.struct(tree.value, kind, ""), fitter.faults


class _Fitter:
    def __init__(self, tree: Tree) -> None:
        self.faults: list[Fault] = []
        self._raw = tree.raw

    def struct(self, value: dict[str, Any], kind: Any, key: str) -> dict[str, Any]:
        """A mapping against a struct type."""
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        out = {}
        for name, entry in value.items():
            here = join(key, name)
            if name not in fields:
                known = nearest(name, fields) or f"; the keys here are {', '.join(fields)}"
                if entry is None:
                    known = f", and has no value{known}; put a text with a comma in it in quotes"
                self.faults.append(Fault(here, f"is no key of {_place_of(key)}{known}"))
            else:
                out[name] = self.value(entry, fields[name].type, here, _right(kind, name))
        for name, field in fields.items():
            if field.required and name not in value:
                self.faults.append(Fault(join(key, name), f"is missing; write {_right(kind, name)}"))
        return out

    def value(self, value: Any, kind: Any, key: str, right: str) -> Any:
        """Any value against its declared type."""
        options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
        for option in options:
            origin = typing.get_origin(option)
            if isinstance(value, dict) and isinstance(option, type) and issubclass(option, msgspec.Struct):
                return self.struct(value, option, key)
            if isinstance(value, list) and origin is tuple:
                item = typing.get_args(option)[0]
                if isinstance(item, type) and issubclass(item, msgspec.Struct):
                    right = f"a mapping with the keys {', '.join(item.__struct_fields__[:4])}"
                return [self.value(each, item, f"{key}[{at}]", right) for at, each in enumerate(value)]
            if isinstance(value, dict) and origin is dict and typing.get_args(option)[1] is Any:
                return value
            if isinstance(value, dict) and option == dict[str, str | None]:
                return {name: self.variable(name, each, join(key, name)) for name, each in value.items()}
            if isinstance(value, dict) and origin is dict:
                item = typing.get_args(option)[1]
                return {name: self.value(each, item, join(key, name), right) for name, each in value.items()}
        if isinstance(value, str):
            if bool in options and value.lower() in _SWITCHES:
                return _SWITCHES[value.lower()]
            if not _is_utf8(value):
                self.faults.append(Fault(key, "holds half a character (a lone surrogate); write whole ones"))
                return value
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            self.faults.append(Fault(key, self._misfit(value, kind, key, right)))
        return value

    def variable(self, name: str, value: Any, key: str) -> Any:
        """A value of `env`: a string or null."""
        if value is None or isinstance(value, str):
            return value
        raw = self._raw.get(key, "")
        faults = check_env({name: raw})
        message = faults[0].message if faults else f"is {_shown(value)}, not text; write it in quotes: \"{raw}\""
        self.faults.append(Fault(key, message))
        return ""

    def _misfit(self, value: Any, kind: Any, key: str, right: str) -> str:
        words = list(_words(kind))
        near = nearest(value, words) if isinstance(value, str) else ""
        raw = self._raw.get(key)
        shown = f"`{_cut(raw)}`" if raw else _shown(value)
        if value is None:
            return f"has no value; write {right or _either(words)}"
        if isinstance(value, str) and typing.get_origin(kind) is tuple:
            return f"{shown} is no list; write [{_cut(value)}]"
        if _takes_text(kind) and raw and not key.endswith("]"):
            return f"{shown} is not text; write {right}, in quotes: \"{_cut(raw)}\""
        return f"{shown} does not fit; write {right or _either(words)}{near}"


def _right(kind: type, name: str) -> str:
    right = RIGHT[kind][name]
    if right:
        return right
    return _either(list(_words(next(field.type for field in msgspec.structs.fields(kind) if field.name == name))))


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _words(kind: Any) -> Iterator[str]:
    if typing.get_origin(kind) is typing.Literal:
        yield from typing.get_args(kind)
    else:
        for option in typing.get_args(kind):
            yield from _words(option)


def _takes_text(kind: Any) -> bool:
    return kind is str or (typing.get_origin(kind) is not tuple and str in typing.get_args(kind))


def _place_of(key: str) -> str:
    return f"`{key}`" if key else "this document"


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return f"`{str(value).lower()}`"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return f"`{_cut(str(value))}`"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
