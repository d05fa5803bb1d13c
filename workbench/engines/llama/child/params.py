"""A layout in llama.cpp's own parameters, for a load and for its simulation alike."""

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as llama
import psutil

from workbench.domain.layout import Context
from workbench.domain.split import Split, n_gpu_layers_asked

_SPLIT_MODES = {
    "none": llama.LLAMA_SPLIT_MODE_NONE,
    "layer": llama.LLAMA_SPLIT_MODE_LAYER,
    "row": llama.LLAMA_SPLIT_MODE_ROW,
    "tensor": llama.LLAMA_SPLIT_MODE_TENSOR,
}
_CACHE_TYPES = {
    "f32": llama.GGML_TYPE_F32,
    "f16": llama.GGML_TYPE_F16,
    "bf16": 30,
    "q8_0": llama.GGML_TYPE_Q8_0,
    "q4_0": llama.GGML_TYPE_Q4_0,
    "q4_1": llama.GGML_TYPE_Q4_1,
    "iq4_nl": llama.GGML_TYPE_IQ4_NL,
    "q5_0": llama.GGML_TYPE_Q5_0,
    "q5_1": llama.GGML_TYPE_Q5_1,
}
_FLASH = {
    "auto": llama.LLAMA_FLASH_ATTN_TYPE_AUTO,
    True: llama.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    False: llama.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}


def model_params(split: Split, n_layer: int, devices: Sequence[int], shares: Sequence[float]) -> Any:
    """llama_model_params for a split over `devices`; what they point to lives as long as they do."""
    handles = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
    padded = (ctypes.c_float * llama.llama_max_devices())(*shares)
    params = llama.llama_model_default_params()
    params.devices = ctypes.cast(handles, ctypes.c_void_p)
    params.split_mode = _SPLIT_MODES[split.split_mode]
    params.n_gpu_layers = n_gpu_layers_asked(split, n_layer) if devices else 0
    params.main_gpu = split.main_gpu if split.split_mode == "none" else 0
    params.tensor_split = ctypes.cast(padded, ctypes.POINTER(ctypes.c_float))
    params.pointed_to = (handles, padded)
    return params


def context_params(context: Context, n_ctx_train: int) -> Any:
    """llama_context_params for context settings."""
    params = llama.llama_context_default_params()
    params.n_ctx = context.n_ctx or n_ctx_train
    params.n_batch = context.n_batch
    params.n_ubatch = context.n_ubatch
    params.n_threads = params.n_threads_batch = context.n_threads if context.n_threads != "auto" else default_threads()
    params.type_k = _CACHE_TYPES[context.type_k]
    params.type_v = _CACHE_TYPES[context.type_v]
    params.flash_attn_type = _FLASH[context.flash_attn]
    return params


def default_threads() -> int:
    """The physical cores that this process may use."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
