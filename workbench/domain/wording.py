"""A run's figures and verdicts in words, the same on the screen, the command line and in reports."""

import math
from collections.abc import Sequence

from workbench.domain.card import format_mib
from workbench.domain.comparison import METRICS, Effect, Metric, factor
from workbench.domain.machines import Join, Joined
from workbench.domain.outcome import ArmOutcome, Outcome, Parting, called, different_models, why_apart

UNKNOWN = "–"
_HUGE = 10_000
"""From here on a ratio is told by its order only."""
NAMES: dict[Metric, str] = {"prefill": "prefill", "decode": "decode", "ttft": "first token"}
FEW_BLOCKS, MANY_BLOCKS = 3, 50
"""From fewer blocks nothing is said of how many more would settle it; above that many, only that they are many."""
PAIRED = (
    "A ratio is the mean over the blocks of the log ratios of paired loads, prompt by prompt, so it need not be the "
    "quotient of the two columns, which count all tokens over all time."
)
UNITS: dict[Metric, str] = {"prefill": "prefill tok/s", "decode": "decode tok/s", "ttft": "first token s"}
IN: dict[Metric, str] = {"prefill": "in prefill", "decode": "in decode", "ttft": "to the first token"}


def headline(outcome: Outcome) -> str:
    """One line on what came out, by decode; for a replay, what was replayed."""
    rests_on = basis(outcome)
    models = " (the arms have different models)" if different_models(outcome.header) else ""
    return f"{title(outcome)}{f', {rests_on}' if rests_on else ''}{models}"


def title(outcome: Outcome) -> str:
    """The same without what it rests on: `demo-3-1 (layer 23:8) is 24.0 % slower than … in decode`."""
    labels = [f"{arm.name} ({arm.split})" for arm in outcome.arms]
    failed = [arm.arm for arm in outcome.arms if arm.failure is not None]
    effect = outcome.effect("decode")
    if failed:
        return f"{' against '.join(labels)}: {' and '.join(failed)} did not load"
    if effect is None:
        return labels[0]
    a, b = labels
    if effect.verdict == "too few blocks":
        return f"{a} against {b}: too few blocks for a verdict (2 at least)"
    if effect.verdict == "can't tell apart":
        return f"{a} and {b} can't be told apart in decode"
    return f"{b} is {by_how_much(effect, a)} in decode"


def basis(outcome: Outcome) -> str:
    """What the title rests on; empty where there is no verdict."""
    effect = outcome.effect("decode")
    if effect is None or effect.low is None or any(arm.failure is not None for arm in outcome.arms):
        return ""
    equal = "" if effect.floor is None else f", where two equal layouts may show {floor(effect)}"
    return grounds(effect) + equal


def conclusion(outcome: Outcome, metric: Metric = "decode") -> str:
    """The title for whoever sees both arms: `B is 24.0 % slower than A in decode`."""
    failed = [called(outcome.header, arm.arm) for arm in outcome.arms if arm.failure is not None]
    effect = outcome.effect(metric)
    if failed:
        nothing = "No comparison" if len(outcome.arms) > 1 else "Not measured"
        return f"{nothing}: {' and '.join(failed)} did not load"
    if effect is None:
        (arm,) = outcome.arms
        spread = f", by load {loads_range(arm, metric)}" if len(arm.by_load[metric]) > 1 else ""
        return f"{figure(arm, metric)} {IN[metric]}{spread}"
    if effect.verdict == "too few blocks":
        return "No verdict before the second block"
    if effect.verdict == "can't tell apart":
        return f"A and B can't be told apart {IN[metric]}"
    return f"B is {by_how_much(effect, 'A')} {IN[metric]}"


def by_how_much(effect: Effect, other: str) -> str:
    """`24.0 % slower than A`; from twice or half as fast on, `7.2 × as fast as A`."""
    if _is_multiple(effect):
        return f"{multiple(effect)} × as fast as {other}"
    return f"{change(effect).lstrip('+−')} {effect.verdict} than {other}"


def by_how_much_short(effect: Effect) -> str:
    """The same without the other: `−24.0 %`, `7.2 ×`."""
    return f"{multiple(effect)} ×" if _is_multiple(effect) else change(effect)


def _is_multiple(effect: Effect) -> bool:
    return effect.ratio is not None and not 0.5 < effect.ratio < 2


def multiple(effect: Effect) -> str:
    """A ratio of two digits, `7.2` or `0.14`; from ten on whole."""
    value = effect.ratio
    if value is None or value >= _HUGE:
        return ratio(value)
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def change(effect: Effect) -> str:
    """A ratio as a change, with as many digits as its interval is narrow: `−24.0 %`, `+12 %`."""
    if effect.ratio is None:
        return UNKNOWN
    value = (effect.ratio - 1) * 100
    return f"{'+' if value >= 0 else '−'}{abs(value):.{max(0, _decimals(effect) - 2)}f} %"


def grounds(effect: Effect) -> str:
    """What a verdict rests on: `0.760 × its speed (95 % interval 0.740–0.780)`, `its` being A's."""
    if _says_ratio(effect):
        return f"95 % interval {interval(effect)}"
    whose = "B at {} × A's" if effect.verdict == "can't tell apart" else "{} × its"
    return f"{whose.format(effect_ratio(effect))} speed (95 % interval {interval(effect)})"


def grounds_of_b(effect: Effect) -> str:
    """The same for whoever sees both arms: `0.760 × A, 95 % interval 0.740–0.780`."""
    return f"{'' if _says_ratio(effect) else f'{effect_ratio(effect)} × A, '}95 % interval {interval(effect)}"


def _says_ratio(effect: Effect) -> bool:
    """Whether the verdict itself is a ratio."""
    return _is_multiple(effect) and effect.verdict in ("faster", "slower")


def verdict(effect: Effect) -> str:
    """`is 24.0 % slower than A (0.760 × A, 95 % interval 0.740–0.780)`."""
    if effect.verdict == "too few blocks":
        return "has too few blocks for a verdict (2 at least)"
    settled = effect.verdict != "can't tell apart"
    said = f"is {by_how_much(effect, 'A')}" if settled else "can't be told apart from A"
    return f"{said} ({grounds_of_b(effect)})"


def _decimals(effect: Effect) -> int:
    """Of a ratio: as many as its interval's width deserves."""
    if effect.low is None or effect.high is None:
        return 3
    width = effect.high - effect.low
    return 3 if width <= 0.05 else 2 if width <= 1 else 1


def _rounded(value: float | None, decimals: int) -> str:
    if value is None or value >= _HUGE:
        return ratio(value)
    return f"{value:.{decimals}f}" if value >= 10.0**-decimals else f"{value:.1g}"


def effect_ratio(effect: Effect) -> str:
    """The ratio of an effect, with as many digits as its interval deserves: `1.042`, `1.04`."""
    return _rounded(effect.ratio, _decimals(effect))


def ratio(value: float | None) -> str:
    """A ratio of speeds: `1.042`."""
    if value is None:
        return UNKNOWN
    return f"{value:.3f}" if value < _HUGE else f"{value:.1e}"


def interval(effect: Effect) -> str:
    """`0.98–1.02`."""
    if effect.low is None or effect.high is None:
        return UNKNOWN
    return "–".join(_rounded(end, _decimals(effect)) for end in (effect.low, effect.high))


def floor(effect: Effect) -> str:
    """The noise floor: `2.3 %`."""
    if effect.floor is None:
        return UNKNOWN
    share = (factor(effect.floor) - 1) * 100
    return f"{share:.1f} %" if share < _HUGE else f"{share:.1e} %"


def outlook(effect: Effect) -> str:
    """What would settle it, where it is not settled."""
    if effect.verdict != "can't tell apart":
        return ""
    if is_early(effect):
        return "two blocks do not tell how many more would settle it"
    if is_within_noise(effect):
        return "the difference is within what equal loads differ by, which more blocks hardly change"
    if effect.more_blocks is None:
        return "no number of blocks in reach would settle it"
    if effect.more_blocks > MANY_BLOCKS:
        return f"many more blocks, above {MANY_BLOCKS}, would settle it"
    number = f"{effect.more_blocks} more block{'' if effect.more_blocks == 1 else 's'}"
    return f"about {number} or a few beyond would settle it, if the difference stays as it is"


def is_early(effect: Effect) -> bool:
    """Whether there are too few blocks to say how many more would settle it."""
    return len(effect.by_block) < FEW_BLOCKS


def is_hopeless(effect: Effect) -> bool:
    """Whether no number of blocks in reach would settle it."""
    return effect.verdict == "can't tell apart" and effect.more_blocks is None and not is_early(effect)


def is_within_noise(effect: Effect) -> bool:
    """Whether equal loads differ by as much as the arms do."""
    return effect.ratio is not None and effect.floor is not None and abs(math.log(effect.ratio)) <= effect.floor


def seconds(value: float | None) -> str:
    """`0.310 s`."""
    return UNKNOWN if value is None else f"{value:.3f} s"


def tok_s(value: float | None) -> str:
    """`57.0 tok/s`."""
    return UNKNOWN if value is None else f"{value:.1f} tok/s"


def figure(arm: ArmOutcome, metric: Metric) -> str:
    """One metric of an arm, with its unit."""
    if metric == "ttft":
        return seconds(arm.ttft_s)
    return tok_s(arm.prefill_tok_s if metric == "prefill" else arm.decode_tok_s)


def loads_range(arm: ArmOutcome, metric: Metric) -> str:
    """The least and the greatest of an arm's loads: `58.6 … 77.9`; of one load alone unknown."""
    found, digits = arm.by_load[metric], 3 if metric == "ttft" else 1
    return f"{min(found):.{digits}f} … {max(found):.{digits}f}" if len(found) > 1 else UNKNOWN


def arm_titles(outcome: Outcome) -> tuple[str, ...]:
    """The heads of the arms' columns: `A: demo-even`; of a replay the name alone."""
    names = outcome.header.names
    if len(names) == 1:
        return names
    return tuple(f"{arm.arm}: {name}" for arm, name in zip(outcome.arms, names, strict=True))


def arm_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """What each arm did beside its speeds: a head row, then one row a figure that anything is known of."""
    arms = outcome.arms

    def peaks(arm: ArmOutcome) -> str:
        return ", ".join(f"{peak.name} {format_mib(peak.mib)}" for peak in arm.peaks) or UNKNOWN

    def joules(arm: ArmOutcome) -> str:
        if arm.joules_per_token is None:
            return UNKNOWN
        return f"{'≈' if arm.joules_approximate else ''}{arm.joules_per_token:.2f}"

    rows = [
        ("split", *(arm.split for arm in arms)),
        ("loads, samples", *(f"{arm.loads}, {arm.samples}" for arm in arms)),
        ("load time", *(seconds(arm.load_s) for arm in arms)),
        ("J/token", *(joules(arm) for arm in arms)),
        ("peak per card", *(peaks(arm) for arm in arms)),
    ]
    known = [row for row in rows if set(row[1:]) != {UNKNOWN}]
    return [("", *arm_titles(outcome)), *known]


def effect_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """The speeds of each arm and, of two, how they compare: a head row, then one row a metric."""
    if not outcome.effects:
        (arm,) = outcome.arms
        alone = [("", *arm_titles(outcome), f"by load, of {arm.loads}")]
        alone += [(NAMES[metric], figure(arm, metric), loads_range(arm, metric)) for metric in NAMES]
        return alone if arm.loads > 1 else [row[:2] for row in alone]
    a, b = outcome.arms
    failed = a.failure is not None or b.failure is not None
    rows: list[tuple[str, ...]] = [
        ("", *arm_titles(outcome), "B/A speed", "95 % interval", "noise floor", "verdict")
    ]
    for effect in outcome.effects:
        rows.append(
            (
                NAMES[effect.metric],
                figure(a, effect.metric),
                figure(b, effect.metric),
                effect_ratio(effect),
                interval(effect),
                floor(effect),
                UNKNOWN if failed and effect.verdict == "too few blocks" else effect.verdict,
            )
        )
    return rows


def outlooks(outcome: Outcome) -> list[str]:
    """What would settle the metrics that are not settled; more blocks settle nothing in a resident run."""
    if outcome.header.method == "resident":
        return []
    said: dict[str, list[str]] = {}
    for effect in outcome.effects:
        if text := outlook(effect):
            said.setdefault(text, []).append(NAMES[effect.metric])
    return [f"{', '.join(names)}: {text}" for text, names in said.items()]


def notes(outcome: Outcome) -> list[str]:
    """What is to be said below the tables: what would settle it, whether outputs part, what to be careful about."""
    said = outputs(outcome.partings)
    why = why_apart(outcome.header) if any(each.differ for each in outcome.partings) else ""
    return [*outlooks(outcome), *([f"{said}; {why}" if why else said] if said else []), *outcome.cautions]


def length_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """Each prompt of a set of several lengths: a head row, then one row a prompt, the shortest first; else empty."""
    if not outcome.lengths:
        return []
    arms = [arm.arm for arm in outcome.arms]
    heads = [f"{UNITS[metric]} {arm}" if len(arms) > 1 else UNITS[metric] for metric in METRICS for arm in arms]
    rows = [("prompt", "tokens before", *heads)]
    for each in outcome.lengths:
        figures = [
            UNKNOWN if value is None else f"{value:.{3 if metric == 'ttft' else 1}f}"
            for metric in METRICS
            for value in each.values[metric]
        ]
        rows.append((each.prompt, str(each.tokens), *figures))
    return rows


def outputs(partings: tuple[Parting, ...]) -> str:
    """Whether both arms said the same; empty where nothing was compared."""
    compared = sum(parting.compared for parting in partings)
    differ = sum(parting.differ for parting in partings)
    if not compared:
        return ""
    if not differ:
        same = "the one pair is" if compared == 1 else f"all {compared} pairs are"
        return f"outputs: {same} the same, {by_unit(partings)}"
    places = ", ".join(
        f"{each.prompt} from {each.unit} {each.first + 1}" for each in partings if each.first is not None
    )
    return f"outputs: {differing(differ, compared)}: {places}"


def differing(differ: int, compared: int) -> str:
    """`3 of 8 pairs differ`."""
    return f"{differ} of {compared} pair{'' if compared == 1 else 's'} differ{'s' if differ == 1 else ''}"


def by_unit(partings: tuple[Parting, ...]) -> str:
    """How outputs were compared: by tokens where both arms told them."""
    return "token by token" if all(each.unit == "token" for each in partings) else "as far as both texts go"


def join_rows(joined: Join, hosts: Sequence[str]) -> list[tuple[str, ...]]:
    """Two machines side by side: a head row, then one row a layout and metric; empty without any."""
    if not joined.rows:
        return []
    first, second = hosts if hosts[0] != hosts[1] else (f"{hosts[0]} (1)", f"{hosts[1]} (2)")
    head = ("layout", "", first, second, "second/first speed", "95 % interval", "loads")
    return [
        head,
        *(
            (
                row.layout,
                NAMES[row.metric],
                _joined_figure(row, row.first),
                _joined_figure(row, row.second),
                ratio(row.ratio),
                UNKNOWN if row.low is None or row.high is None else f"{ratio(row.low)}–{ratio(row.high)}",
                f"{row.loads[0]}, {row.loads[1]}",
            )
            for row in joined.rows
        ),
    ]


def _joined_figure(row: Joined, speed: float) -> str:
    return seconds(1 / speed) if row.metric == "ttft" else tok_s(speed)
