"""Sound inputs for each target, from which the search begins."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import msgspec
import numpy as np

from tests.fuzz.targets import folder
from tests.runs import made_run
from workbench.domain.conversation import Conversation, Message, Sampling, Turn
from workbench.domain.layout import Context, Layout
from workbench.domain.memory import CardMemory
from workbench.domain.split import Split, Virtual
from workbench.domain.timing import Probe, Timing
from workbench.engines.llama import wire
from workbench.store import journal
from workbench.store.screen_state import ScreenState

ROOT = Path(__file__).parents[2]
TIMING = Timing(prompt_tokens=9, evaluated_tokens=3, tokens=2, decoded_tokens=1, ttft_s=0.1, prefill_s=0.1, decode_s=1)
LAYOUT = Layout(name="a", model="m.gguf", split=Split(layers=(20, 11), cards=Virtual(virtual=("600MiB", "300MiB"))),
                env={"GGML_CUDA_P2P": "1"})  # fmt: skip
MEMORY = CardMemory(name="RPC0", weights_mib=60.0, kv_mib=2.0, compute_mib=90.0, layers=20)
LOG = """\
load_tensors: layer   0 assigned to device RPC0, is_swa = 0
load_tensors: RPC0[127.0.0.1:50061] model buffer size =    60.30 MiB
llama_kv_cache: size =   90.00 MiB (  4096 cells,  30 layers,  1/1 seqs), K (f16):   45.00 MiB, V (f16):   45.00 MiB
llama_kv_cache:  CUDA0 KV buffer size =    45.00 MiB
llama_context: flash_attn    = auto
sched_reserve:      Meta() compute buffer size =   97.10 MiB
llama_context: Flash Attention was auto, set to enabled
Eggml_backend_cuda_buffer_type_alloc_buffer: allocating 1989.53 MiB on device 0: cudaMalloc failed: out of memory
Ealloc_tensor_range: failed to allocate RPC0[127.0.0.1:50061] buffer of size 1234567
Ellama_model_load: error loading model: unknown model architecture: 'x'
[alloc_buffer] device: 0, size: 1024 -> remote_ptr: 7f00aa, remote_size: 1056
[alloc_buffer] device: 0, size: 99 -> failed
[free_buffer] remote_ptr: 7f00aa
Failed to allocate input buffer of size 77
"""
OLLAMA = """\
{"model":"m","message":{"role":"assistant","content":"Hi","thinking":"hm"},"done":false}
{"model":"m","message":{"role":"assistant","content":" there"},"done":false}
{"model":"m","message":{"content":""},"done":true,"done_reason":"length","prompt_eval_count":9,"eval_count":2,\
"prompt_eval_duration":1000000,"eval_duration":2000000,"load_duration":700000000}
"""
OPENAI = """\
data: {"choices":[{"delta":{"role":"assistant","content":"Hi"},"index":0}]}

: ping
data: {"choices":[{"delta":{"reasoning_content":"hm"},"finish_reason":"stop"}],"timings":{"predicted_ms":10.5,\
"predicted_n":3,"predicted_per_second":200.0,"prompt_n":4,"cache_n":1,"prompt_ms":2}}

data: {"choices":[],"usage":{"completion_tokens":3,"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}

data: [DONE]

"""
LISTS = (
    '{"models":[{"name":"m","model":"m:latest","size":100,"size_vram":50,"context_length":4096,"details":{"family":'
    '"llama","quantization_level":"Q4_0"},"digest":"ab"}],"version":"0.33","model_info":{"general.architecture":'
    '"llama","llama.block_count":30,"llama.context_length":8192,"general.parameter_count":1},"details":{"family":"l"}}',
    '{"data":[{"id":"m","owned_by":"vllm","max_model_len":4096,"meta":{"n_ctx_train":9,"n_params":1,"size":2}}],'
    '"default_generation_settings":{"n_ctx":4096},"build_info":"b1"}',
    '{"error":{"message":"too long","n_prompt_tokens":9000,"n_ctx":4096,"code":"context_length_exceeded"}}',
    '{"error":"the prompt exceeds the context length (5000 > 4096)"}',
    '[{"choices":[{"message":{"content":"Hi"},"finish_reason":"length"}]}]',
)
COMMANDS = (
    "CUDA_VISIBLE_DEVICES=0,1 llama-server -m '/models/a b.gguf' -ngl 81 -sm layer -ts 61,20 -dev CUDA0,CUDA1 -c 8192",
    "#!/bin/sh\nexec env -u NCCL_DEBUG llama-server --model m.gguf --rpc a:1,b:2 -fa --jinja -ctk q8_0 &",
    "-m m.gguf -ngl 999 -ts 3/1 -mg 1 -sm none -t 4 -b 1 -ub 2 --alias big,b",
)


def _documents() -> list[bytes]:
    layouts = [b"y" + path.read_bytes() for path in sorted((ROOT / "layouts").glob("*.yaml"))]
    prompts = [b"y" + path.read_bytes() for path in sorted((ROOT / "prompts").glob("*.yaml"))]
    lines = b'j{"prompt":"Hello"}\n{"id":"a","messages":[{"role":"user","content":"x"}],"depth":9,"seed":1}\n'
    config = b"ymodel_folders: [~/m]\nprice: {currency: EUR, per_hour: 4.2}\n"
    flow = b'y{"name": "a", "model": "m", "split": {"tensor_split": [3, 1], "cards": ["CUDA0", "rpc://h:1"]}}'
    return [*layouts, *prompts, lines, config, flow]


def _wire() -> list[bytes]:
    load = wire.Load(model_path="/m.gguf", cards=(wire.WireCard(name="CUDA0", device="CUDA0"),), split=LAYOUT.split,
                     context=Context(), card_threads=1)  # fmt: skip
    sent: list[wire.Command | wire.Event] = [
        load,
        wire.Chat(messages=(Message("user", "hi"),), sampling=Sampling(seed=1)),
        wire.Simulate(load=load, room_mib=(1.0, None)),
        wire.Cancel(3),
        wire.Ready(pid=1, supports_rpc=True, supports_gpu_offload=False),
        wire.Text("hello"),
        wire.ChatDone(stop_reason="stop", timing=TIMING, tokens=(1, 2)),
        wire.ProbeDone(Probe(depth=64, tokens=48, prefill_tok_s=100.0, decode_tok_s=60.0)),
        wire.Simulated(source="llama.cpp", cards=(MEMORY,), host=MEMORY, n_ctx=4096),
        wire.Failed(kind="died", reason="gone", card="RPC0", wanted_mib=1.5),
    ]
    return [wire.encode(message).rstrip(b"\n") for message in sent]


def small_model(
    arch: str, numbers: Mapping[str, int], *, fused: bool = False, name: str = "a model", rows: int = 8
) -> bytes:
    """A header of one layer, with as few keys and tensors as tell all that is read of it."""
    path = folder() / "seed.gguf"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    for key, number in numbers.items():
        writer.add_uint32(f"{arch}.{key}", number)
    writer.add_uint64(f"{arch}.context_length", 4096)
    attention = ("attn_qkv",) if fused else ("attn_q", "attn_k", "attn_v")
    tensors = ["token_embd.weight", "output_norm.weight"] + [
        f"blk.0.{part}.weight" for part in (*attention, "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    ]
    for tensor in tensors:
        writer.add_tensor(tensor, np.zeros((3 * rows if "qkv" in tensor else rows, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    data = path.read_bytes()
    return data + bytes(5 - len(data) % 4)


def _models() -> list[bytes]:
    heads = {"embedding_length": 8, "block_count": 1, "attention.head_count": 2}
    lengths = {"attention.key_length": 4, "attention.value_length": 4}
    return [
        small_model("llama", heads),
        small_model("phi3", heads | lengths, fused=True),
    ]


def _runs() -> list[bytes]:
    found = []
    for run in (made_run(lambda planned: 60.0 + planned.slot, blocks=2), made_run(lambda planned: 60.0, blocks=1)):
        out = io.BytesIO(msgspec.json.encode(run.header))
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in (*run.loads, *run.samples))
        found.append(out.getvalue() + b"\n---\n" + lines)
    return found


def _journals() -> list[bytes]:
    turn = Turn(prompt="hi", reply="hello", stop_reason="stop", timing=TIMING, split="layer 3:1")
    records = (
        journal.Header(version=1, started=1.0),
        journal.LayoutServes(LAYOUT),
        journal.TurnBegun(0, "hi"),
        journal.TextArrived("hel"),
        journal.TurnEnded(0, turn),
        journal.ConversationSet(Conversation(system="s", turns=(turn,))),
        journal.SplitTried(layout=LAYOUT, cards=(MEMORY,)),
        journal.TurnBegun(1, "more"),
    )
    return [b"".join(msgspec.json.encode(record) + b"\n" for record in records)]


SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "documents": _documents,
    "wire": _wire,
    "logs": lambda: [LOG.encode(), *(line.encode() for line in LOG.splitlines())],
    "gguf": _models,
    "streams": lambda: [text.encode() for text in (OLLAMA, OPENAI, *LISTS)],
    "runs": _runs,
    "journal": _journals,
    "screen": lambda: [msgspec.json.encode(ScreenState(theme="terminal-dark", unsent="half", told=("a", "b")))],
    "import": lambda: [command.encode() for command in COMMANDS],
    "nvml": lambda: [b"00000000:C1:00.0\nNVIDIA H200\nGPU-8a\n"],
}
