"""What each card holds of a model, worked out from the tensors in its header.

The second source of the forecast: it needs llama.cpp's word on where each layer goes and on
the size of the whole cache, not its account of memory.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from workbench.engines.llama.child.header import GgufHeader, Tensor, parts
from workbench.engines.llama.child.native import ggml

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_INPUT = re.compile(r"(token_embd|token_types|position_embd|per_layer_token_embd)")
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_ALIGNED = 128
"""Elements that tensor mode cuts at, at least, where a model allows it."""
_BY_HEAD = {
    "attn_q.weight": 1, "attn_k.weight": 1, "attn_v.weight": 1, "attn_qkv.weight": 1,
    "attn_q.bias": 0, "attn_k.bias": 0, "attn_v.bias": 0, "attn_qkv.bias": 0,
    "attn_output.weight": 0, "attn_sinks.weight": 0,
}  # fmt: skip
_FEED_FORWARD = {
    f"ffn_{part}{experts}.{kind}": axis
    for experts in ("", "_exps")
    for part, kind, axis in (
        ("up", "weight", 1), ("gate", "weight", 1), ("gate_up", "weight", 1), ("down", "weight", 0),
        ("up", "bias", 0), ("gate", "bias", 0),
    )
}  # fmt: skip
"""The tensors that tensor mode cuts, and along which axis; it copies all others to every card."""


class Shapes:
    """The tensors of a model, by name, and the widths of its heads, read once."""

    def __init__(self, path: Path, n_layer: int) -> None:
        self.n_layer = n_layer
        self.tensors: dict[str, Tensor] = {}
        for part in parts(path):
            with GgufHeader(part) as header:
                self.tensors.update((tensor.name, tensor) for tensor in header.tensors())
        with GgufHeader(path) as header:
            arch = header.text("general.architecture")
            heads = header.number(f"{arch}.attention.head_count") or 1
            width = header.number(f"{arch}.embedding_length", heads) // heads
            self.head_k = max(1, header.number(f"{arch}.attention.key_length", width))
            self.head_v = max(1, header.number(f"{arch}.attention.value_length", width))


class HeaderTensors:
    """What each card holds of these tensors, and how `shares` would cut them in tensor mode."""

    def __init__(self, shapes: Shapes, shares: Sequence[float]) -> None:
        self._shares = shares
        self._n_layer, self._tensors = shapes.n_layer, shapes.tensors
        self._head_k, self._head_v = shapes.head_k, shapes.head_v

    def weights(self, places: Mapping[int, str]) -> dict[str, float]:
        """Bytes by the name of the device that each layer was assigned to; "" is the host's."""
        held: dict[str, float] = {}
        for tensor, place in self._placed(places):
            held[place] = held.get(place, 0.0) + tensor.size
        return held

    def cut_weights(self, places: Mapping[int, str], host: str) -> list[float]:
        """Bytes on each card in tensor mode; what lies on `host` is left out."""
        held = self._nowhere
        for tensor, place in self._placed(places):
            if place not in ("", host):
                held = [a + tensor.size * b for a, b in zip(held, self._cut(tensor), strict=True)]
        return held

    def kv_parts(self, places: Mapping[int, str]) -> dict[str, float]:
        """The part of the whole cache that each device holds, 0 … 1."""
        widths = {layer: sum(self._widths(layer)) or 1 for layer in range(self._n_layer)}
        total, held = sum(widths.values()), dict.fromkeys(places.values(), 0.0)
        for layer, width in widths.items():
            held[places.get(layer, "")] = held.get(places.get(layer, ""), 0.0) + width / total
        return held

    def cut_kv(self, places: Mapping[int, str], host: str) -> list[float]:
        """The part of the whole cache on each card in tensor mode; what lies on `host` is left out."""
        held = self._nowhere
        widths = {layer: sum(self._widths(layer)) or 1 for layer in range(self._n_layer)}
        for layer, width in widths.items():
            if places.get(layer, host) == host:
                continue
            key, _ = self._widths(layer)
            cut = self._divide(key, self._at_heads(layer) // self._gqa(layer), layer) if key else self._everywhere
            held = [a + b * width / sum(widths.values()) for a, b in zip(held, cut, strict=True)]
        return held

    def _placed(self, places: Mapping[int, str]) -> list[tuple[Tensor, str]]:
        """Every tensor with its device's name; a model without an output tensor copies the embedding."""
        output = places.get(self._n_layer, "")
        placed = []
        for name, tensor in self._tensors.items():
            if match := _LAYER.fullmatch(name):
                placed.append((tensor, places.get(int(match[1]), "")))
            else:
                placed.append((tensor, "" if _INPUT.match(name) else output))
        if _OUTPUT not in self._tensors and _EMBEDDING in self._tensors:
            placed.append((self._tensors[_EMBEDDING], output))
        return placed

    # ── tensor mode ───────────────────────────────────────────────────────────────────────
    @property
    def _nowhere(self) -> list[float]:
        return [0.0] * len(self._shares)

    @property
    def _everywhere(self) -> list[float]:
        return [1.0] * len(self._shares)

    def _cut(self, tensor: Tensor) -> list[float]:
        """Each card's part of a tensor: llama.cpp's rule for plain attention and feed-forward layers."""
        if tensor.name == _OUTPUT:
            return self._divide(tensor.shape[1], 1, self._n_layer)
        match = _LAYER.fullmatch(tensor.name)
        layer, suffix = (int(match[1]), match[2]) if match else (0, "")
        if suffix in _BY_HEAD and self._named(layer, "attn_output.weight"):
            segments = self._attention(layer, suffix, tensor.shape[_BY_HEAD[suffix]])
        elif suffix in _FEED_FORWARD:
            down = self._named(layer, "ffn_down.weight") or self._named(layer, "ffn_down_exps.weight")
            block = _block(down.type) if down else 1
            segments = [(tensor.shape[_FEED_FORWARD[suffix]], math.lcm(block, _ALIGNED))]
        else:
            return self._everywhere
        whole = sum(size for size, _ in segments)
        if whole <= 0 or min(size for size, _ in segments) < 0:
            return self._everywhere  # no such tensor: llama.cpp will refuse the model
        held = self._nowhere
        for size, grain in segments:
            cut = self._divide(size, max(1, grain), layer)
            held = [a + b * size / whole for a, b in zip(held, cut, strict=True)]
        return held

    def _divide(self, size: int, grain: int, turn: int) -> list[float]:
        """Each card's part of `size` elements, by its share, cut at whole grains downwards.

        Each layer begins with another card, so that the rounding evens out.
        """
        if size <= 0:
            return self._nowhere
        n_cards = len(self._shares)
        order = [(turn + i) % n_cards for i in range(n_cards)]
        total, so_far, low = sum(self._shares), 0.0, 0
        out = self._nowhere
        for at, card in enumerate(order, 1):
            so_far += self._shares[card]
            high = int(size * so_far / total) if total else size * at // n_cards
            high = size if at == n_cards else high - high % grain
            out[card] = (high - low) / size
            low = high
        return out

    def _attention(self, layer: int, suffix: str, size: int) -> list[tuple[int, int]]:
        """The segments of an attention tensor, and the elements at which each may be cut."""
        query = self._at_heads(layer)
        key = query // self._gqa(layer)
        value = key // self._head_k * self._head_v
        match suffix.split(".")[0]:
            case "attn_q":
                return [(size, query)]
            case "attn_k":
                return [(size, key)]
            case "attn_v":
                return [(size, value)]
            case "attn_qkv":
                k, v = self._widths(layer)
                return [(size - k - v, query), (k, key), (v, value)]
            case "attn_output":
                return [(size, query // self._head_k * self._head_v)]
            case _:
                return [(size, query // self._head_k)]

    def _at_heads(self, layer: int) -> int:
        """The query elements at which attention may be cut: whole groups of heads, and whole blocks."""
        group = self._gqa(layer) * self._head_k
        out = self._named(layer, "attn_output.weight")
        block = _block(out.type) if out else 1
        while block < _ALIGNED and block * len(self._shares) < group:
            block *= 2
        return math.lcm(group, block)

    def _gqa(self, layer: int) -> int:
        """Query heads that share a KV head."""
        key, _ = self._widths(layer)
        out = self._named(layer, "attn_output.weight")
        query = out.shape[0] // self._head_v * self._head_k if out else key
        return max(1, query // key) if key else 1

    def _widths(self, layer: int) -> tuple[int, int]:
        """The elements of a layer's K and V for one token."""
        key, value = self._named(layer, "attn_k.weight"), self._named(layer, "attn_v.weight")
        if key is not None:
            return key.shape[1], value.shape[1] if value else key.shape[1]
        fused, out = self._named(layer, "attn_qkv.weight"), self._named(layer, "attn_output.weight")
        if fused is None or out is None:
            return 0, 0
        both = fused.shape[1] - out.shape[0] // self._head_v * self._head_k
        key_width = both * self._head_k // (self._head_k + self._head_v)
        return key_width, both - key_width

    def _named(self, layer: int, suffix: str) -> Tensor | None:
        return self._tensors.get(f"blk.{layer}.{suffix}")


def _block(kind: int) -> int:
    """Elements in a block of this type."""
    return int(_blck_size(kind))


_blck_size: Callable[[int], int] = ggml.ggml_blck_size
