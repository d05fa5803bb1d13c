"""Whether the verdicts can be believed: many A/Bs with known truth, through the code that runs real ones.

`python -m tests.benchmarks.calibration [--n 2000] [--blocks 2,4,8] [--seed 1]` prints one JSON
object. Engines follow a script with simulated timings: each load is 3 % faster or slower than
the last, each sample 2 %. `coverage` is how often the 95 % interval holds the true ratio,
`false_verdicts` how often equal arms are called different, `right_verdicts` how often a true
5 % is called faster.
"""

import argparse
import json
import math
import random
from collections.abc import Callable

import msgspec

from workbench.domain.comparison import METRICS, Effect, Metric, compare
from workbench.domain.conversation import Sampling
from workbench.domain.layout import Layout
from workbench.domain.prompts import Prompt, PromptSet
from workbench.domain.run import ArmHeader, Build, Machine, Run, RunHeader
from workbench.domain.samples import Conditions, Method, plan_ab
from workbench.domain.timing import Timing
from workbench.engines.engine import Engine, EngineDied, Loaded, LoadProgress, Reply, Request
from workbench.engines.scripted import MODEL, Script, ScriptedEngine
from workbench.lab.aside import Aside
from workbench.lab.foresight import Blind
from workbench.lab.kit import Kit
from workbench.lab.replay import Runner
from workbench.store.runs import Record, RunLog

BETWEEN_LOADS = 0.03
WITHIN_LOAD = 0.02
TRUE_RATIO = 1.05
PROMPTS = PromptSet(
    name="simulated",
    defaults=Sampling(max_tokens=64),
    prompts=tuple(Prompt(id=name, text=f"Write on {name}.") for name in ("rivers", "tides", "bread", "primes")),
)
BASE = {"prefill": 1000.0, "decode": 60.0, "ttft": 5.0}


class SimulatedEngine(ScriptedEngine):
    """Answers at once, with the timings of an engine of `speed` whose loads and samples are noisy."""

    def __init__(self, script: Script, layout: Layout, chance: random.Random, speed: float) -> None:
        super().__init__(script, layout, lambda error: None)
        self._chance = chance
        self._speed = speed
        self._load: dict[Metric, float] = {}

    def load(self, on_progress: Callable[[LoadProgress], None]) -> Loaded:
        self._load = {metric: self._chance.gauss(0, BETWEEN_LOADS) for metric in METRICS}
        return self._loaded()

    def chat(self, request: Request, on_text: Callable[[str], None]) -> Reply:
        rates = {
            metric: BASE[metric] * self._speed * math.exp(self._load[metric] + self._chance.gauss(0, WITHIN_LOAD))
            for metric in METRICS
        }
        tokens, prompt = request.sampling.max_tokens, 40
        timing = Timing(
            prompt_tokens=prompt,
            evaluated_tokens=prompt,
            tokens=tokens,
            decoded_tokens=tokens - 1,
            ttft_s=1 / rates["ttft"],
            prefill_s=prompt / rates["prefill"],
            decode_s=(tokens - 1) / rates["decode"],
        )
        return Reply(text="", stop_reason="max_tokens", timing=timing)


class SimulatedKit:
    """Opens simulated engines; a layout named `B` runs at `ratio` times A's speed."""

    foresight = Blind()

    def __init__(self, chance: random.Random, ratio: float) -> None:
        self._script = Script(model=msgspec.structs.replace(MODEL, path=__file__))
        self._chance = chance
        self._ratio = ratio

    def open_engine(self, layout: Layout, on_death: Callable[[EngineDied], None], beside: int = 0) -> Engine:
        return SimulatedEngine(self._script, layout, self._chance, self._ratio if layout.name == "B" else 1.0)

    def stand_beside(self, serving: Layout, loaded: Loaded, following: Layout) -> bool:
        return False

    def aside(self, size: int) -> Aside:
        raise AssertionError("a run carries no conversation over")

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass


class Unwritten(RunLog):
    """A log that keeps nothing: the runner has the samples."""

    def __init__(self) -> None:
        pass

    def append(self, record: Record) -> None:
        pass

    def update(self, header: RunHeader) -> None:
        pass


class Nothing:
    """Reads no meters."""

    def begin(self) -> None:
        pass

    def end(self) -> Conditions:
        return Conditions()

    def close(self) -> None:
        pass


def header_of(blocks: int, method: Method = "fresh", prompts: PromptSet = PROMPTS) -> RunHeader:
    return RunHeader(
        version=1,
        id="simulated",
        created=0.0,
        kind="ab",
        method=method,
        blocks=blocks,
        warm_ups=2,
        arms=(
            ArmHeader(arm="A", layout=Layout(name="A", model="demo:smollm2")),
            ArmHeader(arm="B", layout=Layout(name="B", model="demo:smollm2")),
        ),
        prompts=prompts,
        machine=Machine(host="nowhere", cpu="", cores=1, memory_mib=1, system=""),
        build=Build(versions={}),
        plan=plan_ab(prompts, blocks, method, offset=0),
    )


def simulate(kit: Kit, blocks: int, method: Method = "fresh") -> Run:
    """One A/B, start to end."""
    run = Run(header=header_of(blocks, method))
    runner = Runner(kit, Unwritten(), run, lambda layout, loaded: Nothing(), lambda event: None)
    runner.take(lambda block: None)
    return runner.run


def experiment(chance: random.Random, ratio: float, blocks: int) -> tuple[Effect, ...]:
    return compare(simulate(SimulatedKit(chance, ratio), blocks).samples)


def calibrate(n: int, blocks: int, seed: int) -> dict[str, dict[str, float]]:
    """Shares over `n` A/As and `n` A/Bs with a true 5 %, by metric."""
    chance = random.Random(f"{seed}.{blocks}")
    covered = dict.fromkeys(METRICS, 0)
    false = dict.fromkeys(METRICS, 0)
    right = dict.fromkeys(METRICS, 0)
    for ratio in (1.0, TRUE_RATIO):
        for _ in range(n):
            for effect in experiment(chance, ratio, blocks):
                assert effect.low is not None
                assert effect.high is not None
                covered[effect.metric] += effect.low <= ratio <= effect.high
                if ratio == 1.0:
                    false[effect.metric] += effect.verdict in ("faster", "slower")
                else:
                    right[effect.metric] += effect.verdict == "faster"
    return {
        metric: {
            "coverage": covered[metric] / (2 * n),
            "false_verdicts": false[metric] / n,
            "right_verdicts": right[metric] / n,
        }
        for metric in METRICS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--blocks", default="2,4,8")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    figures = {blocks: calibrate(arguments.n, int(blocks), arguments.seed) for blocks in arguments.blocks.split(",")}
    print(json.dumps({"n": arguments.n, "true_ratio": TRUE_RATIO, "blocks": figures}, indent=2))


if __name__ == "__main__":
    main()
