"""A layout as others run it: command lines, a script, a Modelfile, a configuration. What is printed runs as it is."""

import re
import shlex
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, get_args

from workbench.domain.export_python import script
from workbench.domain.faults import is_unprintable
from workbench.domain.layout import Layout
from workbench.domain.split import Virtual
from workbench.domain.text import visible

ExportForm = Literal["llama-server", "llama-bench", "llama-cpp-python", "ollama", "llama-swap"]
FORMS: tuple[ExportForm, ...] = get_args(ExportForm)
ALL_LAYERS = 999
"""More layers than any model has, which every version of llama.cpp takes for all."""
FIRST_PORT = 50061
SERVER_PORT = 8080
RPC_PREFIX = "rpc://"


class Exported(NamedTuple):
    """What to run, and what to know about it."""

    text: str
    notes: tuple[str, ...] = ()


class CannotExport(Exception):
    """This layout has no such form; the message says why and what has."""

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


Flags = list[tuple[str, str]]


def export(layout: Layout, form: ExportForm, model_path: str, cores: int = 1) -> Exported:
    """The layout in another form. `model_path` is the model's file, `cores` how many a virtual card may share.

    Cards are named as llama.cpp names them (`CUDA0`) or by endpoint. Raises CannotExport.
    """
    if layout.served_by is not None and not (form == "ollama" and layout.engine == "ollama"):
        raise CannotExport(f"{layout.name} is a layout of a server, which names no model file; only `--as ollama` of a "
                           "layout of Ollama says something new")
    if is_unprintable(model_path):
        raise CannotExport(f"the model's name {model_path} has a control character, or is not UTF-8; rename the file")
    makers: dict[ExportForm, Callable[[], Exported]] = {
        "llama-server": lambda: _server(layout, model_path, cores),
        "llama-bench": lambda: _bench(layout, model_path, cores),
        "llama-cpp-python": lambda: Exported(script(layout, model_path, cores), _python_notes(layout)),
        "ollama": lambda: _ollama(layout, model_path),
        "llama-swap": lambda: _swap(layout, model_path, cores),
    }
    return makers[form]()


# ── llama.cpp's own programs ──────────────────────────────────────────────────────────────
def _server(layout: Layout, model_path: str, cores: int) -> Exported:
    flags = [*server_flags(layout, model_path), ("--host", "127.0.0.1"), ("--port", str(SERVER_PORT))]
    return Exported(_with_cards(layout, _command(layout, "llama-server", flags), cores), _notes(layout))


def server_flags(layout: Layout, model_path: str) -> Flags:
    """llama-server's flags for a layout, without host and port."""
    context, split = layout.context, layout.split
    flags = [("--model", model_path), ("--alias", layout.name), ("--n-gpu-layers", str(_on_cards(layout))),
             ("--split-mode", split.split_mode)]  # fmt: skip
    shares = _shares(layout)
    if shares:
        flags.append(("--tensor-split", ",".join(shares)))
    if split.split_mode == "none":
        flags.append(("--main-gpu", str(split.main_gpu)))
    flags += _cards(layout, ",")
    flags += [
        ("--ctx-size", str(context.n_ctx)),
        ("--batch-size", str(context.n_batch)),
        ("--ubatch-size", str(context.n_ubatch)),
        ("--cache-type-k", context.type_k),
        ("--cache-type-v", context.type_v),
        ("--flash-attn", _flash(layout)),
    ]
    return flags if context.n_threads == "auto" else [*flags, ("--threads", str(context.n_threads))]


def _bench(layout: Layout, model_path: str, cores: int) -> Exported:
    if "f32" in (layout.context.type_k, layout.context.type_v):
        raise CannotExport("llama-bench knows no KV cache of f32; write type_k and type_v: f16, or another")
    return Exported(
        _with_cards(layout, _command(layout, "llama-bench", bench_flags(layout, model_path)), cores),
        (*_notes(layout), "llama-bench has no n_ctx: it makes a context of the length of each test"),
    )


def bench_flags(layout: Layout, model_path: str) -> Flags:
    """llama-bench's flags for a layout. It takes a comma for the next test, so cards are divided by `/`."""
    context, split = layout.context, layout.split
    flags = [("--model", model_path), ("--n-gpu-layers", str(_on_cards(layout))), ("--split-mode", split.split_mode)]
    shares = _shares(layout)
    if shares:
        flags.append(("--tensor-split", "/".join(shares)))
    if split.split_mode == "none":
        flags.append(("--main-gpu", str(split.main_gpu)))
    flags += _cards(layout, "/")
    flags += [
        ("--batch-size", str(context.n_batch)),
        ("--ubatch-size", str(context.n_ubatch)),
        ("--cache-type-k", context.type_k),
        ("--cache-type-v", context.type_v),
        ("--flash-attn", _flash(layout)),
        ("--n-prompt", "512"),
        ("--n-gen", "128"),
    ]
    return flags if context.n_threads == "auto" else [*flags, ("--threads", str(context.n_threads))]


def _on_cards(layout: Layout) -> int:
    split = layout.split
    if split.cards == ("CPU",):
        return 0
    if split.layers is not None and split.split_mode != "none":
        return sum(split.layers)
    return ALL_LAYERS if split.n_gpu_layers == "all" else split.n_gpu_layers


def _shares(layout: Layout) -> list[str]:
    split = layout.split
    if split.split_mode == "none":
        return []
    figures: Iterable[float] = split.layers or (() if isinstance(split.tensor_split, str) else split.tensor_split)
    return [f"{figure:g}" for figure in figures]


def _cards(layout: Layout, between: str) -> Flags:
    """--rpc for what is reached over the network, --device for all in their order; nothing for whatever there is."""
    cards = layout.split.cards
    if cards is None or cards == ("CPU",):
        return []
    remote = _endpoints(layout)
    names, at = [], 0
    for card in range(len(remote)) if isinstance(cards, Virtual) else cards:
        is_remote = isinstance(card, int) or card.startswith(RPC_PREFIX)
        names.append(f"RPC{at}" if is_remote else str(card))
        at += is_remote
    flags = [("--rpc", ",".join(remote))] if remote else []
    return [*flags, ("--device", between.join(names))]


def _endpoints(layout: Layout) -> list[str]:
    cards = layout.split.cards
    if isinstance(cards, Virtual):
        return [f"127.0.0.1:{FIRST_PORT + number}" for number in range(len(cards.virtual))]
    return [card.removeprefix(RPC_PREFIX) for card in cards or () if card.startswith(RPC_PREFIX)]


def _flash(layout: Layout) -> str:
    wanted = layout.context.flash_attn
    return wanted if isinstance(wanted, str) else "on" if wanted else "off"


def _command(layout: Layout, program: str, flags: Flags) -> str:
    """One command on several lines, with the layout's environment before it."""
    lines = [f"{flag} {shlex.quote(value)}" for flag, value in flags]
    return f"{_environment(layout)}{program} \\\n  " + " \\\n  ".join(lines)


def _environment(layout: Layout) -> str:
    unset = [f"-u {name}" for name, value in layout.env.items() if value is None]
    given = [f"{name}={shlex.quote(value)}" for name, value in _given(layout).items()]
    words = ["env", *unset, *given] if unset else given
    return "".join(f"{word} " for word in words)


def _given(layout: Layout) -> dict[str, str]:
    """What is set: the layout's own, and the order in which its CUDA cards are numbered."""
    given = {name: value for name, value in layout.env.items() if value is not None}
    if "CUDA_DEVICE_ORDER" in layout.env or not any(card.startswith("CUDA") for card in _named(layout)):
        return given
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **given}


def _with_cards(layout: Layout, command: str, cores: int) -> str:
    """The command; with virtual cards a script that starts them before it and ends them after it."""
    if not isinstance(layout.split.cards, Virtual):
        return f"{command}\n"
    head = ["#!/usr/bin/env bash", "# Virtual cards: llama.cpp's RPC servers on this machine (-DGGML_RPC=ON)."]
    return "\n".join([*head, *_card_lines(layout, cores), command, ""])


def _card_lines(layout: Layout, cores: int) -> list[str]:
    """Shell lines that start the virtual cards, wait until they answer, and end them with the shell."""
    threads = max(1, cores // len(_endpoints(layout)))
    lines = ["trap 'kill $(jobs -p)' EXIT TERM", "export OMP_WAIT_POLICY=passive"]
    for endpoint in _endpoints(layout):
        host, _, port = endpoint.partition(":")
        lines.append(f"ggml-rpc-server --device CPU --threads {threads} --host {host} --port {port} >&2 &")
    for endpoint in _endpoints(layout):
        host, _, port = endpoint.partition(":")
        lines.append(f"until (exec 3<>/dev/tcp/{host}/{port}) 2>/dev/null; do sleep 0.1; done")
    return lines


def _notes(layout: Layout) -> tuple[str, ...]:
    split, notes = layout.split, []
    if isinstance(split.cards, Virtual):
        notes.append("the sizes of virtual cards are workbench's own: here each may take what the machine has")
    if split.split_mode != "none" and split.layers is None and split.tensor_split == "auto":
        by = "evenly" if split.split_mode == "tensor" else "by what is free on each card"
        notes.append(f"tensor_split is auto: llama.cpp divides {by}; a forecast resolves it to figures")
    if layout.context.n_ctx == 0:
        notes.append("n_ctx is 0: llama-server takes what the model was trained with, newer ones as much of it as fits")
    return tuple(notes)


def _python_notes(layout: Layout) -> tuple[str, ...]:
    if layout.context.flash_attn == "auto":
        return (*_notes(layout), "llama-cpp-python knows no flash_attn auto: it is on")
    return _notes(layout)


# ── Ollama ────────────────────────────────────────────────────────────────────────────────
def _ollama(layout: Layout, model_path: str) -> Exported:
    """A Modelfile and what makes a model of it; what only the server's environment does comes before."""
    split, context = layout.split, layout.context
    source = layout.model if layout.served_by is not None else model_path
    parameters = {"num_ctx": context.n_ctx} if context.n_ctx else {}
    parameters["num_batch"] = context.n_batch
    if context.n_threads != "auto":
        parameters["num_thread"] = context.n_threads
    on_cards = _on_cards(layout)
    if on_cards != ALL_LAYERS:
        parameters["num_gpu"] = on_cards
    if split.split_mode == "none" and on_cards:
        parameters["main_gpu"] = split.main_gpu
    lines = [f"FROM {source}", *(f"PARAMETER {name} {value}" for name, value in parameters.items())]
    name = re.sub(r"[^a-z0-9._-]+", "-", layout.name.lower()).strip("-._") or "layout"
    text = "\n".join(["ollama create " + name + " -f /dev/stdin <<'EOF'", *lines, "EOF", f"ollama run {name}", ""])
    settings = ollama_environment(layout)
    notes: list[str] = []
    if settings:
        notes.append(f"the server must have been started with: {' '.join(settings)} ollama serve")
        text = f"# The server's part: {' '.join(settings)} ollama serve\n{text}"
    if isinstance(split.cards, Virtual):
        notes.append("Ollama has no virtual cards: it takes the GPUs that there are, or the CPU")
    if any(card.startswith(RPC_PREFIX) for card in _named(layout)):
        notes.append("Ollama reaches no RPC server: those cards are left out")
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", source):
        notes.append("Ollama takes models of one file only: join the parts with llama-gguf-split --merge")
    return Exported(text, tuple(notes))


def ollama_environment(layout: Layout) -> list[str]:
    """What of a layout only the environment of Ollama's server does."""
    split, context = layout.split, layout.context
    settings = []
    cards = [re.sub(r"^CUDA", "", card) for card in _named(layout) if not card.startswith(RPC_PREFIX)]
    if cards and cards != ["CPU"]:
        settings.append(f"CUDA_VISIBLE_DEVICES={','.join(cards)}")
    if split.split_mode in ("tensor", "row"):
        settings.append(f"LLAMA_ARG_SPLIT_MODE={split.split_mode}")
    if shares := _shares(layout):
        settings.append(f"LLAMA_ARG_TENSOR_SPLIT={','.join(shares)}")
    if split.split_mode != "none" and len(cards) > 1:
        settings.append("OLLAMA_SCHED_SPREAD=1")
    if context.flash_attn != "auto":
        settings.append(f"OLLAMA_FLASH_ATTENTION={int(context.flash_attn)}")
    if context.type_k != "f16" or context.type_v != "f16":
        settings.append(f"OLLAMA_KV_CACHE_TYPE={context.type_k}")
    if context.n_ubatch != 512:
        settings.append(f"LLAMA_ARG_UBATCH={context.n_ubatch}")
    return settings + [f"{name}={shlex.quote(value)}" for name, value in _given(layout).items()]


def _named(layout: Layout) -> tuple[str, ...]:
    cards = layout.split.cards
    return cards if isinstance(cards, tuple) else ()


# ── llama-swap ────────────────────────────────────────────────────────────────────────────
def _swap(layout: Layout, model_path: str, cores: int) -> Exported:
    """Its config.yaml, with one model."""
    flags = [*server_flags(layout, model_path), ("--port", "${PORT}")]
    lines = [f"{flag} {value if value == '${PORT}' else shlex.quote(value)}" for flag, value in flags]
    if isinstance(layout.split.cards, Virtual):
        before = " ".join(line if line.endswith("&") else f"{line};" for line in _card_lines(layout, cores))
        command = ["bash -c " + shlex.quote(f"{before} llama-server {' '.join(lines)} & wait $!")]
    else:
        command = ["llama-server", *(f"  {line}" for line in lines)]
    out = ["models:", f"  {_yaml(layout.name)}:", "    cmd: |", *(f"      {line}" for line in command)]
    env = [f"{name}={value}" for name, value in _given(layout).items()]
    if env:
        out += ["    env:", *(f"      - {_yaml(line)}" for line in env)]
    return Exported("\n".join([*out, ""]), _notes(layout))


def _yaml(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
