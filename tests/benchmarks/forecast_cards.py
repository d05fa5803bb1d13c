"""Forecast against measured on real cards: `python -m tests.benchmarks.forecast_cards --model 8b.gguf`.

`--cards CUDA0,CUDA1 [--env NAME=VALUE]`. Each draft is forecast, loaded and compared by card: in
layer mode by kind against the engine's own figures, in tensor mode in all against what NVML
says the load took of each card. Prints one JSON object a draft.
"""

import argparse
import json
import os
import time
from tempfile import TemporaryDirectory
from typing import Any

import pynvml

from workbench.domain.forecast import Forecast
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split
from workbench.engines.engine import Loaded
from workbench.lab.kit import RealKit
from workbench.store.places import HOME_VARIABLE

DRAFTS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"tensor_split": (1.0, 1.0)}, {"n_ctx": 4096}),
    ({"tensor_split": (3.0, 1.0)}, {"n_ctx": 4096}),
    ({"tensor_split": (1.0, 4.0)}, {"n_ctx": 16384}),
    ({"tensor_split": (1.0, 1.0)}, {"n_ctx": 8192, "type_k": "q8_0", "type_v": "q8_0"}),
    ({"tensor_split": (1.0, 1.0), "n_gpu_layers": 20}, {"n_ctx": 4096}),
    ({"tensor_split": (3.0, 1.0), "n_gpu_layers": 10}, {"n_ctx": 8192}),
    ({"split_mode": "none"}, {"n_ctx": 4096}),
    ({"split_mode": "none", "main_gpu": 1}, {"n_ctx": 16384}),
    ({"split_mode": "tensor", "tensor_split": (1.0, 1.0)}, {"n_ctx": 4096}),
    ({"split_mode": "tensor", "tensor_split": (3.0, 1.0)}, {"n_ctx": 4096}),
    ({"split_mode": "tensor", "tensor_split": (1.0, 1.0)}, {"n_ctx": 16384}),
    ({"split_mode": "tensor", "tensor_split": (1.0, 1.0)}, {"n_ctx": 8192, "type_k": "q8_0", "type_v": "q8_0"}),
)


def used_mib() -> list[float]:
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    return [pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20 for handle in handles]


def row(forecast: Forecast, loaded: Loaded, taken: list[float], seconds: float) -> dict[str, Any]:
    cards = [
        {
            "card": told.name,
            "weights": [round(told.weights_mib, 1), round(held.weights_mib, 1)],
            "kv": [round(told.kv_mib, 1), round(held.kv_mib, 1)],
            "compute": [round(told.compute_mib, 1), round(held.compute_mib, 1)],
            "total_by_nvml": [round(told.total_mib, 1), round(taken[i], 1) if i < len(taken) else None],
            "other": round(told.other_mib, 1),
        }
        for i, (told, held) in enumerate(zip(forecast.cards, loaded.cards, strict=True))
    ]
    return {"source": forecast.source, "forecast_s": round(seconds, 2), "fits": forecast.fits, "cards": cards}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cards", default="CUDA0,CUDA1")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--drafts", type=int, default=len(DRAFTS))
    arguments = parser.parse_args()
    env: dict[str, str | None] = dict(pair.split("=", 1) for pair in arguments.env)
    cards = tuple(arguments.cards.split(","))
    pynvml.nvmlInit()
    with TemporaryDirectory() as home:
        os.environ[HOME_VARIABLE] = home
        kit = RealKit(spare=False)
        for split, context in DRAFTS[: arguments.drafts]:
            layout = Layout(
                name="draft",
                model=arguments.model,
                split=Split(cards=cards, **split),
                context=Context(**context),
                env=env,
            )
            begun = time.monotonic()
            forecast = kit.forecasts.forecast(layout)
            seconds = time.monotonic() - begun
            kit.forecasts.release()
            before = used_mib()
            engine = kit.open_engine(layout, lambda error: None)
            try:
                kit.foresight.before_load(layout)
                loaded = engine.load(lambda progress: None)
                taken = [after - there for after, there in zip(used_mib(), before, strict=True)]
                kit.foresight.after_load(layout, loaded)
            finally:
                engine.close()
            draft = {"model": arguments.model, "draft": f"{layout.split.label()} {context}"}
            print(json.dumps({**draft, **row(forecast, loaded, taken, seconds)}), flush=True)
        kit.close()


if __name__ == "__main__":
    main()
