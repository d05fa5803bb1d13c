"""What the product does on this machine's cards: `python -m tests.benchmarks.gpu OUT_DIR --model 8b=8b.gguf …`.

Each part runs in a process of its own, `--minutes` at most; `--within` ends them all in time, and
`--resume` takes up what is left, in another call or on another machine. OUT_DIR gets each figure
as it is known, results.json and table.md; `--join DIR …` makes both of the figures of many
folders. All cards are used; of a single GPU, two parts. `--rehearse` goes the same ways on
virtual cards and the bundled model, where there is no GPU.
"""

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.gpu import running, table
from tests.benchmarks.gpu.machine import describe_machine, find_cards
from tests.benchmarks.gpu.room import Room
from workbench.store.appending import open_locked
from workbench.store.models import DEMO, resolve_model
from workbench.store.places import HOME_VARIABLE

LONGEST_MIN = 8.0
MOST_MIN = 24 * 60.0
MOST_CARDS = 64
SHORTEST_S = 20.0
"""A part is not begun with less left than this."""
REHEARSAL_CARD = "600MiB"


def arguments(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FILE", help="8b, 70b or smollm2")
    parser.add_argument("--parts", default=",".join(table.PARTS), help="some of them, with commas")
    parser.add_argument("--minutes", type=minutes, default=LONGEST_MIN, help="a part has at most these")
    parser.add_argument("--within", type=minutes, metavar="MINUTES", help="all parts together have these")
    parser.add_argument("--llama-bench", metavar="COMMAND", help="a command that bash knows; llama_bench")
    parser.add_argument("--cards", type=count, metavar="N", help="so many; parts of a GPU where there are fewer")
    parser.add_argument("--resume", action="store_true", help="leave out the parts that OUT_DIR has whole")
    parser.add_argument("--quick", action="store_true", help="few repeats, to see whether all goes its way")
    parser.add_argument("--rehearse", action="store_true", help="on virtual cards")
    parser.add_argument("--join", type=Path, nargs="+", default=[], metavar="DIR", help="measure nothing, put together")
    parser.add_argument("--commit", help="what is measured; asked of git if left out")
    options = parser.parse_args(args)
    if missing := [folder for folder in options.join if not (folder / table.FIGURES).is_file()]:
        parser.error(f"--join {missing[0]}: there is no {table.FIGURES} in it")
    options.models = {}
    for pair in options.model:
        name, found, file = pair.partition("=")
        path = Path(file).expanduser().absolute()
        if not found or not path.is_file():
            parser.error(f"--model {pair}: write NAME=FILE with a GGUF file that is there")
        options.models[name] = path
    if options.rehearse and not options.models:
        options.models = {"8b": resolve_model(DEMO), "smollm2": resolve_model(DEMO)}
    if not options.models and not options.join:
        parser.error("no --model is given, and 8b is the least")
    options.parts = options.parts.split(",")
    if unknown := [part for part in options.parts if part not in table.PARTS]:
        parser.error(f"there is no part {unknown[0]}; there are: {', '.join(table.PARTS)}")
    return options


def minutes(text: str) -> float:
    """Some time. Raises ArgumentTypeError, saying what would be right."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found <= MOST_MIN:
        raise argparse.ArgumentTypeError(f"{text}: write minutes above 0, up to {MOST_MIN:g}")
    return found


def count(text: str) -> int:
    """Of cards. Raises ArgumentTypeError, saying what would be right."""
    if not text.isdecimal() or not 2 <= int(text) <= MOST_CARDS:
        raise argparse.ArgumentTypeError(f"{text}: write a number of cards from 2 to {MOST_CARDS}")
    return int(text)


def find_room(options: argparse.Namespace) -> tuple[Room, table.Machine]:
    """The cards, and what is to be said of them. Ends where there are none."""
    count = options.cards
    cards, env = ((), {}) if options.rehearse else find_cards(count)
    virtual = (REHEARSAL_CARD,) * (count or 2) if options.rehearse else ()
    room = Room(
        out=options.out,
        models=options.models,
        cards=tuple(card.name for card in cards) or tuple(f"RPC{i}" for i in range(len(virtual))),
        env=env,
        parted=any(card.parts > 1 for card in cards),
        llama_bench=options.llama_bench or ("" if virtual else "llama_bench"),
        quick=options.quick,
        virtual=virtual,
    )
    command = re.sub(r"^\S+", "python -m tests.benchmarks.gpu", table.without_folders(" ".join(sys.argv)))
    return room, describe_machine(cards, len(virtual), command, options.commit or _commit())


def _commit() -> str:
    try:
        asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return asked.stdout.strip()


def main() -> int:
    """Measure; 1 if a part was cut, failed or had no time, or a figure does not hold."""
    options = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        options.out = options.out.absolute()
        with open_locked(options.out / "lock", os.O_CREAT, 0o600), TemporaryDirectory() as home:
            if options.join:
                sheets = table.read((*options.join, options.out))
                table.write(options.out, sheets)
                return 1 if any(sheet.short() for sheet in sheets) else 0
            os.environ[HOME_VARIABLE] = home
            return measure(options)
    except BlockingIOError:
        sys.exit(f"another run writes to {options.out}; give another folder, or wait for its end")
    except OSError as error:
        sys.exit(f"{error.filename or options.out}: {error.strerror}; give a folder that can be written")


def measure(options: argparse.Namespace) -> int:
    """All parts one after another."""
    deadline = time.monotonic() + 60 * (options.within or MOST_MIN)
    room, machine = find_room(options)
    done = {part for sheet in table.read([room.out]) if sheet.machine.place == machine.place for part in sheet.done()}
    table.append(room.out / table.FIGURES, machine)
    print(f"{machine.place}: {', '.join(room.cards)} · models: {', '.join(room.models)}", flush=True)
    left_out = False
    for part in options.parts:
        left_s = min(60 * options.minutes, deadline - time.monotonic())
        if not running.there(part) or (options.resume and part in done):
            continue
        if left_s < SHORTEST_S:
            print(f"{part}: no time is left for it; --resume measures it", flush=True)
            left_out = True
            continue
        try:
            running.run(part, room, left_s)
        finally:
            table.write(room.out, table.read([room.out]))
    return 1 if left_out or any(sheet.short() for sheet in table.read([room.out])) else 0


if __name__ == "__main__":
    sys.exit(main())
