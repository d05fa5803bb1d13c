"""llama.cpp's libraries as this process has them: devices, log and the abort flag.

ggml is reached through llama_cpp's own handle: a second copy loaded by path would have an
empty registry of devices.
"""

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Iterable
from typing import Literal

import llama_cpp.llama_cpp as llama

MIB = 1024 * 1024
DEBUG_LEVEL = 1
ERROR_LEVEL = 4
CONTINUED_LEVEL = 5
ASSIGNMENT = b"assigned to device"
HOST = "CPU"

ggml = llama._lib
"""ggml and gguf, through llama_cpp's handle."""
ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
ggml.ggml_backend_dev_name.restype = ctypes.c_char_p
ggml.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
ggml.ggml_backend_dev_description.restype = ctypes.c_char_p
ggml.ggml_backend_dev_description.argtypes = [ctypes.c_void_p]
ggml.ggml_backend_dev_type.restype = ctypes.c_int
ggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
ggml.ggml_backend_dev_memory.restype = None
ggml.ggml_backend_dev_memory.argtypes = [
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
]
ggml.ggml_backend_dev_get_props.restype = None
ggml.ggml_backend_dev_get_props.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
ggml.ggml_backend_reg_dev_get.restype = ctypes.c_void_p
ggml.ggml_backend_reg_dev_get.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
ggml.ggml_backend_reg_dev_count.restype = ctypes.c_size_t
ggml.ggml_backend_reg_dev_count.argtypes = [ctypes.c_void_p]

_ABORT_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
DeviceType = Literal["cpu", "gpu", "igpu", "accel"]
_DEVICE_TYPES: tuple[DeviceType, ...] = ("cpu", "gpu", "igpu", "accel")
_PROPS_BYTES = 512
"""More than `ggml_backend_dev_props` takes in any version."""
_GPU_LIBRARY = re.compile(r"lib(cuda|cudart|cublas|nccl|amdhip64|rccl|vulkan|ze_loader)\.so")
_keep: list[object] = []
"""Callbacks that C holds on to."""


class Props(ctypes.Structure):
    """The head of `ggml_backend_dev_props`, as far as it is read here."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
    )


class LibraryLog:
    """The library's log lines: handed to listeners and, but for debug lines, written to stderr.

    Of the thousands of debug lines that a load writes only the assignments of layers go on.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[int, str], None]] = []
        self._line = b""
        self._debug = False
        callback = llama.llama_log_callback(self._receive)
        _keep.append(callback)
        llama.llama_log_set(callback, ctypes.c_void_p(0))

    def _receive(self, level: int, text: bytes, _data: ctypes.c_void_p) -> None:
        if level != CONTINUED_LEVEL:
            self._debug = level == DEBUG_LEVEL
        if self._debug and ASSIGNMENT not in text:
            return
        if not self._debug:
            with contextlib.suppress(OSError):  # a full disk
                os.write(2, text)
        self._line = self._line + text if level == CONTINUED_LEVEL else text
        if self._line.endswith(b"\n"):
            line = self._line.decode("utf-8", "replace").strip()
            for listener in tuple(self._listeners):
                listener(level, line)

    def listen(self, listener: Callable[[int, str], None]) -> None:
        """Hand every further line and its level to `listener`, in the thread that logs it."""
        self._listeners.append(listener)


def on_abort(callback: Callable[[str], None]) -> None:
    """Call back with the message when the library is about to abort the process."""
    wrapped = _ABORT_CALLBACK(lambda message: callback(message.decode("utf-8", "replace").strip()))
    _keep.append(wrapped)
    ggml.ggml_set_abort_callback(wrapped)


class AbortFlag:
    """A flag that llama.cpp's abort callback reads without entering Python.

    The callback is asked once a graph node. libc's `atoi` has its signature in all but name
    (a pointer in, zero or not out), so it reads the flag as a string, "0" or "1".
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(b"0", 2)
        self.callback = ctypes.cast(ctypes.CDLL(None).atoi, llama.ggml_abort_callback)
        self.data = ctypes.cast(self._text, ctypes.c_void_p)

    def set(self) -> None:
        """Ask for an abort."""
        self._text[0] = b"1"

    def clear(self) -> None:
        """Go on."""
        self._text[0] = b"0"

    def __bool__(self) -> bool:
        return self._text[0] == b"1"


def backends() -> tuple[str, ...]:
    """The backends of this build, by llama.cpp's names."""
    ggml.ggml_backend_reg_get.restype = ctypes.c_void_p
    ggml.ggml_backend_reg_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_reg_count.restype = ctypes.c_size_t
    ggml.ggml_backend_reg_name.restype = ctypes.c_char_p
    ggml.ggml_backend_reg_name.argtypes = [ctypes.c_void_p]
    registries = (ggml.ggml_backend_reg_get(i) for i in range(ggml.ggml_backend_reg_count()))
    return tuple(ggml.ggml_backend_reg_name(registry).decode() for registry in registries)


def told_by(function: str) -> str | None:
    """What a function of the library says that returns a text, such as `llama_version`; None without it."""
    if not hasattr(ggml, function):
        return None
    ask = getattr(ggml, function)
    ask.restype = ctypes.c_char_p
    text: bytes | None = ask()
    return None if text is None else text.decode("utf-8", "replace")


def gpu_libraries() -> tuple[str, ...]:
    """The file names of the GPU makers' libraries in this process: `libcudart.so.13`."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            names = {os.path.basename(line.split(maxsplit=5)[5].strip()) for line in maps if line.count("/")}
    except OSError:
        return ()
    return tuple(sorted(name for name in names if _GPU_LIBRARY.match(name)))


def devices() -> Iterable[int]:
    """Every registered device, as a handle."""
    return (ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count()))


def device_name(device: int) -> str:
    """llama.cpp's name: `CUDA0`, `RPC1`, `CPU`."""
    name: bytes = ggml.ggml_backend_dev_name(device)
    return name.decode()


def device_named(name: str) -> int | None:
    """The handle of the device of that name."""
    return next((device for device in devices() if device_name(device) == name), None)


def device_type(device: int) -> DeviceType:
    """What kind of device it is."""
    kind: int = ggml.ggml_backend_dev_type(device)
    return _DEVICE_TYPES[kind] if kind < len(_DEVICE_TYPES) else "gpu"


def device_memory_mib(device: int) -> tuple[float, float]:
    """(free, total) in MiB. On CUDA this makes a context on the card, hundreds of MiB."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return free.value / MIB, total.value / MIB


def device_props(device: int) -> Props:
    """What the device says of itself. On CUDA this makes a context on the card."""
    buffer = ctypes.create_string_buffer(_PROPS_BYTES)
    ggml.ggml_backend_dev_get_props(device, buffer)
    return Props.from_buffer(buffer)


def add_rpc_server(endpoint: str) -> list[int]:
    """Register the devices behind an RPC endpoint, `host:port`; empty if it has none."""
    if not hasattr(ggml, "ggml_backend_rpc_add_server"):
        return []
    ggml.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
    registry = ggml.ggml_backend_rpc_add_server(endpoint.encode())
    if not registry:
        return []
    ggml.ggml_backend_register(ctypes.c_void_p(registry))
    count = ggml.ggml_backend_reg_dev_count(registry)
    return [ggml.ggml_backend_reg_dev_get(registry, i) for i in range(count)]
