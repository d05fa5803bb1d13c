"""An A/B with fresh loads, and llama-bench's ratio of the same pair beside it; `compared` serves other parts too.

llama-bench is asked for prompt and reply together (`-pg`), as a reply is made: a prompt alone,
again and again, and a reply on an empty context go other ways on a card. It is loaded anew in
the same order of blocks, and judged by the same statistics.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tests.benchmarks.gpu import llama_bench
from tests.benchmarks.gpu.room import Figure, Room
from workbench.domain.comparison import Effect, compare
from workbench.domain.layout import Layout
from workbench.domain.prompts import Prompt, PromptSet, Synthetic
from workbench.domain.run import Run
from workbench.domain.samples import ORDERS, Arm, Planned, Sample
from workbench.domain.timing import Timing
from workbench.domain.wording import NAMES
from workbench.lab.ab import Experiment, meter_reader
from workbench.lab.kit import RealKit
from workbench.lab.provenance import describe

PART = "ab"
WHOLE = "prompt and reply together"
BY_BENCH = f"{WHOLE}, by llama-bench"


class Effort(msgspec.Struct, frozen=True):
    """Tokens of a prompt and a reply, how often a load is asked, and the blocks of loads, ours and llama-bench's."""

    prefill: int
    decode: int
    repeats: int
    blocks: int
    bench_blocks: int

    @classmethod
    def of(cls, room: Room) -> "Effort":
        """Two blocks are the least that give an interval."""
        if room.virtual:
            return cls(64, 8, 1, 2, 2)
        return cls(512, 64, 3, 2, 2) if room.quick else cls(512, 64, 8, 4, 4)

    def prompts(self) -> PromptSet:
        """As llama-bench counts, a reply's first token belongs to the prompt."""
        one = Synthetic(prompt_tokens=self.prefill, max_tokens=self.decode + 1)
        return PromptSet(name="one", prompts=(Prompt(id="one", synthetic=one, repeat=self.repeats),))


def measure(room: Room) -> Iterator[Figure]:
    """Layer against tensor."""
    layer, tensor = (named(room.layout("8b", room.split(mode), n_ctx=2048), mode) for mode in ("layer", "tensor"))
    ours = Figure(part=PART, what=WHOLE)
    for figure in compared(room, Effort.of(room), PART, "tensor over layer", layer, tensor):
        if figure.what == WHOLE:
            ours = figure
        yield _within(figure, ours) if figure.what == BY_BENCH else figure


def _within(theirs: Figure, ours: Figure) -> Figure:
    """llama-bench's, held against our interval where there is one."""
    low, high = ours.detail.get("low"), ours.detail.get("high")
    if low is None or high is None or theirs.value is None:
        return theirs
    limit, holds = f"within {low:.4f} to {high:.4f}", low <= theirs.value <= high
    return msgspec.structs.replace(theirs, limit=limit, holds=holds)


def named(layout: Layout, name: str) -> Layout:
    """The same under another name."""
    return msgspec.structs.replace(layout, name=name)


def compared(room: Room, effort: Effort, part: str, case: str, a: Layout, b: Layout) -> Iterator[Figure]:
    """B over A by fresh loads, and by llama-bench."""
    case = f"8b, {case}"
    run = _experiment(room, effort, a, b)
    for effect in compare(run.samples):
        yield _figure(part, NAMES[effect.metric], case, effect, cautions=_left_out(run))
    yield _figure(part, WHOLE, case, _whole_effect(run.samples))
    if not room.llama_bench:
        yield Figure(part=part, what=BY_BENCH, case=case, note="not measured: no llama-bench here")
        return
    yield _figure(part, BY_BENCH, case, _whole_effect(_bench_samples(room, effort, a, b)))


def _figure(part: str, what: str, case: str, effect: Effect, **detail: Any) -> Figure:
    note: str = effect.verdict
    if effect.low is not None and effect.floor is not None:
        note += f", 95 % interval {effect.low:.4f} to {effect.high:.4f}, noise of equal loads {effect.floor:.4f}"
    value = None if effect.ratio is None else round(effect.ratio, 4)
    return Figure(part=part, what=what, case=case, value=value, note=note,
                  detail={"by_block": effect.by_block, "low": effect.low, "high": effect.high,
                          "more_blocks": effect.more_blocks, **detail})  # fmt: skip


def _left_out(run: Run) -> list[str]:
    return [sample.left_out for sample in run.samples if sample.left_out is not None]


def _experiment(room: Room, effort: Effort, a: Layout, b: Layout) -> Run:
    kit = RealKit(spare=False)
    folder = room.out / f"run-{a.name}-{b.name}-{time.strftime('%H%M%S')}"
    where = describe((a, b))
    experiment = Experiment.begin(
        kit, (a, b), effort.prompts(), lambda event: None, meter_reader(kit),
        blocks=effort.blocks, folder=folder, describe=lambda _: where,
    )  # fmt: skip
    experiment.start()
    outcome = experiment.wait()
    kit.close()
    if failures := [f"{arm.name}: {arm.failure}" for arm in outcome.arms if arm.failure is not None]:
        raise RuntimeError(f"an arm did not load: {'; '.join(failures)}")
    return experiment.run


def _whole_effect(samples: Iterable[Sample]) -> Effect:
    """The effect on the rate of all tokens, prompt and reply, over all of the time."""
    counted = [
        msgspec.structs.replace(sample, timing=_whole(sample.timing)) for sample in samples if sample.timing is not None
    ]
    return next(effect for effect in compare(counted) if effect.metric == "prefill")


def _whole(timing: Timing) -> Timing:
    return msgspec.structs.replace(
        timing,
        evaluated_tokens=timing.evaluated_tokens + timing.decoded_tokens,
        prefill_s=timing.prefill_s + timing.decode_s,
        decoded_tokens=0,
    )


def _bench_samples(room: Room, effort: Effort, a: Layout, b: Layout) -> Iterator[Sample]:
    """llama-bench's repeats as samples; each load is a process."""
    layouts: dict[Arm, Layout] = {"A": a, "B": b}
    tests, tokens = f"-p 0 -n 0 -pg {effort.prefill},{effort.decode}", effort.prefill + effort.decode
    none = Timing(
        prompt_tokens=tokens, evaluated_tokens=tokens, tokens=0, decoded_tokens=0, ttft_s=0, prefill_s=0, decode_s=0
    )
    for block in range(effort.bench_blocks):
        for slot, arm in enumerate(ORDERS[block % 2]):
            (row,) = llama_bench.rows(room.llama_bench, layouts[arm], tests, effort.repeats)
            for repeat, rate in enumerate(row["samples_ts"]):
                planned = Planned(block=block, slot=slot, arm=arm, prompt="one", repeat=repeat, salt=0)
                timing = msgspec.structs.replace(none, prefill_s=tokens / rate)
                yield Sample(planned=planned, load=block * 4 + slot, at=0.0, split="", timing=timing)
