"""A model's own description, read from its GGUF header by ggml's reader."""

import ctypes
import math
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
from gguf import LlamaFileType

from workbench.domain.text import flat
from workbench.engines.engine import ModelInfo
from workbench.engines.llama.child.native import MIB, ggml

MOST_LAYERS = 4096
"""Several times what llama.cpp takes."""
LONGEST_NAME = 200
_U32, _U64, _STRING = 4, 10, 8


class _InitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


ggml.gguf_init_from_file.restype = ctypes.c_void_p
ggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, _InitParams]
ggml.gguf_free.argtypes = [ctypes.c_void_p]
ggml.gguf_find_key.restype = ctypes.c_int64
ggml.gguf_find_key.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
ggml.gguf_get_kv_type.argtypes = [ctypes.c_void_p, ctypes.c_int64]
ggml.gguf_get_val_u32.restype = ctypes.c_uint32
ggml.gguf_get_val_u32.argtypes = [ctypes.c_void_p, ctypes.c_int64]
ggml.gguf_get_val_u64.restype = ctypes.c_uint64
ggml.gguf_get_val_u64.argtypes = [ctypes.c_void_p, ctypes.c_int64]
ggml.gguf_get_val_str.restype = ctypes.c_char_p
ggml.gguf_get_val_str.argtypes = [ctypes.c_void_p, ctypes.c_int64]
ggml.gguf_get_n_tensors.restype = ctypes.c_int64
ggml.gguf_get_n_tensors.argtypes = [ctypes.c_void_p]
ggml.gguf_get_tensor_ne.restype = ctypes.POINTER(ctypes.c_int64)
ggml.gguf_get_tensor_ne.argtypes = [ctypes.c_void_p, ctypes.c_int64]
ggml.gguf_get_tensor_name.restype = ctypes.c_char_p
ggml.gguf_get_tensor_name.argtypes = [ctypes.c_void_p, ctypes.c_int64]
ggml.gguf_get_tensor_type.argtypes = [ctypes.c_void_p, ctypes.c_int64]
ggml.gguf_get_tensor_size.restype = ctypes.c_size_t
ggml.gguf_get_tensor_size.argtypes = [ctypes.c_void_p, ctypes.c_int64]
ggml.gguf_get_tensor_offset.restype = ctypes.c_size_t
ggml.gguf_get_tensor_offset.argtypes = [ctypes.c_void_p, ctypes.c_int64]
ggml.gguf_get_data_offset.restype = ctypes.c_size_t
ggml.gguf_get_data_offset.argtypes = [ctypes.c_void_p]


class Tensor(msgspec.Struct, frozen=True):
    """A tensor as the header lists it: its elements by axis, ggml's number for its type, its bytes."""

    name: str
    shape: tuple[int, int, int, int]
    type: int
    size: int


class HeaderError(Exception):
    """The file is no model that can be read; the message says why."""


class GgufHeader:
    """One file's header, open until the `with` ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "GgufHeader":
        self._handle = ggml.gguf_init_from_file(str(self.path).encode(), _InitParams(True, None))
        if not self._handle:
            raise HeaderError(f"{self.path} is damaged or not a GGUF file: its header cannot be read")
        return self

    def __exit__(self, *_: object) -> None:
        ggml.gguf_free(self._handle)

    def number(self, key: str, default: int = 0) -> int:
        """An unsigned number; `default` where the key is missing or something else."""
        at = ggml.gguf_find_key(self._handle, key.encode())
        if at < 0:
            return default
        kind = ggml.gguf_get_kv_type(self._handle, at)
        if kind == _U32:
            return int(ggml.gguf_get_val_u32(self._handle, at))
        return int(ggml.gguf_get_val_u64(self._handle, at)) if kind == _U64 else default

    def text(self, key: str, default: str = "") -> str:
        """A string; `default` where the key is missing or something else."""
        at = ggml.gguf_find_key(self._handle, key.encode())
        if at < 0 or ggml.gguf_get_kv_type(self._handle, at) != _STRING:
            return default
        value: bytes = ggml.gguf_get_val_str(self._handle, at)
        return value.decode("utf-8", "replace")

    def tensors(self) -> Iterator[Tensor]:
        """The tensors in this file."""
        for i in range(ggml.gguf_get_n_tensors(self._handle)):
            ne = ggml.gguf_get_tensor_ne(self._handle, i)
            yield Tensor(
                name=ggml.gguf_get_tensor_name(self._handle, i).decode("utf-8", "replace"),
                shape=(ne[0], ne[1], ne[2], ne[3]),
                type=ggml.gguf_get_tensor_type(self._handle, i),
                size=ggml.gguf_get_tensor_size(self._handle, i),
            )

    def length(self) -> int:
        """Bytes of the header: where the tensors' data begins."""
        return int(ggml.gguf_get_data_offset(self._handle))

    def bytes_promised(self) -> int:
        """How long the file must be to hold every tensor it lists."""
        end = 0
        for i in range(ggml.gguf_get_n_tensors(self._handle)):
            offset = ggml.gguf_get_tensor_offset(self._handle, i)
            end = max(end, offset + ggml.gguf_get_tensor_size(self._handle, i))
        return self.length() + end


def parts(path: Path) -> list[Path]:
    """The files of a model: itself, or all of `NAME-00001-of-0000N.gguf`."""
    match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if match is None:
        return [path]
    return [path.with_name(f"{match[1]}-{i:05d}-of-{match[2]}.gguf") for i in range(1, int(match[2]) + 1)]


def largest_tensor_mib(path: Path) -> float:
    """The largest tensor of the model at `path`. Raises HeaderError."""
    sizes = [0]
    for part in parts(path):
        with GgufHeader(part) as header:
            sizes += [tensor.size for tensor in header.tensors()]
    return max(sizes) / MIB


def read_header(path: Path) -> ModelInfo:
    """Describe the model at `path` (of a model in parts: the first). Raises HeaderError."""
    n_params = size = 0
    for part in parts(path):
        try:
            length = part.stat().st_size
        except OSError as error:
            raise HeaderError(f"{part} cannot be read: {error.strerror}") from error
        with GgufHeader(part) as header:
            promised = header.bytes_promised()
            if length < promised:
                raise HeaderError(
                    f"{part} is truncated: it has {length} bytes, its header promises {promised}; download it again"
                )
            n_params += sum(math.prod(tensor.shape) for tensor in header.tensors())
            size += length
    with GgufHeader(path) as header:
        arch = header.text("general.architecture")
        try:
            quantisation = LlamaFileType(header.number("general.file_type", -1)).name.removeprefix("MOSTLY_")
        except ValueError:
            quantisation = "?"
        n_layer = header.number(f"{arch}.block_count")
        if n_layer == 0:
            raise HeaderError(f"{path} is a GGUF file without layers: not a language model")
        if n_layer > MOST_LAYERS:
            raise HeaderError(f"{path} is damaged: it claims {n_layer} layers")
        return ModelInfo(
            path=str(path),
            name=flat(header.text("general.name", path.stem))[:LONGEST_NAME],
            arch=flat(arch)[:LONGEST_NAME],
            quantisation=quantisation.removeprefix("ALL_"),
            n_layer=n_layer,
            n_ctx_train=header.number(f"{arch}.context_length"),
            n_params=n_params,
            size_mib=size / MIB,
            header_bytes=header.length(),
        )
