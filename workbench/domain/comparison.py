"""Two arms compared: effects by block, their interval, the noise floor, and the verdict.

Every ratio is of speeds, B over A: above 1, B is faster, for the time to the first token too.
The load is the unit: a block of four loads, ABBA or BAAB, gives one effect.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from workbench.domain.samples import Arm, Method, Sample
from workbench.domain.timing import Timing

Metric = Literal["prefill", "decode", "ttft"]
METRICS: tuple[Metric, ...] = ("prefill", "decode", "ttft")
Verdict = Literal["faster", "slower", "can't tell apart", "too few blocks"]
CONFIDENCE = 0.95
MOST_BLOCKS = 1000
"""How far ahead it is worth saying how many more blocks would settle it."""
_LARGEST_LOG = 700.0

_Sum = tuple[float, float]
"""Tokens (or first tokens) and seconds."""


class LoadNoise(msgspec.Struct, frozen=True, kw_only=True):
    """How much loads of one layout differ: sd of one load's log speed, from `pairs` pairs of loads."""

    sd: float
    pairs: int


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of B against A.

    `by_block` has the log ratio of each block that is whole, `numbers` which these are (from 0).
    `low` and `high` are the 95 % interval of `ratio`. `floor` is the A/A noise floor as a log
    ratio: what two equal arms may show with as many blocks. `more_blocks` would settle it if
    what is seen now is true; None where it is settled, or where nothing below MOST_BLOCKS would.
    """

    metric: Metric
    by_block: tuple[float, ...]
    numbers: tuple[int, ...] = ()
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    verdict: Verdict = "too few blocks"
    more_blocks: int | None = None


def factor(log: float) -> float:
    """e to the power of a log ratio, as far as a float goes: an interval of very different blocks is wide."""
    return math.exp(min(log, _LARGEST_LOG))


def amount(timing: Timing, metric: Metric) -> _Sum | None:
    """What the metric counts and the seconds it took; None where there was nothing to count."""
    counted, seconds = {
        "prefill": (timing.evaluated_tokens, timing.prefill_s),
        "decode": (timing.decoded_tokens, timing.decode_s),
        "ttft": (1, timing.ttft_s),
    }[metric]
    return (float(counted), seconds) if counted > 0 and seconds > 0 else None


def speed(samples: Iterable[Sample], metric: Metric) -> float | None:
    """Sum of tokens over sum of time (1/s for the first token) of the samples that count."""
    amounts = [found for sample in samples if (found := _amount(sample, metric)) is not None]
    seconds = sum(each[1] for each in amounts)
    return sum(each[0] for each in amounts) / seconds if seconds > 0 else None


def compare(
    samples: Sequence[Sample], method: Method = "fresh", known: Mapping[Metric, LoadNoise] | None = None
) -> tuple[Effect, ...]:
    """The effect of each metric. `known` is the noise between fresh loads, which only resident runs need."""
    return tuple(_effect(samples, metric, method, (known or {}).get(metric)) for metric in METRICS)


def _effect(samples: Sequence[Sample], metric: Metric, method: Method, known: LoadNoise | None) -> Effect:
    sums = _sums(in_turn(samples) if method == "fresh" else samples, metric)
    found = {block: effect for block in sorted(sums) if (effect := _block_effect(sums[block])) is not None}
    effects = list(found.values())
    out = Effect(metric=metric, by_block=tuple(effects), numbers=tuple(found))
    if not effects:
        return out
    mean = statistics.fmean(effects)
    out = msgspec.structs.replace(out, ratio=factor(mean))
    if len(effects) < 2:
        return out
    sd = statistics.stdev(effects)
    half = _half_width(sd, len(effects), len(effects) - 1)
    noise = _noise(sums) if method == "fresh" else known
    floor = None if noise is None else _floor(noise, len(effects), method)
    real = floor is not None and abs(mean) > half and abs(mean) > floor
    more = None
    if not real and method == "fresh" and noise is not None:
        more = _more_blocks(mean, sd, noise, len(effects))
    return msgspec.structs.replace(
        out,
        low=factor(mean - half),
        high=factor(mean + half),
        floor=floor,
        verdict=("faster" if mean > 0 else "slower") if real else "can't tell apart",
        more_blocks=more,
    )


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What was known after a block: its own ratio, and the mean so far with its 95 % interval.

    `block` counts from 0. `low` and `high` are None after the first.
    """

    block: int
    ratio: float
    mean: float
    low: float | None
    high: float | None


def course(effect: Effect) -> tuple[Step, ...]:
    """How the interval closed in, block by block."""
    out = []
    for n in range(1, len(effect.by_block) + 1):
        logs = effect.by_block[:n]
        mean = statistics.fmean(logs)
        half = _half_width(statistics.stdev(logs), n, n - 1) if n > 1 else None
        out.append(
            Step(
                block=effect.numbers[n - 1],
                ratio=factor(logs[-1]),
                mean=factor(mean),
                low=None if half is None else factor(mean - half),
                high=None if half is None else factor(mean + half),
            )
        )
    return tuple(out)


def load_noise(samples: Sequence[Sample]) -> dict[Metric, LoadNoise]:
    """How much fresh loads of one arm differed within a block, by metric."""
    whole = in_turn(samples)
    found = {metric: _noise(_sums(whole, metric)) for metric in METRICS}
    return {metric: noise for metric, noise in found.items() if noise is not None}


def pool(noises: Iterable[Mapping[Metric, LoadNoise]]) -> dict[Metric, LoadNoise]:
    """The noise of several runs together, weighted by their pairs."""
    squares: dict[Metric, float] = defaultdict(float)
    pairs: dict[Metric, int] = defaultdict(int)
    for noise in noises:
        for metric, each in noise.items():
            squares[metric] += each.sd**2 * each.pairs
            pairs[metric] += each.pairs
    return {metric: LoadNoise(sd=math.sqrt(squares[metric] / count), pairs=count) for metric, count in pairs.items()}


def out_of_turn(samples: Iterable[Sample]) -> frozenset[int]:
    """Blocks of fresh loads that did not follow one another as planned, since an arm failed and was loaded later.

    What changed on the machine in between is no difference of the arms.
    """
    loads: dict[int, dict[int, int]] = defaultdict(dict)
    for sample in samples:
        slots = loads[sample.planned.block]
        slots[sample.planned.slot] = min(sample.load, slots.get(sample.planned.slot, sample.load))
    in_order = {block: [slots[slot] for slot in sorted(slots)] for block, slots in loads.items()}
    return frozenset(block for block, order in in_order.items() if order != sorted(order))


def in_turn(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples of all other blocks."""
    left_out = out_of_turn(samples)
    return [sample for sample in samples if sample.planned.block not in left_out] if left_out else samples


# ── sums and pairs ────────────────────────────────────────────────────────────────────────
_Block = Mapping[tuple[Arm, int], Mapping[str, _Sum]]
"""By arm and slot, the sums of each prompt."""


def _amount(sample: Sample, metric: Metric) -> _Sum | None:
    if sample.left_out is not None or sample.timing is None:
        return None
    return amount(sample.timing, metric)


def _sums(samples: Iterable[Sample], metric: Metric) -> dict[int, _Block]:
    blocks: dict[int, dict[tuple[Arm, int], dict[str, _Sum]]] = defaultdict(lambda: defaultdict(dict))
    for sample in samples:
        found = _amount(sample, metric)
        if found is not None:
            planned = sample.planned
            prompts = blocks[planned.block][planned.arm, planned.slot]
            had = prompts.get(planned.prompt, (0.0, 0.0))
            prompts[planned.prompt] = (had[0] + found[0], had[1] + found[1])
    return dict(blocks)


def _loads(block: _Block, arm: Arm) -> list[Mapping[str, _Sum]]:
    return [block[key] for key in sorted(block) if key[0] == arm]


def _block_effect(block: _Block) -> float | None:
    """Mean log ratio over the prompts that both arms answered; None for a block that is not whole."""
    a, b = _loads(block, "A"), _loads(block, "B")
    if len(a) < 2 or len(b) < 2:
        return None
    return _mean_log_ratio(_joined(a), _joined(b))


def _joined(loads: Sequence[Mapping[str, _Sum]]) -> dict[str, _Sum]:
    out: dict[str, _Sum] = {}
    for load in loads:
        for prompt, (counted, seconds) in load.items():
            had = out.get(prompt, (0.0, 0.0))
            out[prompt] = (had[0] + counted, had[1] + seconds)
    return out


def _mean_log_ratio(before: Mapping[str, _Sum], after: Mapping[str, _Sum]) -> float | None:
    """Mean over the common prompts of log(speed after / speed before)."""
    logs = [
        math.log(after[prompt][0] / after[prompt][1] * before[prompt][1] / before[prompt][0])
        for prompt in before
        if prompt in after
    ]
    return statistics.fmean(logs) if logs else None


def _noise(blocks: Mapping[int, _Block]) -> LoadNoise | None:
    """From the pairs of loads of one arm within one block; a pair differs by two loads' noise."""
    differences = [
        difference
        for block in blocks.values()
        for arm in ("A", "B")
        if len(loads := _loads(block, arm)) == 2 and (difference := _mean_log_ratio(*loads)) is not None
    ]
    if not differences:
        return None
    variance = statistics.fmean(each**2 for each in differences) / 2
    return LoadNoise(sd=math.sqrt(variance), pairs=len(differences))


# ── intervals ─────────────────────────────────────────────────────────────────────────────
def _half_width(sd: float, n: int, freedom: int) -> float:
    """Half of the 95 % interval of a mean of `n` values."""
    from scipy import stats

    return float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * sd / math.sqrt(n)


def _floor(noise: LoadNoise, blocks: int, method: Method) -> float:
    """The half-width of an A/A mean. A block has two loads an arm; a resident run one in all."""
    if method == "resident":
        return _half_width(noise.sd * math.sqrt(2), 1, noise.pairs)
    return _half_width(noise.sd, blocks, noise.pairs)


def _more_blocks(mean: float, sd: float, noise: LoadNoise, blocks: int) -> int | None:
    """Blocks beyond those there are until interval and floor would both stay below the mean."""
    from scipy import stats

    counts = range(blocks + 1, MOST_BLOCKS + 1)
    quantile = (1 + CONFIDENCE) / 2
    pairs_a_block = noise.pairs / blocks
    of_mean = stats.t.ppf(quantile, [n - 1 for n in counts])
    of_floor = stats.t.ppf(quantile, [n * pairs_a_block for n in counts])
    for n, t_mean, t_floor in zip(counts, of_mean, of_floor, strict=True):
        if max(t_mean * sd, t_floor * noise.sd) / math.sqrt(n) < abs(mean):
            return n - blocks
    return None
