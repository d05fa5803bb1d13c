"""Forecast against measured, by card and kind, over drafts of all sorts.

In layer mode and mode none against the engine's own figures; in tensor mode against what NVML
says that the load took of each GPU. Nothing is learnt beforehand, so that the first load of a
mode is what a new user sees.
"""

import time
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.gpu.engines import Gpus
from tests.benchmarks.gpu.room import Figure, Room
from workbench.domain.forecast import CardForecast, Forecast
from workbench.domain.layout import Layout
from workbench.domain.memory import CardMemory
from workbench.engines.engine import EngineError, Loaded
from workbench.lab.kit import RealKit

EXACT_MIB, COMPUTE_MIB, TENSOR_PERCENT = 1.0, 64.0, 3.0
Q8 = {"type_k": "q8_0", "type_v": "q8_0"}
Draft = tuple[str, tuple[float, ...], dict[str, Any], dict[str, Any]]
"""Mode, shares, what else the split says, what the context says."""
FEW = 3
"""Drafts of a large model, and of a quick run."""


def drafts(room: Room) -> tuple[Draft, ...]:
    """Most telling first."""
    even, left, right = room.uneven(1), room.uneven(), room.uneven(1, 4)
    return (
        ("tensor", even, {}, {"n_ctx": 4096}),
        ("layer", left, {"n_gpu_layers": 10}, {"n_ctx": 8192}),
        ("layer", even, {}, {"n_ctx": 8192, **Q8}),
        ("layer", even, {}, {"n_ctx": 4096}),
        ("layer", left, {}, {"n_ctx": 4096}),
        ("layer", right, {}, {"n_ctx": 16384}),
        ("layer", even, {"n_gpu_layers": 20}, {"n_ctx": 4096}),
        ("none", even, {}, {"n_ctx": 4096}),
        ("none", even, {"main_gpu": 1}, {"n_ctx": 16384}),
        ("tensor", left, {}, {"n_ctx": 4096}),
        ("tensor", even, {}, {"n_ctx": 16384}),
        ("tensor", even, {}, {"n_ctx": 8192, **Q8}),
    )


def measure(room: Room) -> Iterator[Figure]:
    """All drafts of the small model, a few of the large one; one kit each, whose errors are learnt as they are."""
    kit = RealKit(spare=False)
    try:
        for model in ("8b", "70b"):
            if model not in room.models:
                yield Figure(part="forecast", what="weights and KV", case=model, note="not measured: no such model")
                continue
            wanted = drafts(room)
            for mode, shares, split, context in wanted[:FEW] if room.is_large(model) or room.quick else wanted:
                layout = room.layout(model, room.split(mode, shares, **split), **context)
                yield from _draft(kit, layout, _case(model, layout))
    finally:
        kit.close()


def _case(model: str, layout: Layout) -> str:
    context = layout.context
    return f"{model}, {layout.split.label()}, ctx {context.n_ctx}" + (", q8_0" if context.type_k == "q8_0" else "")


def _draft(kit: RealKit, layout: Layout, case: str) -> Iterator[Figure]:
    gpus = Gpus(layout, kit)
    begun = time.monotonic()
    try:
        forecast = kit.forecasts.forecast(layout)
        seconds = time.monotonic() - begun
        kit.forecasts.release()
        before = gpus.used_mib()
        engine = kit.open_engine(layout, lambda error: None)
        try:
            kit.foresight.before_load(layout)
            loaded = engine.load(lambda progress: None)
            taken = {key: used - before[key] for key, used in gpus.used_mib().items()}
            kit.foresight.after_load(layout, loaded)
        finally:
            engine.close()
    except EngineError as error:
        yield Figure(part="forecast", what="weights and KV", case=case, note=f"not measured: {error.reason}")
        return
    detail = _detail(forecast, loaded, seconds) | {"taken_by_nvml": [round(mib, 1) for mib in taken.values()]}
    if layout.split.split_mode == "tensor":
        yield _tensor(forecast, loaded, gpus, taken, case, detail)
        return
    pairs = list(zip(forecast.cards, loaded.cards, strict=True))
    exact = max(max(abs(told.weights_mib - held.weights_mib), abs(told.kv_mib - held.kv_mib)) for told, held in pairs)
    compute = max(abs(told.compute_mib - held.compute_mib) for told, held in pairs)
    about = {"part": "forecast", "case": case, "unit": "MiB", "detail": detail}
    yield Figure.at_most(round(exact, 2), EXACT_MIB, what="weights and KV, worst card", **about)
    yield Figure.at_most(round(compute, 2), COMPUTE_MIB, what="compute, worst card", **about)


def _tensor(
    forecast: Forecast,
    loaded: Loaded,
    gpus: Gpus,
    taken: dict[tuple[int, int, int], float],
    case: str,
    detail: dict[str, Any],
) -> Figure:
    """The total of each GPU, whose parts cannot be told apart; without a GPU that of each card's process."""
    told: dict[Any, float] = {}
    real: dict[Any, float] = {}
    for card, held in zip(forecast.cards, loaded.cards, strict=True):
        key = gpus.of_card.get(card.name, card.name)
        told[key] = told.get(key, 0.0) + (card.total_mib if taken else card.total_mib - card.other_mib)
        real[key] = taken[key] if key in taken else real.get(key, 0.0) + held.total_mib
    percents = {key: 100 * (told[key] / real[key] - 1) for key in told if real[key] > 0}
    worst = max(percents.values(), key=abs)
    return Figure.at_most(
        round(abs(worst), 2),
        TENSOR_PERCENT,
        part="forecast",
        what=f"total {'by NVML' if taken else 'by process'}, worst {'GPU' if taken else 'card'}",
        case=case,
        unit="%",
        note=" · ".join(f"{told[key]:.0f} for {real[key]:.0f} MiB" for key in told),
        detail=detail,
    )


def _detail(forecast: Forecast, loaded: Loaded, seconds: float) -> dict[str, Any]:
    def row(told: CardForecast, held: CardMemory) -> dict[str, Any]:
        return {
            "card": told.name,
            "weights": [round(told.weights_mib, 1), round(held.weights_mib, 1)],
            "kv": [round(told.kv_mib, 1), round(held.kv_mib, 1)],
            "compute": [round(told.compute_mib, 1), round(held.compute_mib, 1)],
            "other": round(told.other_mib, 1),
        }

    return {
        "source": forecast.source,
        "forecast_s": round(seconds, 2),
        "cards": [row(told, held) for told, held in zip(forecast.cards, loaded.cards, strict=True)],
    }
