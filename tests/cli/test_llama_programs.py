"""Exports held against llama.cpp's own programs: each is parsed, run, and answers.

`WORKBENCH_TEST_LLAMA_BIN` names the folder of llama-server, llama-bench and ggml-rpc-server; what is not there is
skipped. On a machine with two CUDA cards (or one as two, by GGML_CUDA_DEVICES=2) splits over them run too, of the model
that `WORKBENCH_TEST_GGUF` names. The libraries of the programs are found by LD_LIBRARY_PATH, if not beside them.
"""

import json
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from tests.engines.serving import asks, opened, unheard
from tests.models import write_model
from tests.waiting import wait_until
from workbench.domain.export import FIRST_PORT, SERVER_PORT, ExportForm, export
from workbench.domain.importing import FLAGS
from workbench.domain.layout import CacheType, Context, Layout
from workbench.domain.split import Split, Virtual
from workbench.engines.server import ServerEngine
from workbench.store.documents import read_layout
from workbench.store.models import ModelError, resolve_model

ROOT = Path(__file__).parents[2]
BIN = os.environ.get("WORKBENCH_TEST_LLAMA_BIN")
OURS = [layout for path in sorted((ROOT / "layouts").glob("*.yaml")) if (layout := read_layout(path)).served_by is None]
DEMOS = [layout for layout in OURS if isinstance(layout.split.cards, Virtual)]
PROGRAMS: tuple[ExportForm, ...] = ("llama-server", "llama-bench")
ENV = {
    **os.environ,
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "LLAMA_ARG_LOG_VERBOSITY": "4",  # at which the log tells what landed where
    "OMP_WAIT_POLICY": "passive",
}
LOAD_S, RUN_S = 60.0, 300.0


def need(*programs: str) -> None:
    """Skip where one is missing."""
    for program in programs:
        if BIN is None or not (Path(BIN) / program).is_file():
            pytest.skip(f"WORKBENCH_TEST_LLAMA_BIN names no folder with {program}")


@pytest.fixture(scope="module")
def model() -> str:
    """The bundled model."""
    try:
        return str(resolve_model("demo:smollm2"))
    except ModelError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module")
def any_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model that WORKBENCH_TEST_GGUF names, or a tiny one of random weights."""
    given = os.environ.get("WORKBENCH_TEST_GGUF")
    return given or str(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", seed=1))


@pytest.fixture(scope="module")
def two_gpus() -> tuple[str, ...]:
    """The first two CUDA cards, as the programs name them."""
    need("llama-bench")
    listed = subprocess.run([f"{BIN}/llama-bench", "--list-devices"], capture_output=True, text=True, env=ENV).stdout
    found = tuple(re.findall(r"^\s*(CUDA\d+):", listed, re.MULTILINE))
    if len(found) < 2:
        pytest.skip("there are no two CUDA cards; with one, GGML_CUDA_DEVICES=2 makes two of it")
    return found[:2]


def command(layout: Layout, form: ExportForm, model: str) -> str:
    """What is exported, on ports that are free."""
    text = export(layout, form, model, os.cpu_count() or 1).text
    cards = layout.split.cards
    wanted = [SERVER_PORT, *(FIRST_PORT + at for at in range(len(cards.virtual) if isinstance(cards, Virtual) else 0))]
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in wanted]
    for port, free in zip(wanted, listening, strict=True):
        text = re.sub(rf"\b{port}\b", str(free.getsockname()[1]), text)
        free.close()
    return text


def run(text: str) -> subprocess.CompletedProcess[str]:
    """The command to its end."""
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=ENV, timeout=RUN_S)


# ── parsed ────────────────────────────────────────────────────────────────────────────────
EVERYTHING = Layout(
    name="all of it",
    model="m.gguf",
    split=Split(split_mode="none", main_gpu=1, n_gpu_layers=20),
    context=Context(n_ctx=8192, n_batch=1024, n_ubatch=256, n_threads=8, type_k="q8_0", type_v="q8_0", flash_attn=True),
    env={"GGML_CUDA_P2P": "1", "CUDA_VISIBLE_DEVICES": None},
)
KINDS = [
    Layout(name=kind, model="m.gguf", context=Context(type_k=kind, type_v=kind, flash_attn=True))
    for kind in get_args(CacheType)
    if kind != "f32"  # llama-bench does not know it
]
NO_CARDS = Layout(name="cpu", model="m.gguf", split=Split(cards=("CPU",), n_gpu_layers=0))


@pytest.mark.parametrize("layout", [*OURS, EVERYTHING, NO_CARDS, *KINDS], ids=lambda layout: layout.name)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_own_parser_takes_it(program: ExportForm, layout: Layout, model: str) -> None:
    """Behind all of it --help, which both print when they have read the rest."""
    need(program, *(["ggml-rpc-server"] if layout in DEMOS else []))
    text = command(layout, program, model)
    if layout not in DEMOS:  # the cards are another machine's, and a parser knows its own only
        text = re.sub(r"--device \S+ \\\n\s*", "", text)
    done = run(text.rstrip() + " --help")
    assert done.returncode == 0, done.stderr[-1000:]
    assert "--split-mode" in done.stdout


# ── run ───────────────────────────────────────────────────────────────────────────────────
@contextmanager
def serving(text: str, log: Path) -> Iterator[ServerEngine]:
    """The exported llama-server, and a loaded engine on it."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    with started(["bash", "-c", text], words[-1], words[words.index("--alias") + 1], log) as engine:
        yield engine


@contextmanager
def started(words: list[str], port: str, alias: str, log: Path) -> Iterator[ServerEngine]:
    """A loaded engine on what this starts; it ends with all that it started when it is told to."""
    with log.open("w") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, env=ENV, start_new_session=True)
    try:
        wait_until(lambda: "listening on" in log.read_text() or process.poll() is not None, LOAD_S)
        assert process.poll() is None, log.read_text()[-2000:]
        engine = opened("openai", f"http://127.0.0.1:{port}", model=alias)
        engine.load(unheard)
        yield engine
        engine.close()
    finally:
        if words[0] == "bash" and "wait $!" not in words[-1]:
            os.killpg(process.pid, signal.SIGTERM)  # as Ctrl-C does, to all of them
        else:
            process.terminate()
        process.wait(20)
    wait_until(lambda: not alive(process.pid))


def alive(group: int) -> bool:
    """Whether a process of the group lives."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def kv_mib(log: str) -> list[float]:
    """The KV cache on each card, by llama.cpp's log; in tensor mode one line for all."""
    return [float(mib) for mib in re.findall(r"(?:RPC|CUDA|Meta)\S+ KV buffer size = +([\d.]+) MiB", log)]


@pytest.mark.parametrize("layout", DEMOS, ids=lambda layout: layout.name)
def test_llama_server_serves_it_split_as_it_says(layout: Layout, model: str, tmp_path: Path) -> None:
    need("llama-server", "ggml-rpc-server")
    log = tmp_path / "log"
    with serving(command(layout, "llama-server", model), log) as engine:
        reply = engine.chat(asks("Name a river.", max_tokens=4, temperature=0.0), unheard)
    assert reply.text
    assert reply.timing.source == "server"
    held = kv_mib(log.read_text())
    a_layer = sum(held) / 30
    if layout.split.layers is not None:
        assert sorted(held) == sorted(count * a_layer for count in (layout.split.layers[0], layout.split.layers[1] - 1))
    else:
        assert len(held) == (1 if layout.split.split_mode in ("none", "tensor") else 2)


@pytest.mark.parametrize("layout", [DEMOS[0], NO_CARDS], ids=lambda layout: layout.name)
def test_what_llama_swap_starts_serves_and_ends(layout: Layout, model: str, tmp_path: Path) -> None:
    """The command of its configuration, as it starts it: no shell, a port for ${PORT}, SIGTERM in the end."""
    need("llama-server", *(["ggml-rpc-server"] if layout in DEMOS else []))
    ((alias, entry),) = yaml.safe_load(command(layout, "llama-swap", model))["models"].items()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with started(shlex.split(entry["cmd"].replace("${PORT}", port)), port, alias, tmp_path / "log") as engine:
        assert engine.chat(asks("Name a river.", max_tokens=4, temperature=0.0), unheard).text


def bench(text: str) -> list[dict[str, Any]]:
    """The rows of an exported llama-bench, made short."""
    short = text.replace("--n-prompt 512", "--n-prompt 16").replace("--n-gen 128", "--n-gen 4")
    done = run(short.rstrip() + " -r 1 -o json")
    assert done.returncode == 0, done.stderr[-2000:]
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def check_bench(rows: list[dict[str, Any]], layout: Layout) -> None:
    """One test of the prompt and one of the reply, both of this split: no figure was taken for another test."""
    assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [(16, 0), (0, 4)]
    for row in rows:
        assert row["split_mode"] == layout.split.split_mode
        assert (row["n_batch"], row["n_ubatch"]) == (layout.context.n_batch, layout.context.n_ubatch)
        assert (row["type_k"], row["type_v"]) == (layout.context.type_k, layout.context.type_v)
        shares = layout.split.layers or layout.split.tensor_split
        if layout.split.split_mode != "none" and not isinstance(shares, str):
            assert [float(share) for share in row["tensor_split"].split("/")][: len(shares)] == list(shares)
        assert row["avg_ts"] > 0


@pytest.mark.parametrize("layout", DEMOS, ids=lambda layout: layout.name)
def test_llama_bench_measures_it(layout: Layout, model: str) -> None:
    need("llama-bench", "ggml-rpc-server")
    rows = bench(command(layout, "llama-bench", model))
    check_bench(rows, layout)
    assert {row["devices"] for row in rows} == {"/".join(f"RPC{at}" for at in range(2))}


SPLITS = [
    Split(tensor_split=(3.0, 1.0)),
    Split(split_mode="none", main_gpu=1),
    Split(split_mode="tensor", tensor_split=(1.0, 1.0)),
]


@pytest.fixture(params=SPLITS, ids=lambda split: split.split_mode)
def on_two_gpus(request: pytest.FixtureRequest, two_gpus: tuple[str, ...], any_model: str) -> Layout:
    """A layout of each kind on two CUDA cards."""
    split = msgspec.structs.replace(request.param, cards=two_gpus)
    return Layout(name="two", model=any_model, split=split, context=Context(n_ctx=2048, flash_attn=True))


def test_llama_bench_on_two_gpus(on_two_gpus: Layout) -> None:
    check_bench(bench(command(on_two_gpus, "llama-bench", on_two_gpus.model)), on_two_gpus)


def test_llama_server_on_two_gpus(on_two_gpus: Layout, tmp_path: Path) -> None:
    need("llama-server")
    with serving(command(on_two_gpus, "llama-server", on_two_gpus.model), tmp_path / "log") as engine:
        assert engine.chat(asks("Name a river.", max_tokens=4, temperature=0.0), unheard).timing.source == "server"


# ── timed ─────────────────────────────────────────────────────────────────────────────────
def test_speeds_are_llama_servers_own(model: str, tmp_path: Path) -> None:
    """Twenty replies: what is reported against the lines of its log, within 3 %."""
    need("llama-server")
    layout = msgspec.structs.replace(NO_CARDS, context=Context(n_ctx=1024, n_threads=1))
    log = tmp_path / "log"
    ours: list[tuple[float, float]] = []
    with serving(command(layout, "llama-server", model), log) as engine:
        for number in range(20):
            sampling: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0, "seed": 1, "ignore_eos": True}
            timing = engine.chat(asks(f"{number}. Write on rivers.", salt=number, **sampling), unheard).timing
            assert timing.tokens == 24
            assert timing.decode_tok_s is not None
            assert timing.prefill_tok_s is not None
            ours.append((timing.prefill_tok_s, timing.decode_tok_s))
    said = re.findall(r"(prompt eval|  eval) time = .*?([\d.]+) tokens per second", log.read_text())
    rates = [(what.strip(), float(rate)) for what, rate in said]
    prompts = [rate for what, rate in rates if what == "prompt eval"]
    theirs = list(zip(prompts, [rate for what, rate in rates if what == "eval"], strict=True))
    assert len(theirs) == len(ours) == 20
    off = [abs(our / their - 1) for pair in zip(ours, theirs, strict=True) for our, their in zip(*pair, strict=True)]
    assert max(off) < 0.03, statistics.median(off)


# ── imported ──────────────────────────────────────────────────────────────────────────────
def test_what_import_reads_is_what_llama_server_calls_it() -> None:
    need("llama-server")
    told = subprocess.run([f"{BIN}/llama-server", "--help"], capture_output=True, text=True, env=ENV).stdout
    paragraphs = re.split(r"\n(?=-)", told)
    for flag in FLAGS:
        (own,) = [text for text in paragraphs if flag.names[-1] in re.split(r"[,\s]+", text.splitlines()[0])]
        assert set(flag.names) <= set(re.split(r"[,\s]+", own.splitlines()[0]))
        assert f"(env: {flag.variable})" in own
