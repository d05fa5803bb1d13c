"""Drafts: a split while it is being edited."""

import math
from collections.abc import Sequence

import msgspec

from workbench.domain.card import CardKind
from workbench.domain.split import MODES, Split, SplitMode, apportion, layer_counts, n_gpu_layers_asked

PERCENT = 100


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What the editor shows: one row a card, and one for what stays off the cards.

    `counts` are positions on each card in mode layer (n_layer + 1 in all, with `off`);
    `shares` whole-number proportions in mode tensor and row, about a hundred in sum. Each
    mode keeps its own figures, so that cycling through the modes loses nothing.
    """

    n_layer: int
    mode: SplitMode
    counts: tuple[int, ...]
    shares: tuple[int, ...]
    off: int
    main_gpu: int

    @property
    def n_cards(self) -> int:
        """How many cards there are to place on."""
        return len(self.counts)

    @property
    def on_cards(self) -> int:
        """Positions on cards: llama.cpp's n_gpu_layers."""
        return self.n_layer + 1 - self.off

    @property
    def figures(self) -> tuple[int, ...]:
        """What each card's row shows: layers, or shares in mode tensor and row."""
        if self.mode == "layer":
            return self.counts
        if self.mode == "none":
            alone = self.n_cards == 1
            return tuple(self.on_cards if alone or card == self.main_gpu else 0 for card in range(self.n_cards))
        return self.shares


def draft_of(split: Split, n_layer: int, n_cards: int, landed: Sequence[int] | None = None) -> Draft:
    """The draft that changes nothing. `landed` is what an automatic split came to."""
    on_cards = n_gpu_layers_asked(split, n_layer)
    if split.split_mode == "layer":
        asked = landed if split.layers is None and split.tensor_split == "auto" and landed else None
        counts = tuple(asked) if asked else layer_counts(split, n_layer, n_cards)
    else:
        counts = apportion(on_cards, _proportions(split, n_cards))
    return Draft(
        n_layer=n_layer,
        mode=split.split_mode,
        counts=counts,
        shares=_whole_shares(_proportions(split, n_cards)),
        off=n_layer + 1 - sum(counts),
        main_gpu=split.main_gpu,
    )


def move(draft: Draft, row: int, by: int) -> Draft:
    """`by` more on this row (fewer if negative), the rest from or to its neighbours.

    A card takes from the cards after it, then from those before it, then from what is off
    the cards; it gives to the next card, the last one to the one before. Row n_cards is what
    is off the cards; llama.cpp leaves the first layers there, so it trades with card 0.
    Moves as far as there is something to move.
    """
    n_cards = draft.n_cards
    if draft.mode == "none" or (draft.mode != "layer" and row == n_cards):
        more_off = by if row == n_cards else -by
        off = min(max(draft.off + more_off, 0), draft.n_layer + 1)
        return _with_off(draft, off)
    if draft.mode != "layer":
        return msgspec.structs.replace(draft, shares=_trade(draft.shares, row, by, _neighbours(row, n_cards)))
    neighbours = _neighbours(row, n_cards) if row == n_cards else [*_neighbours(row, n_cards), n_cards]
    held = _trade((*draft.counts, draft.off), row, by, neighbours)
    return msgspec.structs.replace(draft, counts=held[:-1], off=held[-1])


def even(draft: Draft) -> Draft:
    """Every card alike."""
    return by_free(draft, (1.0,) * draft.n_cards)


def by_free(draft: Draft, free_mib: Sequence[float]) -> Draft:
    """By the free memory of each card."""
    if draft.mode in ("tensor", "row"):
        return msgspec.structs.replace(draft, shares=apportion(PERCENT, free_mib))
    return msgspec.structs.replace(draft, counts=apportion(draft.on_cards, free_mib))


def by_speed(draft: Draft, speeds: Sequence[float], most: Sequence[int]) -> Draft:
    """By how fast each card is; `most` is how many layers it can hold.

    Cards that work at once get shares by their speed. In layer mode they take turns, and a reply
    is over soonest if the fastest hold all that they can.
    """
    if draft.mode in ("tensor", "row"):
        return msgspec.structs.replace(draft, shares=apportion(PERCENT, speeds))
    fastest = sorted(range(draft.n_cards), key=lambda card: -speeds[card])
    if draft.mode == "none":
        return with_main(draft, fastest[0])
    counts, left = [0] * draft.n_cards, draft.on_cards
    for card in fastest:
        counts[card] = min(most[card], left)
        left -= counts[card]
    counts[fastest[0]] += left  # where nothing fits, the forecast says by how much
    return msgspec.structs.replace(draft, counts=tuple(counts))


def on_cards(draft: Draft, count: int) -> Draft:
    """`count` positions on cards, in the proportions they have now."""
    return _with_off(draft, draft.n_layer + 1 - min(max(count, 0), draft.n_layer + 1))


def cycle(draft: Draft) -> Draft:
    """The next mode."""
    return msgspec.structs.replace(draft, mode=MODES[(MODES.index(draft.mode) + 1) % len(MODES)])


def with_main(draft: Draft, card: int) -> Draft:
    """Another main card."""
    return msgspec.structs.replace(draft, main_gpu=card)


def to_split(draft: Draft, base: Split) -> Split:
    """The split that the draft asks for, on the cards of `base`. Layers come out as exact counts."""
    everything = draft.off == 0
    split = Split(
        split_mode=draft.mode,
        main_gpu=draft.main_gpu,
        n_gpu_layers="all" if everything else draft.on_cards,
        cards=base.cards,
    )
    if draft.mode == "layer" and draft.on_cards:
        return msgspec.structs.replace(split, layers=draft.counts, n_gpu_layers="all")
    if draft.mode in ("tensor", "row"):
        common = math.gcd(*draft.shares)
        return msgspec.structs.replace(split, tensor_split=tuple(float(share // common) for share in draft.shares))
    return split


def to_server_split(draft: Draft) -> Split:
    """The split that the draft asks of a server: how many layers are on cards, and in mode none on which."""
    return Split(
        split_mode=draft.mode,
        main_gpu=draft.main_gpu if draft.mode == "none" else 0,
        n_gpu_layers="all" if draft.off == 0 else draft.on_cards,
    )


def changes(draft: Draft, current: Draft) -> tuple[int, ...]:
    """What the draft adds to each card against `current`, in layers or shares; 0s across modes."""
    if draft.mode != current.mode:
        return (0,) * draft.n_cards
    return tuple(new - old for new, old in zip(draft.figures, current.figures, strict=True))


def mode_reasons(
    cards: Sequence[tuple[str, CardKind]], arch: str, flash_attn: bool | str = "auto"
) -> dict[SplitMode, str]:
    """Why a mode cannot work on these cards (name, kind) with this model; modes that can are left out."""
    reasons: dict[SplitMode, str] = {}
    if flash_attn is False:
        reasons["tensor"] = "tensor mode needs flash attention, which this layout turns off"
    elif arch in NO_TENSOR_MODE:
        reasons["tensor"] = f"llama.cpp has no tensor mode for the architecture {arch}"
    without = next((name for name, kind in cards if kind != CardKind.GPU), None)
    if without is not None:
        reasons["row"] = f"device {without} does not support split buffers"
    return reasons


NO_TENSOR_MODE = frozenset({
    "bailingmoe3", "bitnet", "deepseek2", "deepseek32", "dots3note", "falcon-h1", "gemma3n", "glm-dsa",
    "glm5-next", "granitehybrid", "grok", "hy_v4", "jamba", "kimi-k3", "kimi-linear", "mamba", "mamba2",
    "minicpm3", "minimax-01", "minimax-m2", "minimax-m3", "mistral4", "mpt", "nemotron_h", "nemotron_h_moe",
    "olmo2", "olmoe", "plamo2", "qwen3tts", "qwen4exp", "t5",
})
"""The architectures that llama.cpp refuses to split by tensor, by their GGUF names."""


def _proportions(split: Split, n_cards: int) -> tuple[float, ...]:
    given: Sequence[float] = split.layers or (() if isinstance(split.tensor_split, str) else split.tensor_split)
    return (*given, *(0.0,) * (n_cards - len(given))) if given else (1.0,) * n_cards


def _whole_shares(proportions: Sequence[float]) -> tuple[int, ...]:
    """About a hundred in sum, exact where the proportions are whole numbers."""
    whole = [round(share) for share in proportions]
    if sum(whole) and all(share == int(share) for share in proportions):
        scale = max(1, round(PERCENT / sum(whole)))
        return tuple(share * scale for share in whole)
    return apportion(PERCENT, proportions)


def _neighbours(row: int, n_cards: int) -> list[int]:
    """The cards that a row trades with, nearest first; the row below the cards starts with card 0."""
    if row == n_cards:
        return list(range(n_cards))
    return [*range(row + 1, n_cards), *range(row - 1, -1, -1)]


def _trade(held: Sequence[int], row: int, by: int, neighbours: Sequence[int]) -> tuple[int, ...]:
    """Move `by` to `row` from its neighbours in turn, or from it to the first."""
    out = list(held)
    if not neighbours:
        return tuple(out)
    if by < 0:
        given = min(-by, out[row])
        out[row] -= given
        out[neighbours[0]] += given
    for other in neighbours:
        taken = min(max(by, 0), out[other])
        out[other] -= taken
        out[row] += taken
        by -= taken
    return tuple(out)


def _with_off(draft: Draft, off: int) -> Draft:
    """Another number off the cards, the counts in proportion."""
    counts = apportion(draft.n_layer + 1 - off, draft.counts)
    return msgspec.structs.replace(draft, off=off, counts=counts)
