"""Random faults against a real session: is the next prompt answered, is the conversation whole?

`python -m tests.benchmarks.faults --n 100 --seed 1` prints one JSON object: faults, recovered,
turns_lost, processes_left and what did not recover. Recovered means that the next prompt is
answered within 60 s on the asked or the last good layout and that the conversation holds the
script's prompts in their order, each once.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import msgspec
import psutil

from workbench.domain.conversation import Sampling
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split, Virtual
from workbench.lab import events
from workbench.lab.aside import Aside
from workbench.lab.kit import RealKit
from workbench.lab.session import Session
from workbench.store.models import resolve_model
from workbench.store.places import HOME_VARIABLE

T = TypeVar("T")
LIMIT_S = 60.0
SHORT = Sampling(temperature=0, max_tokens=12)
CARDS = Virtual(("500MiB", "500MiB"))
SHARES = ((1.0, 1.0), (3.0, 1.0), (1.0, 2.0), (1.0, 0.0))
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class FaultKit(RealKit):
    """The real kit, whose strategy and room for a state the faults choose."""

    beside = True
    memory_is_full = False

    def stand_beside(self, *_: object) -> bool:
        return self.beside

    def aside(self, size: int) -> Aside:
        aside = super().aside(size)
        if self.memory_is_full:
            aside.path = Path("/dev/full")
        return aside


class Trap:
    """Listens to a session and springs once, a random moment after the event it waits for."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._waits: Callable[[events.SessionEvent], bool] | None = None
        self._spring: Callable[[], None] = lambda: None
        self.sprung = threading.Event()
        self.problems: list[str] = []

    def set(self, moment: str, spring: Callable[[], None]) -> None:
        self.sprung.clear()
        self._spring = spring
        self._waits = MOMENTS[moment]

    def __call__(self, event: events.SessionEvent) -> None:
        if isinstance(event, events.Problem):
            self.problems.append(event.message)
        if self._waits is not None and self._waits(event):
            self._waits = None
            threading.Timer(self._chance.uniform(0, 0.12), self._go).start()

    def _go(self) -> None:
        self._spring()
        self.sprung.set()


MOMENTS: dict[str, Callable[[events.SessionEvent], bool]] = {
    "load": lambda event: isinstance(event, events.LoadStarted),
    "late load": lambda event: isinstance(event, events.LoadMoved) and event.fraction > 0.5,
    "hand-over": lambda event: isinstance(event, events.Busy) and event.job in ("handover", "resplit"),
    "prefill": lambda event: isinstance(event, events.TurnStarted),
    "decode": lambda event: isinstance(event, events.TurnText),
}


class Ordeal:
    """One session, its script and what befell it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.kit = FaultKit()
        self.trap = Trap(self.chance)
        self.session = Session(self.kit, self.trap)
        self.model = folder / "model.gguf"
        self.whole = resolve_model("demo:smollm2")
        self.script: list[str] = []
        shutil.copyfile(self.whole, self.model)
        self.session.load(self.layout(SHARES[0])).result()
        self.say(1)

    def layout(self, shares: tuple[float, ...]) -> Layout:
        split = Split(tensor_split=shares, cards=CARDS)
        return Layout(name="ordeal", model=str(self.model), split=split, context=Context(n_ctx=4096))

    def say(self, tries: int) -> bool:
        """The next prompt of the script; whether it was answered in time."""
        prompt = f"{len(self.script)}: Name a river."
        deadline = time.monotonic() + LIMIT_S
        for _ in range(tries):
            try:
                turn = self.session.send(prompt, SHORT).result(max(0.1, deadline - time.monotonic()))
            except Exception:
                continue
            if turn.reply:
                self.script.append(prompt)
                return True
        return False

    def say_into_a_fault(self) -> None:
        """A longer reply for the fault to hit; what is left of it belongs to the script."""
        prompt = f"{len(self.script)}: Tell me of a river. " + "It was long and cold. " * self.chance.randrange(0, 60)
        future = self.session.send(prompt, msgspec.structs.replace(SHORT, max_tokens=60, ignore_eos=True))
        self.trap.sprung.wait(20)
        turn = settle(future)
        if turn is not None and turn.reply:
            self.script.append(prompt)

    def resplit(self) -> None:
        settle(self.session.resplit(self.layout(self.chance.choice(SHARES)).split))

    # ── faults ───────────────────────────────────────────────────────────────────────────
    def strike(self, how: str, whom: str) -> Callable[[], None]:
        def spring() -> None:
            pid = self.victim(whom)
            if pid is not None:
                try:
                    os.kill(pid, SIGNALS[how])
                except ProcessLookupError:
                    return

        return spring

    def victim(self, whom: str) -> int | None:
        kinds = {"worker": "child.worker", "spare": "child.worker", "card": "child.rpc_card"}
        found = [p for p in psutil.Process().children(recursive=True) if kinds[whom] in " ".join(command(p))]
        spare = self.kit._spare.process.pid if self.kit._spare is not None else None
        found = [p for p in found if (p.pid == spare) == (whom == "spare")]
        return self.chance.choice(found).pid if found else None

    def signals(self) -> str:
        how, whom = self.chance.choice(list(SIGNALS)), self.chance.choice(["worker", "card", "spare"])
        moment = self.chance.choice(list(MOMENTS))
        self.kit.beside = self.chance.random() < 0.5
        self.trap.set(moment, self.strike(how, whom))
        if moment in ("prefill", "decode"):
            self.say_into_a_fault()
        else:
            self.resplit()
        self.trap.sprung.wait(2)
        return f"{how} {whom} at {moment}, {'beside' if self.kit.beside else 'in turn'}"

    def impossible_context(self) -> str:
        self.kit.beside = self.chance.random() < 0.5
        layout = self.layout(self.chance.choice(SHARES))
        context = msgspec.structs.replace(layout.context, n_ctx=self.chance.choice([100_000, 1_000_000]))
        settle(self.session.load(msgspec.structs.replace(layout, context=context)))
        return "impossible n_ctx"

    def truncated_model(self) -> str:
        self.kit.beside = self.chance.random() < 0.5
        data = self.whole.read_bytes()
        short = self.model.with_suffix(".short")
        short.write_bytes(data[: self.chance.randrange(1000, len(data) - 1000)])
        short.replace(self.model)
        self.resplit()
        again = self.model.with_suffix(".again")
        again.write_bytes(data)
        again.replace(self.model)
        return "truncated model file"

    def full_memory(self) -> str:
        self.kit.memory_is_full = True
        self.kit.beside = self.chance.random() < 0.5
        self.resplit()
        self.kit.memory_is_full = False
        return "no room for the state"

    def fault(self) -> str:
        return self.chance.choices(
            [self.signals, self.impossible_context, self.truncated_model, self.full_memory], weights=[7, 1, 1, 1]
        )[0]()

    def lost(self) -> int:
        """Prompts of the script that the conversation lacks, or has out of order."""
        have = [turn.prompt for turn in self.session.conversation.turns]
        return 0 if have == self.script else max(1, len(set(self.script) - set(have)))


def command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def settle(future: Future[T]) -> T | None:
    """The future's result, or None if it failed or took too long."""
    try:
        return future.result(LIMIT_S)
    except Exception:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    failures: list[str] = []
    kinds: Counter[str] = Counter()
    turns_lost = 0
    with TemporaryDirectory() as folder:
        os.environ[HOME_VARIABLE] = folder
        ordeal = Ordeal(arguments.seed, Path(folder))
        for number in range(arguments.n):
            begun = time.monotonic()
            what = ordeal.fault()
            kinds[what] += 1
            answered = ordeal.say(3)
            lost = ordeal.lost()
            turns_lost += lost
            if not answered or lost:
                failures.append(f"{number}: {what}: {'not answered' if not answered else f'{lost} turns lost'}")
                ordeal.script = [turn.prompt for turn in ordeal.session.conversation.turns]
            print(f"{number:3} {what:50} {time.monotonic() - begun:6.1f} s", file=sys.stderr, flush=True)
            if len(ordeal.script) > 20:
                ordeal.session.clear().result(LIMIT_S)
                ordeal.script = []
        ordeal.session.close()
        ordeal.kit.close()
    time.sleep(1.0)
    left = [p.pid for p in psutil.process_iter() if "workbench.engines.llama.child" in " ".join(command(p)) and ours(p)]
    print(
        json.dumps(
            {
                "faults": arguments.n,
                "recovered": arguments.n - len(failures),
                "turns_lost": turns_lost,
                "processes_left": len(left),
                "failures": failures,
                "kinds": dict(kinds.most_common()),
            }
        )
    )


def ours(process: psutil.Process) -> bool:
    """Whether the process was started by this run: a child, or an orphan that carries its home."""
    try:
        return process.environ().get(HOME_VARIABLE) == os.environ[HOME_VARIABLE]
    except psutil.Error:
        return False


if __name__ == "__main__":
    main()
