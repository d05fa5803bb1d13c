"""A llama-server command line as a layout."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple, get_args

import msgspec

from workbench.domain.env import ALLOWED
from workbench.domain.faults import nearest
from workbench.domain.layout import CacheType, Context, Layout
from workbench.domain.rules import check_layout
from workbench.domain.split import MODES, Split
from workbench.domain.text import visible

ALL_LAYERS = 999
_SECRET = re.compile(r"--?(api-key|hf-token|hft)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


class CannotImport(Exception):
    """This is no command line that a layout can be made of; the message says what would be."""

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


class Imported(NamedTuple):
    """The layout, and what of the command line has no place in one."""

    layout: Layout
    left_out: tuple[str, ...]


def import_command(command: str | Sequence[str], name: str | None = None) -> Imported:
    """The layout that loads what this llama-server command line does. Raises CannotImport."""
    words = _words(command) if isinstance(command, str) else list(command)
    reader = _Reader()
    rest = reader.environment(words)
    reader.flags(rest)
    layout = reader.layout(name)
    for key, message in check_layout(layout):
        raise CannotImport(f"{_FLAG_OF.get(key.partition('[')[0], key)}: {message}")
    return Imported(layout, tuple(map(visible, reader.left_out)))


def _words(command: str) -> list[str]:
    """The words of the command; of a script, those of its first line that starts a llama-server."""
    lines = re.sub(r"\\\r?\n", " ", command).splitlines()
    try:
        found = [words for line in lines if (words := shlex.split(line, comments=True))]
    except ValueError as error:
        raise CannotImport(f"the command line cannot be read: {error}; is a quote open?") from None
    whole = [word for words in found for word in words]
    return next((words for words in found if any(map(_is_server, words))), whole)


def _is_server(word: str) -> bool:
    return re.fullmatch(r"(llama-)?server(\.exe)?", PurePath(word).name) is not None


def _count(flag: str, value: str) -> int:
    try:
        count = int(value)
    except ValueError:
        raise CannotImport(f"{flag} {value}: is no whole number") from None
    if abs(count) >= 2**31:
        raise CannotImport(f"{flag} {value}: is more than llama-server takes, which has 32 bits for it")
    return count


def _figures(flag: str, value: str) -> tuple[float, ...]:
    try:
        return tuple(float(figure) for figure in re.split("[,/]+", value))
    except ValueError:
        raise CannotImport(f"{flag} {value}: are no proportions; write for example {flag} 3,1") from None


def _layers(flag: str, value: str) -> Any:
    if value in ("all", "auto"):
        return "all"
    count = _count(flag, value)
    return "all" if count < 0 or count >= ALL_LAYERS else count


def _word_of(words: Sequence[str]) -> Callable[[str, str], str]:
    def read(flag: str, value: str) -> str:
        if value not in words:
            raise CannotImport(f"{flag} {value}: is none of {', '.join(words)}{nearest(value, words)}")
        return value

    return read


def _flash(flag: str, value: str) -> Any:
    words = {"auto": "auto", "on": True, "1": True, "true": True, "enabled": True,
             "off": False, "0": False, "false": False, "disabled": False, "-1": "auto"}  # fmt: skip
    if value.lower() not in words:
        raise CannotImport(f"{flag} {value}: is none of on, off, auto")
    return words[value.lower()]


def _threads(flag: str, value: str) -> Any:
    count = _count(flag, value)
    return "auto" if count < 1 else count


def _text(_: str, value: str) -> str:
    return value


class _Flag(NamedTuple):
    """One option of llama-server: its names, the variable that means the same, its key in a layout."""

    names: tuple[str, ...]
    variable: str
    key: str
    read: Callable[[str, str], Any]


_TYPES = get_args(CacheType)
FLAGS = (
    _Flag(("-m", "--model"), "LLAMA_ARG_MODEL", "model", _text),
    _Flag(("-a", "--alias"), "LLAMA_ARG_ALIAS", "name", _text),
    _Flag(("-ngl", "--gpu-layers", "--n-gpu-layers"), "LLAMA_ARG_N_GPU_LAYERS", "split.n_gpu_layers", _layers),
    _Flag(("-sm", "--split-mode"), "LLAMA_ARG_SPLIT_MODE", "split.split_mode", _word_of(MODES)),
    _Flag(("-ts", "--tensor-split"), "LLAMA_ARG_TENSOR_SPLIT", "split.tensor_split", _figures),
    _Flag(("-mg", "--main-gpu"), "LLAMA_ARG_MAIN_GPU", "split.main_gpu", _count),
    _Flag(("-dev", "--device"), "LLAMA_ARG_DEVICE", "split.cards", _text),
    _Flag(("--rpc",), "LLAMA_ARG_RPC", "rpc", _text),
    _Flag(("-c", "--ctx-size"), "LLAMA_ARG_CTX_SIZE", "context.n_ctx", _count),
    _Flag(("-b", "--batch-size"), "LLAMA_ARG_BATCH", "context.n_batch", _count),
    _Flag(("-ub", "--ubatch-size"), "LLAMA_ARG_UBATCH", "context.n_ubatch", _count),
    _Flag(("-t", "--threads"), "LLAMA_ARG_THREADS", "context.n_threads", _threads),
    _Flag(("-ctk", "--cache-type-k"), "LLAMA_ARG_CACHE_TYPE_K", "context.type_k", _word_of(_TYPES)),
    _Flag(("-ctv", "--cache-type-v"), "LLAMA_ARG_CACHE_TYPE_V", "context.type_v", _word_of(_TYPES)),
    _Flag(("-fa", "--flash-attn"), "LLAMA_ARG_FLASH_ATTN", "context.flash_attn", _flash),
)
_BY_NAME = {name: flag for flag in FLAGS for name in flag.names}
_BY_VARIABLE = {flag.variable: flag for flag in FLAGS}
_FLAG_OF = {flag.key: flag.names[-1] for flag in FLAGS} | {"split.layers": "--tensor-split"}


class _Reader:
    """What was read so far, by key; `left_out` is for people."""

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._found: dict[str, Any] = {}
        self._env: dict[str, str | None] = {}

    # ── words ─────────────────────────────────────────────────────────────────────────────
    def environment(self, words: Sequence[str]) -> list[str]:
        """Take what stands before the program; the words after it."""
        at = 0
        while at < len(words):
            word = words[at]
            if match := _ASSIGNMENT.fullmatch(word):
                self._variable(match[1], match[2])
            elif word == "-u" and at + 1 < len(words) and at > 0:
                at += 1
                self._variable(words[at], None)
            elif PurePath(word).name in ("env", "exec", "nohup", "sudo", "export"):
                pass
            elif _is_server(word):
                return list(words[at + 1 :])
            elif word.startswith("-"):
                return list(words[at:])
            else:
                raise CannotImport(f"`{word}` is not llama-server; give its command line, for example "
                                   "llama-server -m model.gguf -ngl 99 -ts 3,1")
            at += 1
        raise CannotImport("there is no command line; give one, for example llama-server -m model.gguf -ts 3,1")

    def _variable(self, name: str, value: str | None) -> None:
        if name in _BY_VARIABLE and value is not None:
            flag = _BY_VARIABLE[name]
            self._found.setdefault(flag.key, flag.read(name, value))
        elif name in ALLOWED and (name, value) != ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"):
            self._env[name] = value
        elif name not in ALLOWED:
            self.left_out.append(f"the variable {name}")

    def flags(self, words: Sequence[str]) -> None:
        """Take the options."""
        for name, value in _pairs(words):
            flag = _BY_NAME.get(name)
            shown = name if value is None else f"{name} {'…' if _SECRET.fullmatch(name) else value}"
            if flag is None:
                self.left_out.append(shown)
            elif value is None and flag.key == "context.flash_attn":
                self._found[flag.key] = True  # older versions took it without a value
            elif value is None:
                raise CannotImport(f"{name} has no value")
            else:
                self._found[flag.key] = flag.read(name, value)

    # ── the layout ────────────────────────────────────────────────────────────────────────
    def layout(self, name: str | None) -> Layout:
        """What all of it comes to; what is not said is as llama-server takes it."""
        found = self._found
        if "model" not in found:
            raise CannotImport("no model file is named; add -m PATH (what -hf fetches lies in llama.cpp's cache)")
        alias = str(found.get("name", "")).split(",")[0]
        return Layout(
            name=name or alias or PurePath(found["model"]).stem,
            model=found["model"],
            split=self._split(),
            context=msgspec.structs.replace(Context(n_ctx=0), **_under("context", found)),
            env=self._env,
        )

    def _split(self) -> Split:
        given = _under("split", self._found)
        given["cards"] = self._cards()
        mode, shares = given.get("split_mode", "layer"), given.get("tensor_split")
        if shares is not None and mode == "layer" and sum(shares) == given.get("n_gpu_layers"):
            # Shares that add up to the layers on cards are counts.
            given |= {"layers": tuple(int(share) for share in shares), "n_gpu_layers": "all"}
            del given["tensor_split"]
        return Split(**given)

    def _cards(self) -> tuple[str, ...] | None:
        remote = [endpoint.strip() for endpoint in self._found.get("rpc", "").split(",") if endpoint.strip()]
        devices = self._found.get("split.cards")
        if devices is None:
            if remote:
                self.left_out.append("this machine's own cards, which llama-server uses after those of --rpc: add them "
                                     "to split.cards")
            return tuple(f"rpc://{endpoint}" for endpoint in remote) or None
        if devices.strip().lower() == "none":
            return ("CPU",)
        names = [name.strip() for name in devices.split(",") if name.strip()]
        known = {f"RPC{number}": f"rpc://{endpoint}" for number, endpoint in enumerate(remote)}
        return tuple(known.get(name, name) for name in names)


def _under(part: str, found: dict[str, Any]) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in found.items() if key.startswith(f"{part}.")}


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each option with its value; a word that begins with `-` is no value unless it is a number."""
    at = 0
    while at < len(words):
        word, value = words[at], None
        if word in ("&", ";", "&&", "|", ">", ">>", "2>", "2>&1"):
            return  # the shell's
        if word.startswith("--") and "=" in word:
            word, _, value = word.partition("=")
        elif word.startswith("-") and at + 1 < len(words) and not re.match(r"-(?![\d.])", words[at + 1]):
            at += 1
            value = words[at]
        yield word, value
        at += 1
