"""Forecasts: what a draft would take on each card, against what is free; and what a load then took."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from workbench.domain.card import format_mib
from workbench.domain.memory import CardMemory
from workbench.domain.split import Split, layer_counts

ForecastSource = Literal["llama.cpp", "gguf header"]
FROM_LLAMA: ForecastSource = "llama.cpp"
FROM_HEADER: ForecastSource = "gguf header"

Kind = Literal["weights", "kv", "compute"]
KINDS: tuple[Kind, ...] = ("weights", "kv", "compute")
RESERVE = 0.05
"""The part of a card's free memory that an automatic split leaves alone."""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What a card can give, in MiB, None where nobody knows.

    `free_mib` is what would be free once the running layout is gone, `beside_mib` what is free
    while it stays. `other_mib` is what a load takes there beyond the engine's own figures (the
    driver's context, the errors of past loads); `loads` counts the past loads that say so.
    """

    free_mib: float | None
    beside_mib: float | None
    other_mib: float = 0.0
    loads: int = 0


class CardForecast(msgspec.Struct, frozen=True, kw_only=True):
    """What a draft would take on one card, in MiB; `change_mib` is against the running layout."""

    name: str
    weights_mib: float
    kv_mib: float
    compute_mib: float
    other_mib: float
    free_mib: float | None
    layers: int | None = None
    change_mib: float | None = None
    q8_mib: float | None = None
    """The total with a q8_0 cache; None where unknown or refused."""
    loads: int = 0

    @property
    def total_mib(self) -> float:
        """All kinds together."""
        return self.weights_mib + self.kv_mib + self.compute_mib + self.other_mib

    @property
    def spare_mib(self) -> float | None:
        """What would stay free; negative is what is missing."""
        return None if self.free_mib is None else self.free_mib - self.total_mib

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where the free memory is unknown."""
        return None if self.spare_mib is None else self.spare_mib >= 0


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What a draft would take, by card in the split's order, and what stays with the host.

    `beside` says whether it fits while the running layout stays. `max_n_ctx` is the largest
    context this draft can hold, 0 if none, None until worked out. `split` is the split that
    was worked out, "auto" resolved.
    """

    source: ForecastSource
    split: Split
    cards: tuple[CardForecast, ...]
    host: CardForecast
    n_ctx: int
    beside: bool | None = None
    max_n_ctx: int | None = None

    @property
    def fits(self) -> bool | None:
        """Whether every card and the host hold their part; None where that is unknown."""
        answers = [card.fits for card in (*self.cards, self.host)]
        return False if False in answers else None if None in answers else True

    def tightest(self) -> tuple[str, float] | None:
        """Where least stays free (`card 1`, `the host`) and how much; negative is missing. None if unknown."""
        places = [*((f"card {i}", card) for i, card in enumerate(self.cards)), ("the host", self.host)]
        known = [(spare, place) for place, card in places if (spare := card.spare_mib) is not None]
        short = [entry for entry in known if entry[0] < 0]
        on_cards = known[:-1] if len(known) > 1 and not short else known
        if not on_cards:
            return None
        spare, place = min(short or on_cards)
        return place, spare

    def sentence(self) -> str:
        """`fits, 1.9 GiB to spare on card 1`, `misses by 640 MiB on card 0`."""
        tightest = self.tightest()
        if tightest is not None and tightest[1] < 0:
            return f"misses by {format_mib(-tightest[1])} on {tightest[0]}"
        unknown = [card.name for card in self.cards if card.free_mib is None]
        if unknown:
            return f"what is free on {', '.join(unknown)} is not known"
        if tightest is None:
            return "what is free is not known"
        return f"fits, {format_mib(tightest[1])} to spare on {tightest[0]}"

    def figures(self) -> str:
        """`0: 30.1 GiB +9.4 GiB · 1: 9.9 GiB −9.4 GiB`: each card, with its change where there is one."""
        return " · ".join(f"{i}: {format_mib(card.total_mib)}{_change(card)}" for i, card in enumerate(self.cards))

    def limits(self) -> str:
        """`n_ctx up to 16384 · 1.1 GiB less with q8_0 KV`; empty until worked out."""
        if self.max_n_ctx is None:
            return ""
        said = [f"n_ctx up to {self.max_n_ctx}" if self.max_n_ctx else "no n_ctx fits"]
        saved = [card.total_mib - card.q8_mib for card in self.cards if card.q8_mib is not None]
        if saved and sum(saved) >= 1:
            said.append(f"{format_mib(sum(saved))} less with q8_0 KV")
        return " · ".join(said)

    def learnt(self) -> str:
        """`other, from 3 loads here: +12 MiB`: what past loads add to the engine's figures; empty where nothing."""
        told = [(i, card) for i, card in enumerate(self.cards) if card.loads and round(card.other_mib)]
        if not told:
            return ""
        loads = max(card.loads for _, card in told)
        amounts = {i: f"+{format_mib(card.other_mib)}" for i, card in told}
        same = len(told) == len(self.cards) and len(set(amounts.values())) == 1
        said = amounts[0] if same else " · ".join(f"{i}: {amount}" for i, amount in amounts.items())
        return f"other, from {loads} load{'s' if loads > 1 else ''} here: {said}"


def _change(card: CardForecast) -> str:
    if card.change_mib is None or abs(card.change_mib) < 1:
        return ""
    return f" {'+' if card.change_mib > 0 else '−'}{format_mib(abs(card.change_mib))}"


def forecast(
    *,
    source: ForecastSource,
    split: Split,
    cards: Sequence[CardMemory],
    host: CardMemory,
    n_ctx: int,
    rooms: Sequence[Room],
    running: Sequence[CardMemory] = (),
    max_n_ctx: int | None = None,
    q8_cards: Sequence[CardMemory] | None = None,
) -> Forecast:
    """Put what the draft takes against what is free. `rooms` are the cards' and, last, the host's."""
    before = {card.name: card.total_mib for card in running}
    rows = []
    for i, (card, room) in enumerate(zip((*cards, host), rooms, strict=True)):
        rows.append(
            CardForecast(
                name=card.name,
                weights_mib=card.weights_mib,
                kv_mib=card.kv_mib,
                compute_mib=card.compute_mib,
                other_mib=room.other_mib,
                free_mib=room.free_mib,
                layers=card.layers,
                change_mib=card.total_mib - before[card.name] if card.name in before else None,
                q8_mib=q8_cards[i].total_mib + room.other_mib if q8_cards and i < len(q8_cards) else None,
                loads=room.loads,
            )
        )
    besides = [
        None if room.beside_mib is None else row.total_mib <= room.beside_mib
        for row, room in zip(rows, rooms, strict=True)
    ]
    return Forecast(
        source=source,
        split=split,
        cards=tuple(rows[:-1]),
        host=rows[-1],
        n_ctx=n_ctx,
        beside=False if False in besides else None if None in besides else True,
        max_n_ctx=max_n_ctx,
    )


# ── tensor_split: auto ────────────────────────────────────────────────────────────────────
def one_card(whole_mib: float, rooms: Sequence[Room]) -> int | None:
    """The card that holds the whole model with some reserve: the one with most free; None if none does."""
    best = max(range(len(rooms)), key=lambda card: _usable(rooms[card], 0.0), default=None)
    if best is None or whole_mib > _usable(rooms[best], 0.0):
        return None
    return best


def shares_by_room(
    on_cards: int, layer_mib: float, fixed_mib: Sequence[float], rooms: Sequence[Room]
) -> tuple[int, ...]:
    """Whole layers on each card, in proportion to what is free there beyond `fixed_mib` (compute).

    `layer_mib` is what a layer takes with its KV; no card gets more layers than it holds while
    another has room.
    """
    usable = [max(0.0, _usable(room, fixed)) for room, fixed in zip(rooms, fixed_mib, strict=True)]
    counts = [0] * len(rooms)
    for _ in range(on_cards):
        left = [room - (count + 1) * layer_mib for room, count in zip(usable, counts, strict=True)]
        filled = [(count + 1) / room if room else float("inf") for room, count in zip(usable, counts, strict=True)]
        with_room = [card for card in range(len(counts)) if left[card] >= 0]
        chosen = min(with_room or range(len(counts)), key=lambda card: filled[card])
        counts[chosen] += 1
    return tuple(counts)


def resolve_auto(
    split: Split, n_layer: int, whole: CardMemory, rooms: Sequence[Room], *, copied_mib: float = 0.0
) -> Split:
    """An automatic split as explicit counts (shares in mode tensor and row).

    `whole` is what the layers on cards would take on a single card. One card takes them all
    if they fit there, but in mode tensor, which is asked for to use all cards. Otherwise whole
    layers by what is free beyond the compute buffer; `copied_mib` is what tensor mode copies
    to every card.
    """
    if split.split_mode == "none" or split.layers is not None or split.tensor_split != "auto" or not rooms:
        return split
    on_cards = n_layer + 1 if split.n_gpu_layers == "all" else min(split.n_gpu_layers, n_layer + 1)
    if on_cards == 0:
        return msgspec.structs.replace(split, tensor_split=(1.0,) * len(rooms))
    single = one_card(whole.total_mib, rooms) if split.split_mode != "tensor" else None
    if single is not None:
        counts = tuple(on_cards if card == single else 0 for card in range(len(rooms)))
    else:
        layer_mib = (whole.weights_mib + whole.kv_mib - copied_mib) / max(1, on_cards)
        fixed = [whole.compute_mib + copied_mib] * len(rooms)
        counts = shares_by_room(on_cards, layer_mib, fixed, rooms)
    if split.split_mode == "layer":
        return msgspec.structs.replace(split, tensor_split="auto", layers=counts, n_gpu_layers="all")
    return msgspec.structs.replace(split, tensor_split=tuple(float(count) for count in counts))


def relieve(counts: Sequence[int], held: Sequence[CardMemory], rooms: Sequence[Room]) -> tuple[int, ...] | None:
    """One layer moved from the card that misses most to the one with most to spare; None if that helps nobody."""
    spare = [(room.free_mib or 0.0) - room.other_mib - card.total_mib for card, room in zip(held, rooms, strict=True)]
    short, roomy = spare.index(min(spare)), spare.index(max(spare))
    layer_mib = (held[short].weights_mib + held[short].kv_mib) / counts[short] if counts[short] else 0.0
    if spare[short] >= 0 or not counts[short] or spare[roomy] < layer_mib:
        return None
    return tuple(count - (card == short) + (card == roomy) for card, count in enumerate(counts))


def _usable(room: Room, fixed_mib: float) -> float:
    """What a model may take of a card; a card of which nothing is known counts as full."""
    return (room.free_mib or 0.0) * (1 - RESERVE) - room.other_mib - fixed_mib


# ── after the load ────────────────────────────────────────────────────────────────────────
class KindAccount(msgspec.Struct, frozen=True):
    """One kind of memory on one card: forecast and measured, in MiB."""

    kind: Kind
    forecast_mib: float
    measured_mib: float

    @property
    def error_mib(self) -> float:
        """Measured less forecast."""
        return self.measured_mib - self.forecast_mib


class CardAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One card after a load.

    `other_mib` is what the load took beyond the engine's own figures (the driver's context),
    `foreign_mib` what others hold there; None where nobody can tell, never negative.
    """

    name: str
    kinds: tuple[KindAccount, ...]
    other_forecast_mib: float
    other_mib: float | None
    foreign_mib: float | None

    @property
    def error_mib(self) -> float:
        """What the load took beyond the forecast of the engine's own figures: the next forecast's other."""
        return sum(kind.error_mib for kind in self.kinds) + (self.other_mib or 0.0)


def compare(
    forecast: Forecast,
    measured: Sequence[CardMemory],
    taken_mib: Mapping[str, float],
    used_mib: Mapping[str, float],
) -> tuple[CardAccount, ...]:
    """Forecast against measured, by card.

    `taken_mib` is what the load took of each card in all, `used_mib` what is used there in all;
    both hold only the cards of which that is known.
    """
    accounts = []
    for row, card in zip(forecast.cards, measured, strict=True):
        taken = taken_mib.get(card.name)
        used = used_mib.get(card.name)
        kinds = tuple(KindAccount(kind, getattr(row, f"{kind}_mib"), getattr(card, f"{kind}_mib")) for kind in KINDS)
        accounts.append(
            CardAccount(
                name=card.name,
                kinds=kinds,
                other_forecast_mib=row.other_mib,
                other_mib=None if taken is None else max(0.0, taken - card.total_mib),
                foreign_mib=None if taken is None or used is None else max(0.0, used - max(taken, card.total_mib)),
            )
        )
    return tuple(accounts)


def correction(errors_mib: Sequence[float]) -> float:
    """What past loads say a load takes beyond the engine's own figures: their median, never negative."""
    return max(0.0, statistics.median(errors_mib)) if errors_mib else 0.0


def misplaced(split: Split, n_layer: int, landed: Sequence[CardMemory]) -> tuple[str, ...]:
    """A sentence for each card on which other layers landed than were asked for."""
    if split.split_mode not in ("none", "layer") or (split.layers is None and split.tensor_split == "auto"
                                                     and split.split_mode == "layer"):  # fmt: skip
        return ()
    asked = layer_counts(split, n_layer, len(landed))
    return tuple(
        f"{card.name} holds {card.layers} layers, {count} were asked for"
        for card, count in zip(landed, asked, strict=True)
        if card.layers is not None and card.layers != count
    )
