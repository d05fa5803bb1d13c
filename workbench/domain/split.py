"""Splits: which layer of a model lies on which card."""

import struct
from collections.abc import Sequence
from typing import Literal

import msgspec

SplitMode = Literal["none", "layer", "tensor", "row"]
MODES: tuple[SplitMode, ...] = ("none", "layer", "tensor", "row")
OFF_CARDS = -1
"""The place of a layer that stays on the CPU."""


class Virtual(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cards that the worker makes itself, one a size (`600MiB`)."""

    virtual: tuple[str, ...]


class Split(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The part of a layout that says where the model goes; llama.cpp's field names.

    `tensor_split` is proportions in the order of `cards`, or "auto"; `layers` gives exact
    counts instead and implies `n_gpu_layers`. A model of n layers has n + 1 positions, the
    last being the output. `main_gpu` is an index into `cards`, read in mode none only.
    `cards` None means every GPU of the machine in llama.cpp's order.
    """

    split_mode: SplitMode = "layer"
    tensor_split: Literal["auto"] | tuple[float, ...] = "auto"
    layers: tuple[int, ...] | None = None
    main_gpu: int = 0
    n_gpu_layers: Literal["all"] | int = "all"
    cards: tuple[str, ...] | Virtual | None = None

    def label(self) -> str:
        """A short name for people: `layer 3:1`, `tensor 1:1`, `none on card 0`, `on the CPU`."""
        if self.cards == ("CPU",):
            return "on the CPU"
        if self.split_mode == "none":
            text = f"none on card {self.main_gpu}"
        else:
            shares = self.layers or self.tensor_split
            ratio = "auto" if isinstance(shares, str) else ":".join(f"{share:g}" for share in shares)
            text = f"{self.split_mode} {ratio}"
        if self.layers is None and self.n_gpu_layers != "all":
            text += f", {self.n_gpu_layers} on cards"
        return text


def n_gpu_layers_asked(split: Split, n_layer: int) -> int:
    """Positions that the split puts on cards, 0 … n_layer + 1."""
    if split.layers is not None and split.split_mode != "none":
        return min(sum(split.layers), n_layer + 1)
    return n_layer + 1 if split.n_gpu_layers == "all" else min(split.n_gpu_layers, n_layer + 1)


def _f32(value: float) -> float:
    packed: float = struct.unpack("f", struct.pack("f", value))[0]
    return packed


def place_layers(n_layer: int, n_gpu_layers: int, shares: Sequence[float]) -> tuple[int, ...]:
    """The card index of each of n_layer + 1 positions in layer mode; OFF_CARDS for the CPU.

    llama.cpp's rule (`llama_model::load_tensors`): the first layers stay off; position il
    goes to the first card whose cumulative normalised share exceeds
    (il - start) / n_gpu_layers, all in float32.
    """
    on_cards = min(n_gpu_layers, n_layer + 1)
    start = max(n_layer + 1 - n_gpu_layers, 0)
    if on_cards <= 0 or not shares:
        return (OFF_CARDS,) * (n_layer + 1)
    cumulative: list[float] = []
    total = 0.0
    for share in shares:
        total = _f32(total + _f32(share))
        cumulative.append(total)
    bounds = [_f32(value / total) for value in cumulative]
    places = [OFF_CARDS] * start
    for il in range(start, n_layer + 1):
        at = _f32((il - start) / on_cards)
        places.append(next((card for card, bound in enumerate(bounds) if at < bound), len(bounds)))
    return tuple(places)


def count_layers(places: Sequence[int], n_cards: int) -> tuple[int, ...]:
    """Positions on each card of `places`."""
    return tuple(sum(1 for place in places if place == card) for card in range(n_cards))


def layer_counts(split: Split, n_layer: int, n_cards: int) -> tuple[int, ...]:
    """Positions on each card that the split asks for, in mode none or layer.

    `tensor_split` "auto" must have been resolved; it counts here as even.
    """
    on_cards = n_gpu_layers_asked(split, n_layer)
    if split.split_mode == "none":
        return tuple(on_cards if card == split.main_gpu else 0 for card in range(n_cards))
    shares: Sequence[float] = split.layers or (
        (1.0,) * n_cards if isinstance(split.tensor_split, str) else split.tensor_split
    )
    padded = tuple(shares) + (0.0,) * (n_cards - len(shares))
    return count_layers(place_layers(n_layer, on_cards, padded), n_cards)


def apportion(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """`total` whole layers by weight, largest remainders first; all zero weights count as even."""
    weight_sum = sum(weights)
    parts = [total * w / weight_sum for w in weights] if weight_sum > 0 else [total / len(weights)] * len(weights)
    counts = [int(part) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: counts[i] - parts[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return tuple(counts)
