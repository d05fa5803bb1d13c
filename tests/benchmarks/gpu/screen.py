"""The whole app in a terminal of its own, with meters, journal and log, while something is measured in it.

`on_screen(layout, Replies(…))` returns what the play wrote down: figures of the worker and of
this process, never of the picture. `python -m tests.benchmarks.gpu.screen FOLDER` is its process.
"""

import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import psutil

from tests.benchmarks.gpu.engines import Gpus
from tests.benchmarks.resplit import FixedKit
from tests.benchmarks.terminal import run_in_pty
from workbench.app.app import WorkbenchApp
from workbench.app.opening import decide, open_outside
from workbench.app.terminal import take_terminal
from workbench.domain.conversation import Sampling
from workbench.domain.layout import Layout
from workbench.domain.split import Split
from workbench.domain.timing import Timing
from workbench.engines.engine import Engine, Filler, Reply, Request
from workbench.lab.kit import OnDeath
from workbench.lab.session import Session

SIZE = (120, 36)
TICK_S = 0.02
STUCK_S = 120.0
PROMPT, ANSWER, ERROR = "play.json", "answer.json", "error.txt"


class Replies(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Replies to made-up prompts of exact length, as headless measurements have them: a warm-up and `repeats`."""

    prefill: int
    decode: int
    repeats: int


class Resplits(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So many re-splits to and fro, beside and in turn, with a conversation that is carried along."""

    there: Split
    count: int


class Held(msgspec.Struct, frozen=True):
    """After `resplits`, back on the first split and idle: MiB on all GPUs by NVML, MiB of this process."""

    resplits: int
    on_gpus_mib: float | None
    resident_mib: float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a play saw."""

    prefill: tuple[Timing, ...] = ()
    decode: tuple[Timing, ...] = ()
    held: tuple[Held, ...] = ()


class Task(msgspec.Struct, frozen=True):
    """What the process is told."""

    layout: Layout
    play: Replies | Resplits


def on_screen(layout: Layout, play: Replies | Resplits, limit_s: float = 300.0) -> Seen:
    """Open the app on the layout, play, and leave it. RuntimeError where it failed or ended early."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / PROMPT).write_bytes(msgspec.json.encode(Task(layout, play)))
        command = [sys.executable, "-m", "tests.benchmarks.gpu.screen", name]
        code, drawn = run_in_pty(command, os.environ, SIZE, limit_s)
        answer, error = folder / ANSWER, folder / ERROR
        if error.exists() or not answer.exists():
            raise RuntimeError(error.read_text() if error.exists() else f"the screen ended with code {code}: {drawn!r}")
        return msgspec.json.decode(answer.read_bytes(), type=Seen)


class ScreenKit(FixedKit):
    """The real kit; with a `filler` every prompt is answered as if it were that."""

    filler: Filler | None = None

    def open_engine(self, layout: Layout, on_death: OnDeath, beside: int = 0) -> Engine:
        engine = super().open_engine(layout, on_death, beside)
        chat = engine.chat

        def filled(request: Request, on_text: Callable[[str], None]) -> Reply:
            if self.filler is None:
                return chat(request, on_text)
            return chat(msgspec.structs.replace(request, messages=(), filler=self.filler), on_text)

        engine.chat = filled  # type: ignore[method-assign]
        return engine


class Player:
    """Works the app from within, as keys would."""

    def __init__(self, app: WorkbenchApp, kit: ScreenKit, layout: Layout) -> None:
        self._app = app
        self._kit = kit
        self._layout = layout

    async def play(self, play: Replies | Resplits) -> Seen:
        """Wait for the load and its probe, then do it."""
        session = self._app.session
        await self._until(lambda: bool(session.history and session.history[-1].probe))
        if isinstance(play, Replies):
            return Seen(
                prefill=await self._replies(play.prefill, 1, play.repeats),
                decode=await self._replies(1, play.decode + 1, play.repeats),
            )
        return Seen(held=await self._resplits(play))

    async def _replies(self, prompt_tokens: int, max_tokens: int, repeats: int) -> tuple[Timing, ...]:
        timings = []
        for salt in range(repeats + 1):
            self._kit.filler = Filler(prompt_tokens=prompt_tokens, salt=salt)
            timings.append(await self._ask(f"{salt}: {prompt_tokens} tokens in, {max_tokens} out", max_tokens))
        self._kit.filler = None
        return tuple(timings[1:])

    async def _ask(self, prompt: str, max_tokens: int) -> Timing:
        session, chat = self._app.session, self._app.main.chat
        session.sampling = Sampling(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        turns = len(session.conversation.turns)
        chat.prompt.fill(prompt, None)
        chat.prompt.action_submit()
        await self._until(lambda: len(session.conversation.turns) > turns and not chat.answering)
        timing = session.conversation.turns[-1].timing
        assert timing is not None
        return timing

    async def _resplits(self, play: Resplits) -> tuple[Held, ...]:
        session, gpus = self._app.session, await asyncio.to_thread(Gpus, self._layout, self._kit)
        await self._ask("Tell me of rivers.", 32)
        held = [await self._held(0, gpus)]
        for number in range(1, play.count + 1):
            self._kit.beside = number % 4 in (1, 2)
            split = play.there if number % 2 else self._layout.split
            await asyncio.wrap_future(session.resplit(split))
            if number % 2 == 0:
                held.append(await self._held(number, gpus))
        return tuple(held)

    async def _held(self, resplits: int, gpus: Gpus) -> Held:
        await asyncio.wrap_future(self._app.session.probe())
        await asyncio.sleep(0.2)  # the picture of it is drawn
        gc.collect()
        used = gpus.used_mib()
        return Held(resplits, sum(used.values()) if used else None, psutil.Process().memory_info().rss / 2**20)

    async def _until(self, predicate: Callable[[], bool]) -> None:
        deadline = time.monotonic() + STUCK_S
        while not predicate():
            problems = [said.message for said in self._app.said if said.problem]
            if problems or time.monotonic() > deadline:
                raise RuntimeError(problems[-1] if problems else f"the screen did not follow within {STUCK_S:.0f} s")
            await asyncio.sleep(TICK_S)


def main() -> None:
    """In the process that has the terminal."""
    folder = Path(sys.argv[1])
    task = msgspec.json.decode((folder / PROMPT).read_bytes(), type=Task)
    start = decide(task.layout, resume=False, demo=False)
    kit = ScreenKit()
    app = WorkbenchApp(
        lambda listener: Session(kit, listener, journal=start.journal),
        open_outside(start, kit.forecasts),
        first=start.layout,
    )
    take_terminal(app)

    async def play() -> None:
        try:
            seen = await Player(app, kit, task.layout).play(task.play)
            (folder / ANSWER).write_bytes(msgspec.json.encode(seen))
        except Exception as error:
            (folder / ERROR).write_text(f"{type(error).__name__}: {error}")
        app.exit()

    app.call_later(lambda: app.run_worker(play()))
    try:
        app.run()
    finally:
        app.session.close()
        kit.close()


if __name__ == "__main__":
    main()
