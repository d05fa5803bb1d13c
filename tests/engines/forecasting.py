"""Forecast against measured: drafts, real loads on virtual cards, and how far apart the two may be."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.engines.conftest import layout, opened, with_context
from workbench.domain.forecast import FROM_HEADER, ForecastSource, Kind
from workbench.domain.layout import Context, Layout
from workbench.domain.memory import CardMemory
from workbench.engines.llama.forecaster import Forecaster
from workbench.engines.llama.wire import Simulate, Simulated
from workbench.lab.plan import plan_load
from workbench.store.models import resolve_model

SMALL, MIDDLE, LONG = {"n_ctx": 512}, {"n_ctx": 2048, "n_ubatch": 256}, {"n_ctx": 4096}
EIGHT_BITS = {"n_ctx": 4096, "type_k": "q8_0", "type_v": "q8_0"}
MIXED = {"n_ctx": 1000, "type_k": "q8_0", "type_v": "f16"}
FOUR_BITS = {"n_ctx": 8192, "type_k": "q4_0", "type_v": "q4_0"}
BARE = {"n_ctx": 2048, "flash_attn": False}

BUNDLED_SPLITS: tuple[tuple[dict[str, Any], Sequence[dict[str, Any]]], ...] = (
    ({"layers": (23, 8)}, (LONG, EIGHT_BITS, FOUR_BITS, BARE)),
    ({"tensor_split": (1.0, 1.0)}, (SMALL, MIDDLE, LONG, MIXED)),
    ({"layers": (10, 5)}, (SMALL, LONG, EIGHT_BITS)),
    ({"tensor_split": (1.0, 4.0), "n_gpu_layers": 12}, (MIDDLE, FOUR_BITS)),
    ({"split_mode": "none", "main_gpu": 1}, (MIDDLE, LONG, EIGHT_BITS)),
    ({"split_mode": "tensor", "tensor_split": (3.0, 1.0)}, (MIDDLE, LONG, EIGHT_BITS)),
    ({"split_mode": "tensor", "tensor_split": (1.0, 1.0)}, (SMALL, LONG)),
    ({"split_mode": "tensor", "tensor_split": (1.0, 2.0), "n_gpu_layers": 20}, (LONG, EIGHT_BITS)),
)
RANDOM_SPLITS: tuple[tuple[dict[str, Any], Sequence[dict[str, Any]]], ...] = (
    ({"layers": (5, 4)}, (SMALL, LONG, FOUR_BITS, BARE)),
    ({"layers": (2, 3)}, (MIDDLE, EIGHT_BITS)),
    ({"tensor_split": (3.0, 1.0)}, (MIDDLE, LONG, MIXED)),
    ({"split_mode": "none", "main_gpu": 0}, (LONG, EIGHT_BITS)),
    ({"split_mode": "tensor", "tensor_split": (3.0, 1.0)}, (SMALL, LONG, EIGHT_BITS)),
    ({"split_mode": "tensor", "tensor_split": (2.0, 5.0)}, (MIDDLE, FOUR_BITS)),
    ({"split_mode": "tensor", "tensor_split": (1.0, 1.0), "n_gpu_layers": 5}, (LONG, EIGHT_BITS)),
)


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of memory on one card of one draft, in MiB."""

    draft: str
    source: ForecastSource
    tensor: bool
    card: str
    kind: Kind
    forecast_mib: float
    measured_mib: float

    @property
    def error_mib(self) -> float:
        return abs(self.forecast_mib - self.measured_mib)

    @property
    def allowed_mib(self) -> float:
        if self.tensor:
            return max(8.0, 0.03 * self.measured_mib)
        return max(8.0, 0.1 * self.measured_mib) if self.kind == "compute" else 1.0

    @property
    def too_far(self) -> bool:
        return self.error_mib > self.allowed_mib


def simulate(forecaster: Forecaster, of: Layout, source: ForecastSource, **more: Any) -> Simulated:
    """What the helper says of a layout on virtual cards."""
    load = plan_load(of, str(resolve_model(of.model)), lambda: ())
    return forecaster.simulate(Simulate(load=load, by_header=source == FROM_HEADER, **more), of.env)


def compared(
    model: str | Path,
    split: dict[str, Any],
    contexts: Sequence[dict[str, Any]],
    forecaster: Forecaster,
    sources: Sequence[ForecastSource],
    log: Path,
) -> Iterator[Miss]:
    """Load one split for real, give it one context after the other, and compare each with its forecasts."""
    base = layout(model, **split)
    drafts = [with_context(base, **context) for context in contexts]
    forecasts = {(draft.context, source): simulate(forecaster, draft, source) for draft in drafts for source in sources}
    forecaster.release()
    with opened(drafts[0], log, load=False) as it:
        for i, draft in enumerate(drafts):
            loaded = it.engine.new_context(draft.context) if i else it.load()
            for source in sources:
                found = forecasts[draft.context, source]
                assert found.source == source
                assert found.n_ctx == loaded.n_ctx
                for forecast, measured in zip(found.cards, loaded.cards, strict=True):
                    assert forecast.layers == measured.layers
                    yield from _misses(draft, source, forecast, measured)


def _misses(draft: Layout, source: ForecastSource, forecast: CardMemory, measured: CardMemory) -> Iterator[Miss]:
    kinds: tuple[Kind, ...] = ("weights", "kv", "compute")
    for kind in kinds:
        yield Miss(
            draft=f"{Path(draft.model).name} {draft.split.label()} {_of(draft.context)}",
            source=source,
            tensor=draft.split.split_mode == "tensor",
            card=measured.name,
            kind=kind,
            forecast_mib=getattr(forecast, f"{kind}_mib"),
            measured_mib=getattr(measured, f"{kind}_mib"),
        )


def _of(context: Context) -> str:
    return f"n_ctx {context.n_ctx} {context.type_k}/{context.type_v} flash_attn {context.flash_attn}"
