"""A long day on a bad link: whether the screen grows, or leaves anything behind.

`python -m tests.benchmarks.soak [--minutes 30]` drives the real demonstration in a pseudo-terminal: in
30 minutes 400 replies, 60 re-splits, 200 resizes and 20 stalls of 5 s in which nobody reads what it draws;
in fewer minutes as many fewer. Prints one JSON object: MiB resident and open files of the process of
the screen, after warming up and at the end; what was done; how many processes and descendants were left.
Its exit code is 1 if the memory grew by 10 % or anything was left. It stops at half again the time.
"""

import argparse
import itertools
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.terminals import ENTER, ESC, F6, QUIT, Terminal

A_DAY = {"reply": 400, "resplit": 60, "resize": 200, "stall": 20}
DAY_MINUTES = 30.0
WARM_UP = {"reply": 40, "resplit": 6, "resize": 20, "stall": 2}
"""After two chats, in all sizes, what is kept to draw faster is as large as it gets."""
SIZE = (80, 24)
SIZES = (SIZE, (60, 20), (120, 40), (160, 48), (50, 15))
PROMPTS = ("Say yes.", "Name a river.", "What is 2 and 3?", "你好 🙂, name a colour.", "Say `x = 1` in Python.")
STALL_S = 5.0
REPLY_S = 1.0
"""A reply that takes longer is stopped, as a user would."""
NEW_CHAT_EVERY = 20
QUIET_S = 12.0
MOST_GROWTH = 0.10
NEW_CHAT, LEFT, RIGHT = b"\x0e", b"\x1b[D", b"\x1b[C"


class Slow(Exception):
    """Something that should have come to be did not."""


class Soak:
    """One demonstration and what was done with it."""

    def __init__(self, folder: Path, deadline: float) -> None:
        self.terminal = Terminal(folder, "demo", size=SIZE, env={"SSH_CONNECTION": "a 1 b 2"})
        self.screen = psutil.Process(self.terminal.process.pid)
        self.seen: set[psutil.Process] = set()
        self.done = dict.fromkeys(A_DAY, 0)
        self.stopped = 0
        self._deadline = deadline
        self._layers = itertools.cycle((RIGHT, RIGHT, LEFT, LEFT))
        self._sizes = random.Random(1)
        self.until(lambda: self.split is not None, 120)

    def until(self, predicate: Callable[[], object], timeout: float) -> bool:
        """Look at the screen until it holds; False after `timeout` seconds."""
        end = time.monotonic() + timeout
        while not predicate():
            if time.monotonic() > self._deadline:
                raise Slow("the time is over")
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    @property
    def split(self) -> str | None:
        """What serves, by the first line."""
        found = re.search(r"· (layer [\d:]+)", self.terminal.lines()[0])
        return None if found is None else found[1]

    def do(self, what: str) -> None:
        """One step."""
        {"reply": self.reply, "resplit": self.resplit, "resize": self.resize, "stall": self.stall}[what]()
        self.done[what] += 1
        self.seen |= set(self.terminal.children())
        self.terminal.forget()

    def reply(self, stalling: bool = False) -> None:
        """Ask, and see the reply to its end, or stop it."""
        if self.done["reply"] % NEW_CHAT_EVERY == 0:
            self.terminal.type(NEW_CHAT)
            self.until(lambda: self.terminal.shows("^n again") or self.terminal.shows("F6 goes to"), 2)
            self.terminal.type(NEW_CHAT)
        number = f"({self.done['reply']})"
        self.terminal.type(f"{PROMPTS[self.done['reply'] % len(PROMPTS)]} {number}".encode() + ENTER)
        self.until(lambda: self.terminal.shows("Ask something") and self.terminal.shows(number), 20)
        if stalling:
            self.terminal.reading.clear()
            time.sleep(STALL_S)
            self.terminal.reading.set()
        if not self.until(self._answered, REPLY_S):
            self.terminal.type(ESC)
            self.stopped += 1
            if not self.until(self._answered, 60):
                raise Slow("a reply")

    def _answered(self) -> bool:
        lines = self.terminal.lines()
        return not any("Esc stops" in line for line in lines) and any(
            "tokens" in line or "stopped by you" in line for line in lines
        )

    def resplit(self) -> None:
        """Move a layer and apply; the chat's tab again when the other split serves."""
        self.until(lambda: self.split is not None, 20)
        before = self.split
        self.terminal.type(F6)
        self.until(lambda: self.terminal.shows("[Cards and split]"), 10)
        self.terminal.type(next(self._layers))
        self.until(lambda: self.terminal.shows("+1 ") and self.terminal.shows("−1 "), 5)
        self.terminal.type(ENTER)
        if not self.until(lambda: self._serves_another_than(before), 90):
            raise Slow("a re-split")
        self.terminal.type(F6)
        self.until(lambda: self.terminal.shows("[Chat]"), 10)

    def _serves_another_than(self, before: str | None) -> bool:
        """Told by a picture that is whole, which one that is being drawn is not."""
        now = self.split
        time.sleep(0.3)
        return now not in (None, before) and self.split == now and not self.terminal.shows("Esc stops")

    def resize(self) -> None:
        """Another size, and back: both count."""
        self.terminal.resize(self._sizes.choice(SIZES))
        time.sleep(0.02)
        self.terminal.resize(SIZE)
        time.sleep(0.02)
        self.done["resize"] += 1

    def stall(self) -> None:
        """Nobody reads while a reply is written."""
        self.reply(stalling=True)
        self.done["reply"] += 1

    def rest(self) -> tuple[float, int, int]:
        """Quiet for a while; then MiB resident, open files, and how many descendants there are."""
        self.until(lambda: self.split is not None, 30)
        time.sleep(QUIET_S)
        return self.screen.memory_info().rss / 2**20, self.screen.num_fds(), len(self.terminal.children())


def steps(counts: dict[str, int]) -> Iterator[str]:
    """All of them, evenly mixed."""
    marks = sorted(((at + 0.5) / count, what) for what, count in counts.items() for at in range(count))
    return (what for _, what in marks)


def counted(minutes: float) -> dict[str, int]:
    """So many steps of each kind; a stall is a reply too, and a resize two."""
    share = minutes / DAY_MINUTES
    counts = {what: max(1, round(count * share)) for what, count in A_DAY.items()}
    return {**counts, "reply": max(1, counts["reply"] - counts["stall"]), "resize": max(1, counts["resize"] // 2)}


def soak(minutes: float, home: Path) -> dict[str, object]:
    """The whole of it, as it is printed."""
    begun = time.monotonic()
    run = Soak(home, begun + minutes * 90 + 300)
    trouble, after, course = "", (0.0, 0, 0), []
    try:
        for what in steps(WARM_UP):
            run.do(what)
        before = run.rest()
        run.done = dict.fromkeys(A_DAY, 0)
        run.stopped = 0
        counts = counted(minutes)
        each = minutes * 60 / sum(counts.values())
        started = time.monotonic()
        try:
            for at, what in enumerate(steps(counts)):
                run.do(what)
                time.sleep(min(each, max(0.0, started + (at + 1) * each - time.monotonic())))
                if at % 50 == 0:
                    course.append(round(run.screen.memory_info().rss / 2**20, 1))
                    print(at, run.done, f"{course[-1]} MiB", file=sys.stderr, flush=True)
        except Slow as slow:
            trouble = f"not in time: {slow}"
            print("\n".join(run.terminal.lines()), file=sys.stderr)
        after = run.rest()
        run.seen |= set(run.terminal.children())
        run.terminal.type(QUIT)
        code = run.terminal.process.wait(60)
    finally:
        run.terminal.close()
    time.sleep(2)
    left = [one.pid for one in run.seen if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    growth = after[0] / before[0] - 1
    journals = [line for path in home.rglob("*.jsonl") for line in path.read_bytes().splitlines()]
    return {
        "minutes": round((time.monotonic() - begun) / 60, 1),
        **{f"{what}s" if what != "reply" else "replies": count for what, count in run.done.items()},
        "replies_stopped": run.stopped,
        "replies_in_the_journal": sum(b'{"type":"turn"' in line for line in journals),
        "rss_mib_before": round(before[0], 1),
        "rss_mib_after": round(after[0], 1),
        "rss_mib_every_50_steps": course,
        "growth_percent": round(100 * growth, 1),
        "files_before": before[1],
        "files_after": after[1],
        "processes_before": before[2],
        "processes_after": after[2],
        "processes_left": len(left),
        "exit_code": code,
        "trouble": trouble,
        "sound": not (trouble or left or code) and growth < MOST_GROWTH and after[1] <= before[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=DAY_MINUTES)
    minutes = parser.parse_args().minutes
    with TemporaryDirectory(prefix="workbench-soak-") as folder:
        os.environ["WORKBENCH_HOME"] = folder
        result = soak(minutes, Path(folder))
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["sound"] else 1)


if __name__ == "__main__":
    main()
