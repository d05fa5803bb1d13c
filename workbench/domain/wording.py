"""A run's figures and verdicts in words, the same on the screen, the command line and in reports."""

from collections.abc import Sequence

from workbench.domain.card import format_mib
from workbench.domain.comparison import Effect, Metric, factor
from workbench.domain.machines import Join, Joined
from workbench.domain.outcome import ArmOutcome, Outcome, Parting, different_models

UNKNOWN = "–"
_HUGE = 10_000
"""From here on a ratio is told by its order only."""
NAMES: dict[Metric, str] = {"prefill": "prefill", "decode": "decode", "ttft": "first token"}
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
        return f"{b} against {a}: too few blocks for a verdict (2 at least)"
    if effect.verdict == "can't tell apart":
        return f"{b} can't be told apart from {a} in decode"
    return f"{b} is {by_how_much(effect)} than {a} in decode"


def basis(outcome: Outcome) -> str:
    """What the title rests on; empty where there is no verdict."""
    effect = outcome.effect("decode")
    if effect is None or effect.low is None or any(arm.failure is not None for arm in outcome.arms):
        return ""
    equal = "" if effect.floor is None else f", where two equal layouts may show {floor(effect)}"
    return grounds(effect) + equal


def conclusion(outcome: Outcome, metric: Metric = "decode") -> str:
    """The title for whoever sees both arms: `B is 24.0 % slower than A in decode`."""
    failed = [f"{arm.arm} ({arm.name})" for arm in outcome.arms if arm.failure is not None]
    effect = outcome.effect(metric)
    if failed:
        return f"No comparison: {' and '.join(failed)} did not load"
    if effect is None:
        return f"{figure(outcome.arms[0], metric)} {IN[metric]}"
    if effect.verdict == "too few blocks":
        return "No verdict before the second block"
    if effect.verdict == "can't tell apart":
        return f"A and B can't be told apart {IN[metric]}"
    return f"B is {by_how_much(effect)} than A {IN[metric]}"


def by_how_much(effect: Effect) -> str:
    """`24.0 % slower`."""
    return f"{percent(effect.ratio).lstrip('+−')} {effect.verdict}"


def grounds(effect: Effect) -> str:
    """What a verdict rests on: `0.760 × its speed (95 % interval 0.740–0.780)`."""
    return f"{ratio(effect.ratio)} × its speed (95 % interval {interval(effect)})"


def verdict(effect: Effect) -> str:
    """`is 24.0 % slower, 0.760 × A (95 % interval 0.740–0.780)`."""
    if effect.verdict == "too few blocks":
        return "has too few blocks for a verdict (2 at least)"
    settled = effect.verdict != "can't tell apart"
    said = f"is {by_how_much(effect)}" if settled else "can't be told apart from A"
    return f"{said}, {ratio(effect.ratio)} × A (95 % interval {interval(effect)})"


def percent(value: float | None) -> str:
    """A ratio as a change: `−24.0 %`."""
    if value is None:
        return UNKNOWN
    change = (value - 1) * 100
    return f"{'+' if change >= 0 else '−'}{abs(change):.1f} %"


def ratio(value: float | None) -> str:
    """A ratio of speeds: `1.042`."""
    if value is None:
        return UNKNOWN
    return f"{value:.3f}" if value < _HUGE else f"{value:.1e}"


def interval(effect: Effect) -> str:
    """`0.98–1.02`."""
    return UNKNOWN if effect.low is None or effect.high is None else f"{ratio(effect.low)}–{ratio(effect.high)}"


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
    return [("", *(f"{arm.arm}: {arm.name}" for arm in arms)), *known]


def effect_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """The speeds of each arm and, of two, how they compare: a head row, then one row a metric."""
    if not outcome.effects:
        (arm,) = outcome.arms
        return [("", arm.name), *((NAMES[metric], figure(arm, metric)) for metric in NAMES)]
    a, b = outcome.arms
    failed = a.failure is not None or b.failure is not None
    rows: list[tuple[str, ...]] = [
        ("", f"A: {a.name}", f"B: {b.name}", "B/A speed", "95 % interval", "noise floor", "verdict")
    ]
    for effect in outcome.effects:
        rows.append(
            (
                NAMES[effect.metric],
                figure(a, effect.metric),
                figure(b, effect.metric),
                ratio(effect.ratio),
                interval(effect),
                floor(effect),
                UNKNOWN if failed and effect.verdict == "too few blocks" else effect.verdict,
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
