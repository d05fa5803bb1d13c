"""What the library says of a failure, in words that name what would be right."""

import re
from typing import NamedTuple


class Reason(NamedTuple):
    """A message for people and the layout's key that is to blame."""

    message: str
    key: str


_KNOWN = (
    (
        r"device (\S+) does not support split buffers",
        "split_mode row does not work on {0}, which cannot hold rows of a tensor; write layer or tensor",
        "split.split_mode",
    ),
    (
        r"SPLIT_MODE_TENSOR not implemented for architecture '([^']*)'",
        "split_mode tensor does not work for models of the architecture {0}; write layer",
        "split.split_mode",
    ),
    (
        r"SPLIT_MODE_TENSOR requires flash_attn",
        "split_mode tensor needs flash attention; write flash_attn: auto or true",
        "context.flash_attn",
    ),
    (
        r"SPLIT_MODE_TENSOR needs >= 1 devices",
        "split_mode tensor needs a card, and there is none; write layer",
        "split.split_mode",
    ),
    (
        r"quantized V cache|V cache quantization requires",
        "a quantised V cache needs flash attention; write flash_attn: auto, or type_v: f16",
        "context.type_v",
    ),
    (
        r"invalid value for main_gpu: (-?\d+) \(available devices: (\d+)\)",
        "there is no card {0}: cards count from 0, and there are {1}",
        "split.main_gpu",
    ),
    (
        r"n_backends <= GGML_SCHED_MAX_BACKENDS",
        "llama.cpp takes 15 cards beside the CPU, and here are more; name fewer, or write split_mode: tensor",
        "split.cards",
    ),
    (
        r"unknown model architecture: '([^']*)'",
        "this llama.cpp does not know models of the architecture {0}; a newer llama-cpp-python may",
        "model",
    ),
)


def explain(lines: list[str]) -> Reason | None:
    """The first line that is known; None without any."""
    for line in lines:
        for pattern, message, key in _KNOWN:
            if match := re.search(pattern, line):
                return Reason(message.format(*match.groups()), key)
    return None


def no_room(card: str, what: str) -> Reason:
    """A card that refused a buffer for `what`: weights, context, or a reply."""
    if what == "weights":
        return Reason(f"{card} has no room for its weights; give it fewer layers, or use a larger card", "split")
    if what == "reply":
        return Reason(
            f"{card} ran out of memory in use: something else may have taken it; a smaller n_ubatch or fewer layers"
            " there take less",
            "split",
        )
    return Reason(
        f"{card} has no room for the context; a smaller n_ctx, a q8_0 cache or fewer layers there take less",
        "context.n_ctx",
    )


def plain(message: str) -> str:
    """A message of the library without the folders of the machine that it was built on."""
    return re.sub(r"\S*/(\S+:\d+)", r"\1", message)
