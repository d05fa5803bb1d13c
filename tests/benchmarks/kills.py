"""Kills at random moments: a real `workbench ab` loses at most the sample in flight, and its rest comes later.

`python -m tests.benchmarks.kills [--n 50] [--seed 1] [--blocks 2]` starts an A/B of two small
layouts, kills it with SIGKILL at a random moment of its life, goes on with `--resume`, kills
again, until `n` kills are done; each run is then let finish and its samples are counted.
Prints one JSON object; `once` of `planned` samples are there exactly once.
"""

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import psutil

from tests.models import write_model
from workbench.domain.samples import Sample
from workbench.store.runs import RunError, read_run

LAYOUT = """\
name: {name}
model: {model}
split: {{tensor_split: {shares}, cards: {{virtual: [200MiB, 200MiB]}}}}
context: {{n_ctx: 512}}
"""
PROMPTS = """\
name: three
defaults: {max_tokens: 24}
prompts:
  - {id: rivers, text: Write on rivers.}
  - {id: tides, text: Why are there two tides a day?}
  - {id: made, synthetic: {prompt_tokens: 64, max_tokens: 24}}
"""
KILLS_A_RUN = 5
LONGEST_LIFE_S = 8.0
END_WITHIN_S = 5.0


class Tally:
    """What came of all runs."""

    def __init__(self) -> None:
        self.kills = 0
        self.runs = 0
        self.planned = 0
        self.once = 0
        self.lost_lines = 0
        self.left_processes = 0


def start(folder: Path, run: Path, blocks: int) -> "subprocess.Popen[bytes]":
    begin = ["a", "b", "--prompts", "three", "--blocks", str(blocks), "--out", str(run)]
    args = ["--resume", str(run)] if (run / "run.json").exists() else begin
    env = {**os.environ, "WORKBENCH_HOME": str(folder / "home")}
    return subprocess.Popen(
        [sys.executable, "-m", "workbench", "ab", *args],
        cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def kill_after(process: "subprocess.Popen[bytes]", seconds: float) -> tuple[bool, int]:
    """Whether it was alive to be killed, and how many of its processes outlived it for long."""
    try:
        process.wait(seconds)
        return False, 0
    except subprocess.TimeoutExpired:
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(children, END_WITHIN_S)
    return True, len(alive)


def lines_by_key(run: Path) -> "collections.Counter[str]":
    """How many whole lines each sample has, by the file alone."""
    counted: collections.Counter[str] = collections.Counter()
    for line in (run / "samples.jsonl").read_bytes().split(b"\n"):
        try:
            counted[msgspec.json.decode(line, type=Sample).planned.key] += 1
        except (msgspec.DecodeError, ValueError):
            continue
    return counted


def one_run(folder: Path, number: int, blocks: int, kills: int, chance: random.Random, tally: Tally) -> None:
    run = folder / f"run-{number}"
    done = 0
    while done < kills:
        killed, left = kill_after(start(folder, run, blocks), chance.uniform(0.2, LONGEST_LIFE_S))
        tally.left_processes += left
        done += killed
        if not killed:
            break
    tally.kills += done
    last = start(folder, run, blocks)
    if last.wait() != 0:
        raise SystemExit(f"the run did not go on: exit {last.returncode}")
    try:
        read = read_run(run)
    except RunError as error:
        raise SystemExit(str(error)) from error
    lines = lines_by_key(run)
    tally.runs += 1
    tally.planned += len(read.header.plan)
    tally.once += sum(lines[planned.key] == 1 for planned in read.header.plan)
    tally.lost_lines += len(read.problems)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=2)
    arguments = parser.parse_args()
    chance, tally, begun = random.Random(arguments.seed), Tally(), time.monotonic()
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder / "tiny.gguf", seed=1)
        for sub in ("layouts", "prompts"):
            (folder / sub).mkdir()
        for layout, shares in (("a", "[1, 1]"), ("b", "[3, 1]")):
            text = LAYOUT.format(name=layout, model=model, shares=shares)
            (folder / "layouts" / f"{layout}.yaml").write_text(text)
        (folder / "prompts" / "three.yaml").write_text(PROMPTS)
        while tally.kills < arguments.n:
            wanted = min(KILLS_A_RUN, arguments.n - tally.kills)
            one_run(folder, tally.runs, arguments.blocks, wanted, chance, tally)
            print(f"{tally.kills} kills, {tally.runs} runs", file=sys.stderr)
    print(json.dumps({**vars(tally), "seconds": round(time.monotonic() - begun)}))


if __name__ == "__main__":
    main()
