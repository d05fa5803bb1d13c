"""Speed against what the context holds: one point a prompt and arm."""

from collections.abc import Sequence

import msgspec

from workbench.domain.comparison import METRICS, Metric, speed
from workbench.domain.prompts import PromptSet
from workbench.domain.run import Run
from workbench.domain.samples import Arm


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt of one arm: tokens in the context before the reply, and the metric's speed.

    Speeds are tok/s; for the first token seconds.
    """

    prompt: str
    arm: Arm
    tokens: int
    value: float


def has_lengths(prompts: PromptSet) -> bool:
    """Whether a set is made to show how the speed falls: depths, or synthetic prompts of several lengths."""
    made = {each.synthetic.prompt_tokens for each in prompts.prompts if each.synthetic is not None}
    return any(prompt.depth for prompt in prompts.prompts) or len(made) > 1


def curve(run: Run, metric: Metric) -> tuple[Point, ...]:
    """The points of both arms, by length."""
    points = []
    for arm in run.header.arms:
        of_arm = run.of(arm.arm)
        for prompt in run.header.prompts.prompts:
            samples = [sample for sample in of_arm if sample.planned.prompt == prompt.id]
            value = speed(samples, metric)
            tokens = [sample.timing.prompt_tokens for sample in samples if sample.timing is not None]
            if value is not None and tokens:
                shown = 1 / value if metric == "ttft" else value
                points.append(Point(prompt=prompt.id, arm=arm.arm, tokens=round(_mean(tokens)), value=shown))
    return tuple(sorted(points, key=lambda point: (point.arm, point.tokens)))


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt: tokens in the context before the reply, and each metric's value by arm, None where unknown."""

    prompt: str
    tokens: int
    values: dict[Metric, tuple[float | None, ...]]


def lengths(run: Run) -> tuple[Length, ...]:
    """The same as a table, the shortest first; empty for a set that is not made to show it."""
    if not has_lengths(run.header.prompts):
        return ()
    found = {
        metric: {(point.prompt, point.arm): point for point in curve(run, metric)} for metric in METRICS
    }
    tokens = {name: point.tokens for points in found.values() for (name, _), point in points.items()}
    arms = [arm.arm for arm in run.header.arms]
    rows = [
        Length(
            prompt=name,
            tokens=count,
            values={
                metric: tuple(point.value if (point := points.get((name, arm))) else None for arm in arms)
                for metric, points in found.items()
            },
        )
        for name, count in tokens.items()
    ]
    return tuple(sorted(rows, key=lambda row: row.tokens))


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
