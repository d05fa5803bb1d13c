"""Two runs made on different machines, joined by layout and prompt."""

import math
import statistics
from collections.abc import Sequence

import msgspec

from workbench.domain.comparison import METRICS, Metric, amount, factor, speed
from workbench.domain.run import Run
from workbench.domain.samples import Arm, Sample


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """One layout and metric on two machines.

    Speeds are those of an A/B's arms, tok/s (1/s for the first token), over the common prompts and
    the loads that answered all of them. `ratio` is second over first, with a 95 % interval by Welch's t on
    the loads, which are not paired; None below two loads on a side.
    """

    layout: str
    metric: Metric
    first: float
    second: float
    loads: tuple[int, int]
    ratio: float
    low: float | None
    high: float | None


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """What two runs have in common, and what to be careful about."""

    rows: tuple[Joined, ...]
    prompts: tuple[str, ...]
    cautions: tuple[str, ...]


def join(first: Run, second: Run) -> Join:
    """Join two runs by the names of their layouts and by prompts that are the same in both."""
    theirs = {prompt.id: prompt for prompt in second.header.prompts.prompts}
    prompts = tuple(prompt.id for prompt in first.header.prompts.prompts if theirs.get(prompt.id) == prompt)
    rows = []
    for layout, ours, other in _common_arms(first, second):
        for metric in METRICS:
            row = _row(layout, metric, first.of(ours), second.of(other), prompts)
            if row is not None:
                rows.append(row)
    return Join(rows=tuple(rows), prompts=prompts, cautions=tuple(_cautions(first, second, prompts)))


def _common_arms(first: Run, second: Run) -> list[tuple[str, Arm, Arm]]:
    """Arms of the same name; where a name is borne by several, those of the same split."""
    out = []
    for ours in first.header.arms:
        named = [other for other in second.header.arms if other.layout.name == ours.layout.name]
        same = [other for other in named if other.layout.split == ours.layout.split]
        twice = max(len(named), sum(1 for each in first.header.arms if each.layout.name == ours.layout.name)) > 1
        out += [(ours.label if twice else ours.layout.name, ours.arm, other.arm) for other in same or named]
    return out


def _row(
    layout: str, metric: Metric, ours: Sequence[Sample], theirs: Sequence[Sample], prompts: Sequence[str]
) -> Joined | None:
    of_ours, of_theirs = _by_load(ours, metric, prompts), _by_load(theirs, metric, prompts)
    speeds = [
        speed((each for each in samples if each.load in loads and each.planned.prompt in prompts), metric)
        for samples, loads in ((ours, of_ours), (theirs, of_theirs))
    ]
    if speeds[0] is None or speeds[1] is None:
        return None
    first, second = list(of_ours.values()), list(of_theirs.values())
    mean = statistics.fmean(second) - statistics.fmean(first)
    low = high = None
    if min(len(first), len(second)) > 1 and statistics.variance(first) + statistics.variance(second) > 0:
        from scipy import stats

        found = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
        low, high = factor(found.low), factor(found.high)
    return Joined(
        layout=layout,
        metric=metric,
        first=speeds[0],
        second=speeds[1],
        loads=(len(first), len(second)),
        ratio=factor(mean),
        low=low,
        high=high,
    )


def _by_load(samples: Sequence[Sample], metric: Metric, prompts: Sequence[str]) -> dict[int, float]:
    """The mean log speed of each load that answered all prompts, by the load's number."""
    loads: dict[int, dict[str, tuple[float, float]]] = {}
    for sample in samples:
        if sample.left_out is None and sample.timing is not None and sample.planned.prompt in prompts:
            found = amount(sample.timing, metric)
            if found is not None:
                of_load = loads.setdefault(sample.load, {})
                had = of_load.get(sample.planned.prompt, (0.0, 0.0))
                of_load[sample.planned.prompt] = (had[0] + found[0], had[1] + found[1])
    return {
        load: statistics.fmean(math.log(counted / seconds) for counted, seconds in of_load.values())
        for load, of_load in loads.items()
        if of_load and len(of_load) == len(prompts)
    }


def _cautions(first: Run, second: Run, prompts: Sequence[str]) -> list[str]:
    out = []
    if not prompts:
        out.append("the runs have no prompt in common")
    elif len(prompts) < len(first.header.prompts.prompts):
        out.append(f"only these prompts are the same in both: {', '.join(prompts)}")
    common = _common_arms(first, second)
    if not common:
        out.append("the runs have no layout of the same name")
    for layout, ours, other in common:
        a, b = first.header.arm(ours), second.header.arm(other)
        if (a.layout.split, a.layout.context) != (b.layout.split, b.layout.context):
            out.append(f"{layout} is not the same layout in both")
        if a.resolved and b.resolved and a.resolved.model.header_sha256 != b.resolved.model.header_sha256:
            out.append(f"{layout} has another model in each")
    ours_built, theirs_built = first.header.build.versions, second.header.build.versions
    differ = sorted(package for package, _ in ours_built.items() ^ theirs_built.items())
    out += [
        f"{package}: {ours_built.get(package, 'none')} and {theirs_built.get(package, 'none')}"
        for package in dict.fromkeys(differ)
    ]
    return [*out, *first.problems, *second.problems]
