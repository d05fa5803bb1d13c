"""Keystroke to painted forecast while a reply streams: `python -m tests.benchmarks.forecast_latency`.

The screen runs without a terminal on the bundled model over two virtual cards. Layers, then
shares, are moved back and forth in the split editor; each key waits for its forecast on the
screen. Prints quantiles in seconds, by source and mode. Exit code 1 past 0.5 s (layer) or 1 s
(tensor) at the 95th percentile.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from workbench.app.app import WorkbenchApp
from workbench.app.outside import Outside
from workbench.domain.conversation import Sampling
from workbench.domain.forecast import FROM_HEADER, FROM_LLAMA, ForecastSource
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split, SplitMode, Virtual
from workbench.lab.forecast import DraftForecasts, Forecasts
from workbench.lab.kit import RealKit
from workbench.lab.session import Session

LAYOUT = Layout(
    name="latency",
    model="demo:smollm2",
    split=Split(layers=(16, 15), cards=Virtual(("600MiB", "600MiB"))),
    context=Context(n_ctx=8192),
)
LIMIT_S: dict[SplitMode, float] = {"layer": 0.5, "tensor": 1.0}
STEP_S = 0.002
GIVE_UP_S = 60.0


async def measure(source: ForecastSource, mode: SplitMode, keys: int) -> dict[str, float | int | str]:
    """Seconds for each key, as quantiles, and the tokens that streamed meanwhile."""
    kit = RealKit(spare=False)
    forecasts = Forecasts(kit.cards, by_header=source == FROM_HEADER)
    outside = Outside(start_forecasts=lambda listener: DraftForecasts(forecasts, listener))
    app = WorkbenchApp(lambda listener: Session(kit, listener), outside, first=LAYOUT)
    took: list[float] = []
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            await until(lambda: app.main.split.current is not None)
            pane = app.main.split
            pane.focus()
            while pane.draft is not None and pane.draft.mode != mode:
                await pilot.press("m")
            await pilot.press("right")
            await until(lambda: bool(pane.forecast) and not pane.stale)
            reply = app.session.send("Count from one to a thousand, in words.", Sampling(max_tokens=7000))
            await until(lambda: app.main.chat.answering)
            for i in range(keys):
                if reply.done():
                    reply = app.session.send("Go on.", Sampling(max_tokens=7000))
                    await until(lambda: app.main.chat.answering)
                begun = time.perf_counter()
                app.simulate_key("left" if i % 2 else "right")
                await until(lambda: pane.stale)
                await until(lambda: not pane.stale)
                painted = asyncio.Event()
                pane.call_after_refresh(painted.set)
                await painted.wait()
                took.append(time.perf_counter() - begun)
            app.session.cancel()
            await asyncio.to_thread(reply.result)
            said = [turn.timing.tokens for turn in app.session.conversation.turns if turn.timing is not None]
            app.exit()
    finally:
        app.session.close()
        forecasts.close()
        kit.close()
    took.sort()
    return {
        "source": source,
        "mode": mode,
        "keys": keys,
        "median_s": round(statistics.median(took), 3),
        "p95_s": round(took[int(len(took) * 0.95)], 3),
        "max_s": round(took[-1], 3),
        "limit_s": LIMIT_S[mode],
        "tokens_meanwhile": sum(said),
    }


async def until(predicate: Callable[[], bool]) -> None:
    """Return as soon as it holds."""
    deadline = time.monotonic() + GIVE_UP_S
    while not predicate():
        if time.monotonic() > deadline:
            raise TimeoutError("the screen did not follow")
        await asyncio.sleep(STEP_S)


def main() -> int:
    """Measure both sources in both modes; print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=40, help="keystrokes for each source and mode")
    keys = parser.parse_args().keys
    with tempfile.TemporaryDirectory() as home:
        os.environ["WORKBENCH_HOME"] = home
        modes: tuple[SplitMode, ...] = ("layer", "tensor")
        rows = [asyncio.run(measure(source, mode, keys)) for source in (FROM_LLAMA, FROM_HEADER) for mode in modes]
    print(json.dumps(rows, indent=2))
    return 1 if any(float(row["p95_s"]) > float(row["limit_s"]) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
