"""What the meters cost: `python -m tests.benchmarks.meters [--model GGUF] [--cards CUDA0,CUDA1]`.

On the screen: 16 cards of a fake library, read and drawn twice a second in the whole app, each call
as long as it is on a real card; the lag of the event loop (p50, p99) and the CPU share of the
process, without meters and with them. With `--cards` also on real ones: decode tokens per second
with meters over without, in alternating pairs on one worker. Prints JSON.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pynvml

from tests.app.stage import LAYOUT, make_app
from tests.benchmarks.decode_overhead import unheard
from tests.meters.fake_nvml import FakeGpu, FakeLink, FakeNvmlLib
from workbench.app.outside import Outside
from workbench.domain.card import Card, CardKind
from workbench.domain.conversation import Message, Sampling
from workbench.domain.duty import Duty
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split
from workbench.domain.timing import Timing
from workbench.engines.engine import Engine, Loaded, Request
from workbench.engines.scripted import Script
from workbench.lab.cards import Inventory
from workbench.lab.kit import RealKit
from workbench.lab.watch import Watch
from workbench.meters.sample import Snapshot

CARDS = 16
LAG_EVERY_S = 0.005
COSTS_S = {
    "nvmlDeviceGetTotalEnergyConsumption": 0.0043,
    "nvmlDeviceGetFieldValues": 0.0021,
    "nvmlGpmSampleGet": 0.00018,
    "nvmlDeviceGetComputeRunningProcesses_v3": 0.00001,
}
"""How long calls take on a real card."""


def fake_machine() -> tuple[Card, ...]:
    """Cards of a library that takes as long as a real one."""
    gpm = {pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 60.0, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 10.0}
    gpus = [
        FakeGpu(f"00000000:{16 + i:02X}:00.0", gpm=gpm, links=[FakeLink()] * 18, processes={1: 20000, 2: 400})
        for i in range(CARDS)
    ]
    lib = FakeNvmlLib(*gpus)
    lib.before = lambda name: time.sleep(COSTS_S[name]) if name in COSTS_S else None
    pynvml.nvmlLib = lib
    return tuple(
        Card(
            name=f"CUDA{i}",
            kind=CardKind.CUDA,
            description=gpu.name,
            smi_index=i,
            pci_bus_id=gpu.bus_id[4:].lower(),
            total_mib=float(gpu.total_mib),
        )
        for i, gpu in enumerate(gpus)
    )


async def lag(size: tuple[int, int], seconds: float, *, metered: bool) -> dict[str, float]:
    """The event loop's lag in ms while the screen stands, and the process's share of a core."""
    cards = fake_machine()
    watches: list[Watch] = []

    def start(listener: Callable[[Snapshot], None], accounts: Callable[[Duty], None]) -> Watch | None:
        if metered:
            watches.append(Watch(listener, accounts))
            watches[0].start()
        return watches[0] if watches else None

    def watch(loaded: Any, found: Any) -> None:
        if watches:
            watches[0].watch(loaded, found)

    outside = Outside(find_cards=lambda: Inventory(cards=cards), start_meters=start, watch=watch)
    script = Script(cards=tuple(card.name for card in cards), tok_s=0)
    app = make_app(script, outside, first=LAYOUT)
    process, lags = psutil.Process(), []
    try:
        async with app.run_test(size=size) as pilot:
            await pilot.pause(2)
            before, began = sum(process.cpu_times()[:2]), time.monotonic()
            while time.monotonic() - began < seconds:
                asked = time.monotonic()
                await asyncio.sleep(LAG_EVERY_S)
                lags.append((time.monotonic() - asked - LAG_EVERY_S) * 1000)
            share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
    finally:
        app.session.close()
    cuts = statistics.quantiles(lags, n=100)
    return {"lag_p50_ms": round(cuts[49], 2), "lag_p99_ms": round(cuts[98], 2), "cpu_share": round(share, 3)}


def decode_timing(
    engine: Engine, loaded: Loaded, cards: Sequence[Card], salt: int, tokens: int, *, metered: bool
) -> Timing:
    """A reply of so many tokens, with the screen's meters at work or without."""
    watch = Watch(lambda snapshot: None, lambda duty: None)
    if metered:
        watch.watch(loaded, cards)
        watch.start()
    time.sleep(1)  # in both, since cards cool
    sampling = Sampling(temperature=0, max_tokens=tokens + 1, ignore_eos=True)
    message = Message("user", f"{salt}: Tell me of rivers.")
    try:
        return engine.chat(Request(messages=(message,), sampling=sampling), unheard).timing
    finally:
        watch.close()


def decode_ratio(layout: Layout, pairs: int, tokens: int) -> dict[str, Any]:
    """Decode rate with meters over without, on one worker."""
    kit = RealKit(spare=False)
    engine: Engine = kit.open_engine(layout, lambda error: None)
    try:
        loaded = engine.load(lambda progress: None)
        known = kit.cards(layout)

        def rate(salt: int, *, metered: bool) -> float:
            found = decode_timing(engine, loaded, known, salt, tokens, metered=metered).decode_tok_s
            assert found is not None
            return found

        rate(-1, metered=False)
        ratios = []
        for pair in range(pairs):
            order = (True, False) if pair % 2 else (False, True)
            found = {metered: rate(pair, metered=metered) for metered in order}
            ratios.append(found[True] / found[False])
    finally:
        engine.close()
        kit.close()
    return {
        "decode_ratio": round(statistics.median(ratios), 4),
        "quartiles": [round(cut, 4) for cut in statistics.quantiles(ratios, n=4)],
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--model", default="demo:smollm2")
    parser.add_argument("--cards", default="")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=512)
    arguments = parser.parse_args()
    out: dict[str, Any] = {}
    if arguments.cards:
        model = arguments.model if ":" in arguments.model else str(Path(arguments.model).expanduser())
        cards = tuple(arguments.cards.split(","))
        split = Split(cards=cards, tensor_split=(1.0,) * len(cards))
        layout = Layout(name="meters", model=model, context=Context(n_ctx=4096), split=split)
        out |= decode_ratio(layout, arguments.pairs, arguments.tokens)
    for size in ((80, 24), (160, 48)):
        name = f"{size[0]}x{size[1]}"
        out[f"{name} without"] = asyncio.run(lag(size, arguments.seconds, metered=False))
        out[f"{name} with"] = asyncio.run(lag(size, arguments.seconds, metered=True))
    print(json.dumps(out))


if __name__ == "__main__":
    main()
