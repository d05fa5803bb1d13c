"""What must hold whatever comes in: only the declared errors, messages fit for people, and an end."""

import contextlib
import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pynvml

from tests.meters.fake_nvml import FakeGpu, FakeNvmlLib
from workbench.app import ab_draw
from workbench.app.opening import said_so_far
from workbench.cli.outcome import outcome_text
from workbench.cli.runs import join_text
from workbench.domain import wording
from workbench.domain.comparison import METRICS
from workbench.domain.conversation import Message
from workbench.domain.export import FORMS, CannotExport, export
from workbench.domain.importing import CannotImport, import_command
from workbench.domain.layout import Layout
from workbench.domain.machines import join
from workbench.domain.rules import check_layout
from workbench.domain.text import clean, flat
from workbench.engines.engine import EngineError, Request
from workbench.engines.http import Http, ServerError, error_text, parsed
from workbench.engines.llama import wire
from workbench.engines.llama.child.rpc_card import Ledger
from workbench.engines.ollama import OllamaEngine
from workbench.engines.openai import OpenAIEngine, list_models
from workbench.lab.ab import judge
from workbench.lab.cards import join as join_cards
from workbench.meters.nvml import Nvml
from workbench.store.config import Config
from workbench.store.documents import DocumentError, check_document, read_document, read_layout, read_prompt_set
from workbench.store.exporters import FORMATS
from workbench.store.exporters import export as export_run
from workbench.store.journal import JournalError, read
from workbench.store.models import ModelError, resolve_model
from workbench.store.runs import HEADER, SAMPLES, RunError, read_run
from workbench.store.screen_state import read_screen_state, write_screen_state
from workbench.store.writing import layout_yaml

LONGEST = 2100
"""An error is no longer than this, its path aside."""
_MEMORY = Path("/dev/shm")
_PROMISED = 1 << 24


@cache
def folder() -> Path:
    """A folder of this process, in memory where there is such a place."""
    made = Path(tempfile.mkdtemp(prefix="workbench-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None))
    import atexit

    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def fit_for_people(text: str, *, most: int = LONGEST) -> None:
    """One line, printable and not endless."""
    assert text.isprintable(), ascii(text)
    assert len(text) <= most, f"{len(text)} characters: {text[:300]}"


def is_flat(text: str) -> None:
    """A name that was made fit to be shown; a character that is not assigned yet may be in it."""
    assert flat(text) == text, ascii(text)


# ── documents ─────────────────────────────────────────────────────────────────────────────
def documents(data: bytes) -> None:
    """A layout, a prompt set or the configuration; the first byte says whether YAML or JSON lines."""
    path = folder() / ("a.jsonl" if data[:1] in b"jJ" else "a.yaml")
    path.write_bytes(data[1:])
    for error in check_document(path):
        _is_document_error(error, path)
    readers: Sequence[Callable[[], Any]] = (
        lambda: read_layout(path),
        lambda: read_prompt_set(path),
        lambda: read_document(path, Config, lambda config: []),
    )
    for reader in readers:
        try:
            document = reader()
        except DocumentError as error:
            _is_document_error(error, path)
        else:
            msgspec.json.encode(document)
            if isinstance(document, Layout):
                _is_sound(document)


def _is_document_error(error: DocumentError, path: Path) -> None:
    assert str(error).startswith(str(path))
    assert error.line is None or error.line >= 1
    fit_for_people(str(error), most=LONGEST + len(str(path)))


def _is_sound(layout: Layout) -> None:
    """It can be written, read again, labelled and exported."""
    path = folder() / "again.yaml"
    path.write_text(layout_yaml(layout), encoding="utf-8")
    assert read_layout(path) == layout
    fit_for_people(layout.label())
    for form in FORMS:
        try:
            export(layout, form, "/m.gguf", 2)
        except CannotExport as error:
            fit_for_people(str(error))


# ── the wire ──────────────────────────────────────────────────────────────────────────────
def messages(data: bytes) -> None:
    """A line in either direction."""
    for line in data.split(b"\n"):
        for decode in (wire.decode_command, wire.decode_event):
            try:
                message = decode(line)
            except msgspec.MsgspecError:
                continue
            assert decode(wire.encode(message)) == message


# ── logs ──────────────────────────────────────────────────────────────────────────────────
def logs(data: bytes) -> None:
    """Lines of llama.cpp, and of an RPC server's debug ledger."""
    from workbench.engines.llama.child.loadlog import LoadLog
    from workbench.engines.llama.child.measure import meta_mib, read_log
    from workbench.engines.llama.child.reasons import explain, plain

    log, ledger = LoadLog(), Ledger()
    log.start()
    for line in data.split(b"\n"):
        ledger.read(line)
        log.read(4 if line[:1] == b"E" else 2, line.decode("utf-8", "replace").strip())
    msgspec.json.decode(msgspec.json.encode(ledger.allocations))
    found, host = read_log(log, ())
    assert found == ()
    msgspec.json.encode((host, meta_mib(log), log.cache_mib, log.refusal and (log.refusal.buffer, log.refusal.mib)))
    assert plain(log.reason("otherwise"))
    explain(log.errors)


# ── models ────────────────────────────────────────────────────────────────────────────────
@cache
def _quiet() -> object:
    """llama.cpp's log, sent nowhere."""
    import llama_cpp.llama_cpp as llama

    callback = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(callback, ctypes.c_void_p(0))
    return callback


def headers(data: bytes) -> None:
    """A GGUF file, as the parent looks at it and as the worker reads it."""
    from workbench.engines.llama.child.header import HeaderError, largest_tensor_mib, read_header
    from workbench.engines.llama.child.tensors import HeaderTensors, Shapes

    _quiet()
    path = folder() / "m.gguf"
    path.write_bytes(data)
    try:
        resolve_model(str(path))
    except ModelError as error:
        fit_for_people(str(error))
    if len(data) % 4:
        os.truncate(path, len(data) + _PROMISED)  # with room for the tensors that it may list
    try:
        info = read_header(path)
        shapes = Shapes(path, info.n_layer)
        largest_tensor_mib(path)
    except HeaderError as error:
        fit_for_people(str(error))
        return
    wire.encode(wire.Inspected(path=str(path), model=info))
    for text in (info.name, info.arch, info.quantisation):
        is_flat(text)
    assert 0 < info.n_layer <= 10_000
    places = {layer: f"CUDA{layer % 2}" for layer in range(info.n_layer + 1)}
    tensors = HeaderTensors(shapes, (3.0, 1.0))
    figures = [*tensors.weights(places).values(), *tensors.kv_parts(places).values(),
               *tensors.cut_weights(places, "CPU"), *tensors.cut_kv(places, "CPU")]  # fmt: skip
    assert all(figure == figure for figure in figures)


# ── servers ───────────────────────────────────────────────────────────────────────────────
class _Canned(Http):
    """A server that says always the same."""

    def __init__(self, data: bytes) -> None:
        super().__init__("http://server.invalid", Layout(name="a", model="m").timeouts, "secret")
        self._data = data

    def ask(self, method: str, path: str, body: Any = None, *, patience_s: float | None = None) -> Any:
        try:
            return parsed(self._data.partition(b"\n")[0])
        except (ValueError, RecursionError):
            raise ServerError("no JSON") from None

    def stream(self, path: str, body: Any, take: Callable[[bytes, str], bool | None]) -> None:
        kind = "application/json" if self._data[:1] == b"[" else "text/event-stream"
        at, step = 0, 1 + len(self._data) // 3
        while at < len(self._data):
            take(self._data[at : at + step], kind)
            at += step

    def pause(self, seconds: float) -> None:
        raise ServerError("it waits")


def streams(data: bytes) -> None:
    """What Ollama and OpenAI-compatible servers answer: streams, lists and errors."""
    ollama = OllamaEngine(Layout(name="a", model="m", engine="ollama", url="http://server.invalid"))
    openai = OpenAIEngine(Layout(name="a", model="m", engine="openai", url="http://server.invalid/v1"))
    request = Request(messages=(Message("user", "hi"),))
    for engine in (ollama, openai):
        engine._http = _Canned(data)
        pieces: list[str] = []
        calls: Sequence[Callable[[], Any]] = (
            lambda engine=engine, pieces=pieces: engine.chat(request, pieces.append),  # type: ignore[misc]
            engine.look_at_model,
            lambda engine=engine: engine.load(lambda _: None),  # type: ignore[misc]
            lambda: list_models(_Canned(data)),
        )
        for call in calls:
            try:
                msgspec.json.encode(call())
            except EngineError as error:
                fit_for_people(error.reason.replace("secret", "\0"))
        "".join(pieces).encode()
    with contextlib.suppress(ValueError, RecursionError):
        fit_for_people(_Canned(b"").clean(error_text(json.loads(data))))


# ── what was kept ─────────────────────────────────────────────────────────────────────────
def runs(data: bytes) -> None:
    """The folder of a run: `run.json`, a line `---`, `samples.jsonl`."""
    header, _, samples = data.partition(b"\n---\n")
    at_folder = folder() / "run"
    at_folder.mkdir(exist_ok=True)
    (at_folder / HEADER).write_bytes(header)
    (at_folder / SAMPLES).write_bytes(samples)
    try:
        run = read_run(at_folder)
    except RunError as error:
        fit_for_people(str(error))
        return
    for problem in run.problems:
        fit_for_people(problem)
    outcome = judge(at_folder)
    outcome_text(outcome)
    wording.conclusion(outcome)
    for metric in METRICS:
        ab_draw.verdict(run, outcome, metric, running=False)
        ab_draw.next_step(run, outcome, metric)
        ab_draw.speeds(run, outcome, metric, 80)
        ab_draw.blocks(run, metric)
    for at, prompt in enumerate(run.header.prompts.prompts):
        ab_draw.outputs_head(run, outcome, at)
        first, second, _ = ab_draw.pair(run, prompt.id)
        ab_draw.output("A", first, second)
    ab_draw.details(run, outcome, at_folder)
    for form in FORMATS:
        text = export_run(run, outcome, form)
        if form == "md":
            assert clean(text) == text
    join_text(join(run, run), [run.header.machine.host] * 2)
    for arm in run.header.arms:
        assert not check_layout(arm.layout)


def journals(data: bytes) -> None:
    """A journal of a session."""
    path = folder() / "journal.jsonl"
    path.write_bytes(data)
    try:
        state = read(path)
    except JournalError as error:
        fit_for_people(str(error))
        return
    for problem in state.problems:
        fit_for_people(problem)
    msgspec.json.encode(said_so_far(state).messages("hi"))
    assert state.layout is None or not check_layout(state.layout)


def screens(data: bytes) -> None:
    """How the screen was left."""
    path = folder() / "screen.json"
    path.write_bytes(data)
    state, said = read_screen_state(path)
    if said is not None:
        fit_for_people(said)
    for kept in folder().glob("screen.*.json"):
        kept.unlink()
    assert write_screen_state(path, state) is None
    assert read_screen_state(path) == (state, None)


# ── command lines ─────────────────────────────────────────────────────────────────────────
def commands(data: bytes) -> None:
    """A command line for `import`."""
    try:
        imported = import_command(data.decode("utf-8", "surrogateescape"))
    except CannotImport as error:
        fit_for_people(str(error))
        return
    for left_out in imported.left_out:
        fit_for_people(left_out)
    _is_sound(imported.layout)


# ── NVML ──────────────────────────────────────────────────────────────────────────────────
class _Bytes(str):
    """Text that encodes to any bytes."""

    raw: bytes = b""

    def encode(self, *_: Any, **__: Any) -> bytes:
        return self.raw


def _holding(raw: bytes) -> str:
    text = _Bytes("")
    text.raw = raw
    return text


def drivers(data: bytes) -> None:
    """What a driver calls its cards: bus id, name, UUID, a line each; then a device of llama.cpp's as JSON."""
    bus_id, name, uuid, *_ = [*data.split(b"\n"), b"", b"", b""]
    pynvml._nvmlGetFunctionPointer_cache.clear()
    before, pynvml.nvmlLib = pynvml.nvmlLib, FakeNvmlLib(
        FakeGpu(_holding(bus_id[:31]), name=_holding(name[:95]), uuid=_holding(uuid[:95]))
    )
    try:
        nvml = Nvml()
        samples = {gpu.pci_bus_id: nvml.sample(gpu.pci_bus_id, gpu.pci_bus_id) for gpu in nvml.gpus}
        device = wire.Device(
            name="CUDA0", description="a card", type="gpu",
            device_id=flat(bus_id.decode("utf-8", "replace")), total_mib=1.0, free_mib=1.0,
        )  # fmt: skip
        for card in join_cards((device,), nvml.gpus, samples):
            msgspec.json.encode(card)
            for text in (card.name, card.description, card.pci_bus_id, card.uuid):
                is_flat(text or "")
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "documents": documents,
    "wire": messages,
    "logs": logs,
    "gguf": headers,
    "streams": streams,
    "runs": runs,
    "journal": journals,
    "screen": screens,
    "import": commands,
    "nvml": drivers,
}
