"""Tokens per second over one, two, four and eight cards by mode, and what that is of so many times one card."""

import statistics
from collections.abc import Iterator

import msgspec

from tests.benchmarks.gpu.engines import decode_rates, opened, prefill_rates, spread
from tests.benchmarks.gpu.room import Figure, Room
from workbench.engines.engine import Engine, EngineError

COUNTS = (1, 2, 4, 8)
PREFILLS = (512, 4096)


def measure(room: Room) -> Iterator[Figure]:
    """Each model; of the parts of one GPU only the 8b, since they share its speed."""
    for model in ("8b",) if room.parted else ("8b", "70b"):
        if model not in room.models:
            yield Figure(part="scaling", what="decode", case=model, note="not measured: no such model")
            continue
        alone: dict[str, float] = {}
        for count in COUNTS:
            if count <= len(room.cards):
                for mode in ("layer", "tensor") if count > 1 else ("none",):
                    yield from _on(room, model, count, mode, alone)


def _on(room: Room, model: str, count: int, mode: str, alone: dict[str, float]) -> Iterator[Figure]:
    fewer = msgspec.structs.replace(room, cards=room.cards[:count], virtual=room.virtual[:count])
    case = f"{model}, {count} card{'s' if count > 1 else ''}, {mode}"
    layout = fewer.layout(model, fewer.split(mode), n_ctx=max(PREFILLS) + 512)
    try:
        with opened(layout) as (engine, _):
            for what, rates in _rates(engine, room):
                yield _figure(what, case, rates, count, alone, room.parted)
    except EngineError as error:
        yield Figure(part="scaling", what="decode", case=case, note=f"not measured: {error.reason}")


def _rates(engine: Engine, room: Room) -> Iterator[tuple[str, list[float]]]:
    repeats = 1 if room.virtual or room.quick else 3
    yield "decode", decode_rates(engine, 16 if room.virtual else 128, repeats)
    for tokens in PREFILLS[:1] if room.virtual else PREFILLS:
        yield f"prefill {tokens}", prefill_rates(engine, tokens, repeats)


def _figure(what: str, case: str, rates: list[float], count: int, alone: dict[str, float], parted: bool) -> Figure:
    median = statistics.median(rates)
    note = ""
    if count == 1:
        alone[what] = median
    elif what in alone:
        gain = median / alone[what]
        note = f"{gain:.2f} times one card" + (", parts of one GPU" if parted else f", efficiency {gain / count:.0%}")
    return Figure(
        part="scaling", what=what, case=case, value=round(median, 2), unit="tok/s", note=note, detail=spread(rates)
    )
