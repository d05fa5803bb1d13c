"""Pictures of the screen on real cards: `python -m tests.benchmarks.gpu.picture OUT_DIR LAYOUT…`.

The whole app opens each layout, answers a short prompt, moves layers, answers another, and is
drawn in three sizes as SVG, with the card's detail and the topology. A layout is a file or a
name; a name of it, not a path, is what the pictures are called after.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from textual.pilot import Pilot

from workbench.app.app import WorkbenchApp
from workbench.app.opening import decide, open_outside
from workbench.cli.opening import what_to_open
from workbench.domain.conversation import Sampling
from workbench.domain.layout import Layout
from workbench.domain.split import Split
from workbench.lab.kit import RealKit
from workbench.lab.session import Session
from workbench.store.places import HOME_VARIABLE

SIZES = ((120, 36), (160, 48), (80, 24))
PROMPTS = ("Write two sentences on rivers.", "Where do they end?")
REPLY = Sampling(temperature=0, max_tokens=96)
METERS_S = 3.0
"""So long the meters are left to draw a history."""
STUCK_S = 120.0


async def until(app: WorkbenchApp, predicate: Callable[[], bool]) -> None:
    """Return as soon as it holds. SystemExit with what the app said, where it does not come to that."""
    deadline = time.monotonic() + STUCK_S
    while not predicate():
        problems = [said.message for said in app.said if said.problem]
        if problems or time.monotonic() > deadline:
            raise SystemExit(problems[-1] if problems else f"the screen did not follow within {STUCK_S:.0f} s")
        await asyncio.sleep(0.02)


def other(split: Split, count: int) -> Split:
    """Three parts on the first card, or even shares where it has more already."""
    uneven = (3.0, *(1.0,) * (count - 1))
    shares = (1.0,) * count if split.tensor_split == uneven else uneven
    return msgspec.structs.replace(split, tensor_split=shares, layers=None)


async def ask(app: WorkbenchApp, prompt: str) -> None:
    """Send it and see the reply to its end."""
    chat, turns = app.main.chat, len(app.session.conversation.turns)
    chat.prompt.fill(prompt, None)
    chat.prompt.action_submit()
    await until(app, lambda: len(app.session.conversation.turns) > turns and not chat.answering)


async def draw(app: WorkbenchApp, pilot: Pilot[None], out: Path, name: str) -> None:
    """Each screen in each size."""
    for width, height in SIZES:
        await pilot.resize_terminal(width, height)
        for screen in ("chat", "cards", "detail", "topology"):
            if screen == "chat":
                app.main.go_to(app.main.chat.prompt)
            else:
                app.main.go_to(app.main.cards)
            if screen == "detail":
                app.main.cards.action_detail()
            elif screen == "topology":
                app.main.cards.action_topology()
            await pilot.pause(1.0)
            over = f"-{screen}" if screen != "chat" else ""
            if screen != "cards" or width == min(size[0] for size in SIZES):  # else chat and cards are one picture
                path = out / f"{name}-{width}x{height}{over}.svg"
                path.write_text(app.export_screenshot(), encoding="utf-8")
                print(path.name, flush=True)
            if len(app.screen_stack) > 1:
                app.pop_screen()


async def picture(layout: Layout, out: Path) -> None:
    """One layout in the app."""
    start, kit = decide(layout, resume=False, demo=False), RealKit()
    app = WorkbenchApp(
        lambda listener: Session(kit, listener, journal=start.journal),
        open_outside(start, kit.forecasts),
        first=layout,
    )
    session = app.session
    session.sampling = REPLY
    try:
        async with app.run_test(size=SIZES[0]) as pilot:
            await until(app, lambda: bool(session.history and session.history[-1].probe))
            await ask(app, PROMPTS[0])
            cards = 0 if session.loaded is None else len(session.loaded.cards)
            if cards > 1 and layout.split.split_mode != "none":
                await asyncio.wrap_future(session.resplit(other(layout.split, cards)))
                await until(app, lambda: len(session.history) > 1 and session.history[-1].probe is not None)
            await ask(app, PROMPTS[1])
            await pilot.pause(METERS_S)
            await draw(app, pilot, out, layout.name)
            app.exit()
    finally:
        session.close()
        kit.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("layouts", nargs="+", metavar="LAYOUT")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.layouts:
        layout = what_to_open(name)
        if not isinstance(layout, Layout):
            raise SystemExit(f"{name} is no layout")
        with TemporaryDirectory() as home:
            os.environ[HOME_VARIABLE] = home
            asyncio.run(picture(layout, options.out))


if __name__ == "__main__":
    main()
