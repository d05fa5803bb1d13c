"""Bytes of tokens into text, the library's log into figures, lines into messages."""

import contextlib
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.domain.conversation import Message, Sampling
from workbench.domain.timing import Timing
from workbench.engines.llama import wire
from workbench.engines.llama.child.loadlog import LoadLog
from workbench.engines.llama.child.tokens import TextStream


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(edge, len(data)) for edge in at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.text(), st.lists(st.integers(0, 200)))
def test_text_is_whole_however_its_bytes_are_cut(text: str, at: list[int]) -> None:
    stream = TextStream()
    pieces = [stream.feed(piece) for piece in cut(text.encode(), at)]
    assert "".join(pieces) + stream.end() == text
    assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in text


@given(st.text("ab|", max_size=30), st.lists(st.integers(0, 40)), st.lists(st.text("ab|", min_size=1, max_size=4)))
def test_nothing_of_a_stop_string_is_shown_and_nothing_before_it_is_lost(
    text: str, at: list[int], stops: list[str]
) -> None:
    stream = TextStream(tuple(stops))
    shown, ends = "", 0
    for piece in cut(text.encode(), at):
        shown += stream.feed(piece)
        ends += len(piece)
        assert not any(stop in shown for stop in stops)
        if stream.stopped:
            break
    shown += stream.end()
    arrived = text[:ends]
    first = min((arrived.find(stop) for stop in stops if stop in arrived), default=-1)
    assert stream.stopped == (first >= 0)
    assert shown == (arrived if first < 0 else arrived[:first])


def test_a_cut_character_at_the_end_is_marked() -> None:
    stream = TextStream()
    assert stream.feed("日".encode()[:2]) == ""
    assert stream.end() == "\ufffd"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("load_tensors: layer  12 assigned to device RPC1, is_swa = 0", {12: "RPC1"}),
        ("load_tensors: layer   0 assigned to device CUDA0, is_swa = 0", {0: "CUDA0"}),
        ("load_tensors: layer   0 asigned to device CUDA0", {}),
    ],
)
def test_where_a_layer_landed_is_read_from_its_line(line: str, wanted: dict[int, str]) -> None:
    log = LoadLog()
    log.read(1, line)
    assert log.places == wanted


def test_buffers_and_refusals_are_read_with_their_sizes() -> None:
    log = LoadLog()
    for line in (
        "load_tensors:        CUDA0 model buffer size =  1989.53 MiB",
        "llama_kv_cache: RPC0[127.0.0.1:50061] KV buffer size =    64.00 MiB",
        "sched_reserve:      CUDA0 compute buffer size =   312.01 MiB",
        "llama_context:        CPU  output buffer size =     0.19 MiB",
    ):
        log.read(2, line)
    assert log.buffers == [
        ("CUDA0", "weights", 1989.53), ("RPC0[127.0.0.1:50061]", "kv", 64.0), ("CUDA0", "compute", 312.01),
        ("CPU", "compute", 0.19),
    ]  # fmt: skip
    log.read(4, "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1989.53 MiB on device 0: cudaMalloc failed")
    assert log.refusal is not None
    assert (log.refusal.buffer, log.refusal.mib) == ("CUDA0", 1989.53)
    log.start_context()
    assert log.buffers == [("CUDA0", "weights", 1989.53)]
    assert log.refusal is None


def test_memory_that_ends_in_a_reply_is_read_with_its_card() -> None:
    log = LoadLog()
    for line in (
        "CUDA error: out of memory",
        "current device: 1, in function alloc at ggml-cuda.cu:452",
        "cuMemCreate(&handle, reserve_size, &prop, 0)",
    ):
        log.read(4, line)
    assert log.refusal is not None
    assert (log.refusal.buffer, log.refusal.mib) == ("CUDA1", None)
    other = LoadLog()
    other.read(4, "CUDA error: an illegal memory access was encountered")
    other.read(4, "current device: 1, in function ggml_backend_cuda_synchronize at ggml-cuda.cu:3067")
    assert other.refusal is None


WORDS = st.sampled_from(
    ["load_tensors: ", "layer", " 7 ", "assigned to device ", "RPC0[a:1]", ",", "KV buffer size = ", "1.5 MiB", "x",
     "model buffer size =", "failed to allocate ", " buffer of size ", "12", "allocating 1 MiB on device 0", "\n",
     "Flash Attention was auto, set to enabled", "error loading model: ", "."]
)  # fmt: skip


@given(st.lists(st.one_of(WORDS, st.text(max_size=8)), max_size=12).map("".join), st.integers(0, 5))
def test_no_line_of_the_log_upsets_its_reader(line: str, level: int) -> None:
    log = LoadLog()
    log.read(level, line)
    assert isinstance(log.reason("otherwise"), str)
    assert all(mib >= 0 for _, _, mib in log.buffers)


MESSAGES: list[wire.Command | wire.Event] = [
    wire.Chat(messages=(Message("user", "日\n\"\u2028"),), sampling=Sampling(seed=1)),
    wire.Cancel(3),
    wire.Text("a\nb\u2029c"),
    wire.ChatDone(
        stop_reason="stop",
        timing=Timing(
            prompt_tokens=1, evaluated_tokens=1, tokens=1, decoded_tokens=0, ttft_s=0.1, prefill_s=0.1, decode_s=0.0
        ),
    ),
    wire.Failed(kind="load_failed", reason="no room", card="RPC0", wanted_mib=1.5),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_one_line_and_comes_back_as_it_was(message: wire.Command | wire.Event) -> None:
    line = wire.encode(message)
    assert line.count(b"\n") == 1
    is_command = isinstance(message, wire.Chat | wire.Cancel)
    assert (wire.decode_command(line) if is_command else wire.decode_event(line)) == message


@given(st.one_of(st.binary(max_size=80), st.sampled_from(MESSAGES).map(wire.encode)), st.integers(0, 200))
def test_a_line_that_is_cut_or_foreign_is_refused_and_nothing_else(line: bytes, end: int) -> None:
    for decode in (wire.decode_event, wire.decode_command):
        with contextlib.suppress(msgspec.MsgspecError):
            decode(line[:end])
