"""What the search has found, cut down: each of these once broke a rule of `targets.py`."""

from tests.fuzz.mutate import DEEP
from tests.fuzz.seeds import SEEDS, small_model

_DEEP = b"[" * DEEP
_RUN = SEEDS["runs"]()[0]
_JOURNAL = SEEDS["journal"]()[0]
_HEADS = {"embedding_length": 8, "block_count": 1, "attention.head_count": 2}


def _in_run(old: bytes, new: bytes) -> bytes:
    assert old in _RUN, old
    return _RUN.replace(old, new, 1)


CASES: dict[str, list[bytes]] = {
    "wire": [b'{"type":"Chat","messages":' + _DEEP, b'{"type":"Devices","devices":' + _DEEP],
    "logs": [
        b"sched_reserve: CUDA0 compute buffer size = 97..10 MiB",
        b"load_tensors: layer " + b"9" * 5000 + b" assigned to device RPC0, is_swa = 0",
        b"[alloc_buffer] device: 0, size: " + b"9" * 30 + b" -> failed",
        b"Eallocating .. MiB on device 0: cudaMalloc failed",
    ],
    "gguf": [
        small_model("llama", _HEADS | {"block_count": 2**32 - 1}),
        small_model("llama", _HEADS | {"attention.head_count": 0}),
        small_model("llama", _HEADS | {"attention.key_length": 0, "attention.value_length": 0}),
        small_model("phi3", _HEADS, fused=True, rows=0),
        small_model("llama", _HEADS, name="a mo\x04del\x1b[2J"),
    ],
    "streams": [
        b'{"data": [{"id": "\xed\xa0\x80"}]}',
        b'{"data": [{"id": "\\ud800"}]}',
        b'data: {"choices": [{"delta": 1e308}]}\n\n',
        b'data: {"choices": 7}\n\n',
        b'{"models": 5, "version": {}}',
        b'{"models": [{"name": "m", "size": 1e999}], "model_info": {"general.parameter_count": Infinity}}',
        b'{"error": ' * 400 + b"1" + b"}" * 400,
    ],
    "runs": [
        _in_run(b'"env":{}', b'"env":{"LD_PRELOAD":"/tmp/x.so"}'),
        _in_run(b'"id":"simulated"', b'"id":"../../x"'),
        _in_run(b'"created":0', b'"created":1e300'),
        _in_run(b'"blocks":2', b'"blocks":2000000000'),
        _in_run(b'"at":0.0', b'"at":1e30'),
        _in_run(b'"decode_s":', b'"decode_s":1e-320,"io_s":'),
        b'{"version":1,"arms":' + _DEEP + b"\n---\n",
        _RUN + b"\n" + _DEEP,
    ],
    "journal": [
        _JOURNAL + _DEEP,
        _JOURNAL.replace(b'"GGML_CUDA_P2P":"1"', b'"LD_PRELOAD":"/tmp/x.so"'),
    ],
    "screen": [b'{"version":1,"unsent":"\\ud800"}'],
    "import": [b"llama-ser\x7fer --model m.gguf", b"llama-server -m m.gguf --\x1b[2J",
               b"llama-server -m m.gguf " + b"\xff" * 400, b"llama-server -m m.gguf -mg 999999999999999999991"],
    "nvml": [b"00000000:C1:00.0\nbad\xff\xffname\nGPU-\x1b[2J", b"\xff\xff\n\n", b"00000000:C1:00.0\x0e\na\x08b\n",
             b"0800:C1:00.\x19}\x19-0\0\xe2\x90\xae\x19"],
}  # fmt: skip
