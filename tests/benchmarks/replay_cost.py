"""What replaying costs: the decode rate of a replay over that of `workbench run`, alternating.

`python -m tests.benchmarks.replay_cost [--model GGUF] [--cards CUDA0,CUDA1] [--env NAME=VALUE]
[--pairs 8] [--tokens 192]` prints one JSON object. Both load the same layout anew in each pair
and answer a prompt of the same length with the same count of tokens: the command in its own
process, the replay as an A/B takes its samples, warmed up and with its meters. `ratio` is the
median of the pairs' ratios, `interval` that of its 95 % bootstrap.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy import stats

from workbench.domain.comparison import speed
from workbench.domain.conversation import Message, Sampling
from workbench.domain.layout import Context, Layout
from workbench.domain.prompts import Prompt, PromptSet
from workbench.domain.samples import unique
from workbench.domain.split import Split, Virtual
from workbench.lab.ab import Experiment, meter_reader
from workbench.lab.kit import RealKit
from workbench.lab.provenance import describe
from workbench.store.places import HOME_VARIABLE
from workbench.store.writing import save_layout

PROMPTS = (
    "Write a long story of a river, from the hills to the sea, with all the towns on its way.",
    "Count from one to three hundred, one number after another, and leave none out.",
    "List a hundred words with no order among them.",
)
"""The command lets a model end its reply: the first of these whose reply is long enough is used."""


def by_command(file: Path, prompt: str, tokens: int, salt: int = 0) -> tuple[float, int]:
    """Decode rate and count of tokens of `workbench run`, asked what a replay would ask."""
    (message,) = unique((Message(role="user", content=prompt),), salt)
    asked = ["-p", message.content, "--max-tokens", str(tokens), "--temperature", "0", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "run", str(file), *asked], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"workbench run failed: {done.stderr.strip()[-300:]}")
    told = json.loads(done.stdout)
    return float(told["decode_tok_s"]), int(told["tokens"])


def by_replay(layout: Layout, prompt: str, folder: Path) -> Callable[[int, int], float]:
    """The decode rate of one load of a replay, by its number and the count of tokens."""
    where = describe((layout,))

    def rate(number: int, tokens: int) -> float:
        prompts = PromptSet(
            name="one", defaults=Sampling(max_tokens=tokens, temperature=0), prompts=(Prompt(id="one", text=prompt),)
        )
        kit = RealKit(spare=False)
        experiment = Experiment.begin(
            kit, (layout,), prompts, lambda event: None, meter_reader(kit),
            blocks=1, folder=folder / f"replay-{number}", describe=lambda _: where,
        )  # fmt: skip
        experiment.start()
        experiment.wait()
        kit.close()
        found = speed(experiment.run.samples, "decode")
        if found is None:
            raise RuntimeError("the replay has no sample: " + "; ".join(experiment.outcome.cautions))
        return found

    return rate


def replay_cost(layout: Layout, pairs: int, tokens: int) -> dict[str, Any]:
    """Rates of both, pair by pair, and the median of their ratios. RuntimeError where one of them fails."""
    runs, replays = [], []
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = save_layout(layout, folder / "layout.yaml")
        for prompt in PROMPTS:
            _, made = by_command(file, prompt, tokens)
            if made == tokens:
                break
        replay = by_replay(layout, prompt, folder)
        for pair in range(pairs):
            if pair % 2:
                replays.append(replay(pair, made))
            runs.append(by_command(file, prompt, made, pair)[0])
            if not pair % 2:
                replays.append(replay(pair, made))
    ratios = [ours / theirs for ours, theirs in zip(replays, runs, strict=True)]
    interval = stats.bootstrap((ratios,), np.median, rng=1).confidence_interval
    return {
        "split": layout.split.label(),
        "tokens": made,
        "pairs": pairs,
        "run_tok_s": round(statistics.median(runs), 2),
        "replay_tok_s": round(statistics.median(replays), 2),
        "ratio": round(statistics.median(ratios), 4),
        "interval": [round(float(interval.low), 4), round(float(interval.high), 4)],
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo:smollm2")
    parser.add_argument("--cards")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=192)
    arguments = parser.parse_args()
    cards = tuple(arguments.cards.split(",")) if arguments.cards else Virtual(("600MiB", "600MiB"))
    count = len(cards.virtual if isinstance(cards, Virtual) else cards)
    layout = Layout(
        name="replay-cost",
        model=arguments.model,
        split=Split(tensor_split=(1.0,) * count, cards=cards),
        context=Context(n_ctx=2048),
        env=dict(pair.split("=", 1) for pair in arguments.env),
    )
    with TemporaryDirectory() as home:
        os.environ[HOME_VARIABLE] = home
        print(json.dumps(replay_cost(layout, arguments.pairs, arguments.tokens)))


if __name__ == "__main__":
    main()
