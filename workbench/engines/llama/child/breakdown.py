"""What llama.cpp says a simulated model takes, by kind and device, and how it would cut each tensor.

These are C++ functions that libllama exports without promise. Their results are read by the
layout that libstdc++ gives them; `Unreadable` says that this library's are not of that shape.
"""

import ctypes
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from workbench.engines.llama.child.native import ggml

_MAX_CARDS = 16
_MAX_SEGMENTS = 16
_MAX_DIMS = 4
_MAX_KINDS = 256
"""More buffer types than any machine has: a larger count was read from something else."""
_STRING_BYTES = 32
MIRRORED = 10


class Unreadable(Exception):
    """This llama.cpp lacks the functions, or their results are of another shape."""


class _Map(ctypes.Structure):
    """std::map: its comparison, its header node, its size."""

    _fields_ = (
        ("compare", ctypes.c_size_t),
        ("colour", ctypes.c_size_t),
        ("root", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("last", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
    )


class _Node(ctypes.Structure):
    """A node of std::map<buffer type, {model, context, compute}>."""

    _fields_ = (
        ("colour", ctypes.c_size_t),
        ("parent", ctypes.c_void_p),
        ("left", ctypes.c_void_p),
        ("right", ctypes.c_void_p),
        ("buffer_type", ctypes.c_void_p),
        ("model", ctypes.c_size_t),
        ("context", ctypes.c_size_t),
        ("compute", ctypes.c_size_t),
    )


class _Vector(ctypes.Structure):
    """std::vector: begin, end, capacity."""

    _fields_ = (("begin", ctypes.c_size_t), ("end", ctypes.c_size_t), ("room", ctypes.c_size_t))


class _Named(ctypes.Structure):
    """std::pair<std::string, ggml_tensor *>."""

    _fields_ = (("name", ctypes.c_char * _STRING_BYTES), ("tensor", ctypes.c_void_p))


class _Tensor(ctypes.Structure):
    """The head of ggml_tensor."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * _MAX_DIMS),
        ("nb", ctypes.c_size_t * _MAX_DIMS),
    )


_TENSOR_ROOM = 1024
"""More bytes than ggml_tensor has in any version."""


class _SplitState(ctypes.Structure):
    """ggml_backend_meta_split_state."""

    _fields_ = (
        ("axis", ctypes.c_int),
        ("ne", ctypes.c_int64 * (_MAX_CARDS * _MAX_SEGMENTS)),
        ("nr", ctypes.c_uint32 * _MAX_SEGMENTS),
        ("n_segments", ctypes.c_uint32),
    )


class _SplitData(ctypes.Structure):
    """What the split function is told: the number of cards and the model."""

    _fields_ = (("n_devices", ctypes.c_size_t), ("model", ctypes.c_void_p))


def _function(name: str, restype: Any, *argtypes: Any) -> Any:
    try:
        function = ggml[name]
    except AttributeError:
        return None
    function.restype, function.argtypes = restype, list(argtypes)
    return function


_breakdown = _function("_Z26llama_get_memory_breakdownPK13llama_context", _Map, ctypes.c_void_p)
_tensor_map = _function(
    "_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model", ctypes.POINTER(_Vector), ctypes.c_void_p
)
_split_state = _function(
    "_Z33llama_meta_device_get_split_statePK11ggml_tensorPv", _SplitState, ctypes.c_void_p, ctypes.c_void_p
)
_is_meta = _function("ggml_backend_buft_is_meta", ctypes.c_bool, ctypes.c_void_p)
ggml.ggml_backend_buft_is_host.restype = ctypes.c_bool
ggml.ggml_backend_buft_is_host.argtypes = [ctypes.c_void_p]
ggml.ggml_backend_buft_get_device.restype = ctypes.c_void_p
ggml.ggml_backend_buft_get_device.argtypes = [ctypes.c_void_p]
ggml.ggml_backend_buffer_get_type.restype = ctypes.c_void_p
ggml.ggml_backend_buffer_get_type.argtypes = [ctypes.c_void_p]
ggml.ggml_nbytes.restype = ctypes.c_size_t
ggml.ggml_nbytes.argtypes = [ctypes.c_void_p]
ggml.ggml_get_name.restype = ctypes.c_char_p
ggml.ggml_get_name.argtypes = [ctypes.c_void_p]
ggml.ggml_set_name.restype = ctypes.c_void_p
ggml.ggml_set_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


class Taken:
    """Bytes of one buffer type: weights, KV and compute; `device` None for the host's."""

    def __init__(self, device: int | None, weights: int, kv: int, compute: int) -> None:
        self.device = device
        self.weights = weights
        self.kv = kv
        self.compute = compute


def memory_breakdown(context: object) -> list[Taken]:
    """What a context and its model take, by buffer type. Raises Unreadable."""
    if _breakdown is None or sys.platform != "linux":
        raise Unreadable("llama_get_memory_breakdown")
    found = _breakdown(context)
    if not 0 < found.size < _MAX_KINDS:
        raise Unreadable("the memory breakdown is no std::map of libstdc++")
    taken = [
        Taken(_device(node.buffer_type), node.model, node.context, node.compute)
        for node in _nodes(found.root, found.size)
    ]
    if len(taken) != found.size:
        raise Unreadable("the memory breakdown is no std::map of libstdc++")
    return taken


def _nodes(at: int | None, limit: int) -> Iterator[_Node]:
    waiting = [at]
    while waiting and limit >= 0:
        if (address := waiting.pop()) is not None:
            node = _Node.from_address(address)
            yield node
            limit -= 1
            waiting += [node.left, node.right]


def _device(buffer_type: int) -> int | None:
    if ggml.ggml_backend_buft_is_host(buffer_type):
        return None
    device: int | None = ggml.ggml_backend_buft_get_device(buffer_type)
    return device


class Cut:
    """How llama.cpp cuts the tensors of a simulated model over `n_cards` in tensor mode."""

    def __init__(self, model: int, n_cards: int) -> None:
        if None in (_tensor_map, _split_state, _is_meta) or sys.platform != "linux":
            raise Unreadable("llama_meta_device_get_split_state")
        self._n_cards = n_cards
        self._data = _SplitData(n_cards, model)
        vector = _tensor_map(model).contents
        length = vector.end - vector.begin
        if length <= 0 or length % ctypes.sizeof(_Named):
            raise Unreadable("the list of tensors is no std::vector of libstdc++")
        entries = (_Named * (length // ctypes.sizeof(_Named))).from_address(vector.begin)
        self._tensors = [int(entry.tensor) for entry in entries]
        self._by_name = {ggml.ggml_get_name(address).decode(): address for address in self._tensors}

    def weights(self) -> list[int]:
        """Bytes on each card, of the tensors that lie on cards."""
        held = [0] * self._n_cards
        for address in self._tensors:
            tensor = _Tensor.from_address(address)
            buffer_type = ggml.ggml_backend_buffer_get_type(tensor.buffer)
            if not _is_meta(buffer_type):
                continue
            size = ggml.ggml_nbytes(address)
            for card, part in enumerate(self._parts(address)):
                held[card] += round(size * part)
        return held

    def kv_parts(self, layers: Iterable[int]) -> list[float]:
        """The part that each card holds, 0 … 1, of the KV cache of `layers`, those that are on cards."""
        sums, total = [0.0] * self._n_cards, 0.0
        for layer in layers:
            width, parts = self._cache(layer)
            total += width
            sums = [held + width * part for held, part in zip(sums, parts, strict=True)]
        return [held / total for held in sums] if total else [1.0] * self._n_cards

    def _cache(self, layer: int) -> tuple[int, Sequence[float]]:
        """The width of a layer's cache and each card's part of it."""
        block = f"blk.{layer}."
        if block + "attn_output.weight" not in self._by_name:
            recurrent = self._by_name.get(block + "ssm_out.weight")
            return (0, [1.0] * self._n_cards) if recurrent is None else (1, self._parts(recurrent))
        if (key := self._by_name.get(block + "attn_k.weight")) is not None:
            width = int(_Tensor.from_address(key).ne[1])
        elif (fused := self._by_name.get(block + "attn_qkv.weight")) is not None:
            out = _Tensor.from_address(self._by_name[block + "attn_output.weight"])
            width = (int(_Tensor.from_address(fused).ne[1]) - int(out.ne[0])) // 2
        else:
            return 0, [1.0] * self._n_cards
        room = ctypes.create_string_buffer(_TENSOR_ROOM)
        cache = _Tensor.from_buffer(room)
        cache.ne = (ctypes.c_int64 * _MAX_DIMS)(width, 1, 1, 1)
        ggml.ggml_set_name(room, f"cache_k_l{layer}".encode())
        return width, self._parts(ctypes.addressof(room))

    def _parts(self, tensor: int) -> list[float]:
        """Each card's part of a tensor; a mirrored one is whole on every card."""
        state = _split_state(tensor, ctypes.byref(self._data))
        if not 0 <= state.axis < _MAX_DIMS:
            return [1.0] * self._n_cards
        whole = int(_Tensor.from_address(tensor).ne[state.axis])
        return [
            sum(state.ne[s * self._n_cards + card] * state.nr[s] for s in range(state.n_segments)) / whole
            for card in range(self._n_cards)
        ]
