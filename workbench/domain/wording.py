"""A run's figures and verdicts in words, the same on the screen, the command line and in reports."""

import math

from workbench.domain.card import format_mib
from workbench.domain.comparison import Effect, Metric
from workbench.domain.outcome import ArmOutcome, Outcome, Parting, different_models

UNKNOWN = "–"
NAMES: dict[Metric, str] = {"prefill": "prefill", "decode": "decode", "ttft": "first token"}


def headline(outcome: Outcome) -> str:
    """One line on what came out, by decode; for a replay, what was replayed."""
    names = " against ".join(f"{arm.name} ({arm.split})" for arm in outcome.arms)
    failed = [arm.arm for arm in outcome.arms if arm.failure is not None]
    effect = outcome.effect("decode")
    if failed:
        return f"{names}: {' and '.join(failed)} did not load"
    if effect is None:
        return names
    models = " (the arms have different models)" if different_models(outcome.header) else ""
    return f"{names}: B {verdict(effect)} in decode{models}"


def verdict(effect: Effect) -> str:
    """`is slower, 0.79 × A (95 % interval 0.77–0.81)`."""
    if effect.verdict == "too few blocks":
        return "has too few blocks for a verdict (2 at least)"
    said = "can't be told apart from A" if effect.verdict == "can't tell apart" else f"is {effect.verdict}"
    return f"{said}, {ratio(effect.ratio)} × A (95 % interval {interval(effect)})"


def ratio(value: float | None) -> str:
    """A ratio of speeds: `1.042`."""
    return UNKNOWN if value is None else f"{value:.3f}"


def interval(effect: Effect) -> str:
    """`0.98–1.02`."""
    return UNKNOWN if effect.low is None or effect.high is None else f"{effect.low:.3f}–{effect.high:.3f}"


def floor(effect: Effect) -> str:
    """The noise floor: `2.3 %`."""
    return UNKNOWN if effect.floor is None else f"{(math.exp(effect.floor) - 1) * 100:.1f} %"


def outlook(effect: Effect) -> str:
    """What would settle it, where it is not settled."""
    if effect.verdict != "can't tell apart":
        return ""
    if effect.more_blocks is None:
        return "no number of blocks in reach would settle it"
    return f"about {effect.more_blocks} more {'block' if effect.more_blocks == 1 else 'blocks'} would settle it"


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


def arm_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """What each arm did beside its speeds: a head row, then one row a figure."""
    arms = outcome.arms

    def peaks(arm: ArmOutcome) -> str:
        return ", ".join(f"{peak.name} {format_mib(peak.mib)}" for peak in arm.peaks) or UNKNOWN

    def joules(arm: ArmOutcome) -> str:
        return UNKNOWN if arm.joules_per_token is None else f"{arm.joules_per_token:.2f}"

    return [
        ("", *(f"{arm.arm}: {arm.name}" for arm in arms)),
        ("split", *(arm.split for arm in arms)),
        ("loads, samples", *(f"{arm.loads}, {arm.samples}" for arm in arms)),
        ("load time", *(seconds(arm.load_s) for arm in arms)),
        ("J/token", *(joules(arm) for arm in arms)),
        ("peak per card", *(peaks(arm) for arm in arms)),
    ]


def effect_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """The speeds of each arm and, of two, how they compare: a head row, then one row a metric."""
    if not outcome.effects:
        (arm,) = outcome.arms
        return [("", arm.arm), *((NAMES[metric], figure(arm, metric)) for metric in NAMES)]
    rows: list[tuple[str, ...]] = [("", "A", "B", "B/A speed", "95 % interval", "noise floor", "verdict")]
    a, b = outcome.arms
    for effect in outcome.effects:
        rows.append(
            (
                NAMES[effect.metric],
                figure(a, effect.metric),
                figure(b, effect.metric),
                ratio(effect.ratio),
                interval(effect),
                floor(effect),
                effect.verdict,
            )
        )
    return rows


def outlooks(outcome: Outcome) -> list[str]:
    """What would settle each metric that is not settled; more blocks settle nothing in a resident run."""
    if outcome.header.method == "resident":
        return []
    return [f"{NAMES[effect.metric]}: {text}" for effect in outcome.effects if (text := outlook(effect))]


def outputs(partings: tuple[Parting, ...]) -> str:
    """Whether both arms said the same; empty where nothing was compared."""
    compared = sum(parting.compared for parting in partings)
    differ = sum(parting.differ for parting in partings)
    if not compared:
        return ""
    if not differ:
        return f"outputs: all {compared} pairs are the same, token by token"
    places = ", ".join(f"{each.prompt} at token {each.first}" for each in partings if each.first is not None)
    return f"outputs: {differ} of {compared} pairs part, first {places}"
