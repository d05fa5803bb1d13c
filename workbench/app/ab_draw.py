"""What a run's screen says: verdict, speeds, blocks, outputs and details as text."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import msgspec
from rich.cells import cell_len
from textual.content import Content

from workbench.app.keymap import PLAIN, Keymap
from workbench.app.text import one_line
from workbench.domain import wording
from workbench.domain.comparison import METRICS, Effect, Metric, compare, speed
from workbench.domain.duration import block_s, roughly
from workbench.domain.outcome import Outcome, first_difference, why_apart
from workbench.domain.run import Run
from workbench.domain.samples import Sample
from workbench.domain.text import clean
from workbench.store.exporters import how_measured

MOST_ADDED = 8
"""So many blocks are added at once at most."""
SOME_ADDED = 2
"""So many are added where nothing tells how many would settle it."""
MUTED = "$text-muted"
MOST = 60
"""A cell of a table is no wider."""


# ── the verdict ───────────────────────────────────────────────────────────────────────────
def big(outcome: Outcome | None, metric: Metric) -> str:
    """`-24.0%` or `7.2x` where there is a verdict, for large digits; else nothing."""
    effect = None if outcome is None else outcome.effect(metric)
    if effect is None or effect.verdict not in ("faster", "slower"):
        return ""
    return wording.by_how_much_short(effect).replace("−", "-").replace("×", "x").replace(" ", "")


def verdict(run: Run, outcome: Outcome | None, metric: Metric, *, running: bool) -> Content:
    """The verdict in words, what it rests on, and the other metrics."""
    if outcome is None:
        said = "No verdict before the second block" if _compares(run) else "Measuring"
        aside = "The session stands aside; it comes back when this is left, with the conversation."
        return Content.styled(said, "bold") + Content.styled(f"\n{aside}" if running else "", MUTED)
    effect = outcome.effect(metric)
    settled = effect is not None and effect.verdict in ("faster", "slower")
    said = wording.conclusion(outcome, metric)
    lines = [Content.styled(f"So far: {said}" if running and settled else said, "bold")]
    lines += [
        Content.styled(f"{arm.arm}: {clean(arm.failure)}", "$text-error")
        for arm in outcome.arms
        if arm.failure is not None
    ]
    if effect is not None and effect.low is not None:
        floor = "" if effect.floor is None else f", noise floor {wording.floor(effect)}"
        lines.append(Content(wording.grounds_of_b(effect) + floor))
        others = [each for each in outcome.effects if each.metric != metric]
        also = " · ".join(f"{wording.NAMES[each.metric]}: {_short(each)}" for each in others)
        lines.append(Content.styled(also, MUTED))
    notes = [note for note in outcome.cautions if "did not load" not in note]
    if notes:
        more = f" (and {len(notes) - 1} more in Details)" if len(notes) > 1 else ""
        lines.append(Content.styled("! ", "bold $text-warning") + Content(clean(notes[0]) + more))
    return Content("\n").join(lines)


def _short(effect: Effect) -> str:
    settled = effect.verdict in ("faster", "slower")
    return f"{wording.by_how_much_short(effect)}, {effect.verdict}" if settled else effect.verdict


def next_step(run: Run, outcome: Outcome, metric: Metric, keys: Keymap = PLAIN) -> str:
    """What to do now that it is over, with the keys for it."""
    go_on, again = keys.key("result.go_on"), keys.key("result.again")
    more, use = keys.key("result.more_blocks"), keys.key("result.use")
    if not _compares(run):
        return ""
    failed = [arm.arm for arm in outcome.arms if arm.failure is not None]
    if failed:
        return f"Once {' and '.join(failed)} can load, {go_on} goes on, and {again} begins anew."
    if run.missing and not outcome.header.added:
        return f"{len(run.samples)} of {len(run.header.plan)} samples are there: {go_on} goes on."
    if run.missing:
        return f"{len(run.missing)} samples of the added blocks are missing: {go_on} goes on."
    effect = outcome.effect(metric)
    if effect is None or effect.verdict == "too few blocks":
        return f"{more} adds a block."
    if effect.verdict in ("faster", "slower"):
        better = run.header.arm("B" if effect.verdict == "faster" else "A")
        return f"{use} loads the faster one, {one_line(better.label, MOST)}."
    if run.header.method == "resident":
        return f"One load an arm settles little: {again} measures again, with fresh loads."
    said = wording.outlook(effect)
    said = said[0].upper() + said[1:]
    if wording.is_hopeless(effect):
        return f"{said}: take either."
    take = ": take either, or" if wording.is_within_noise(effect) and not wording.is_early(effect) else ":"
    return f"{said}{take} {more} adds {_added(run, outcome, metric)}."


def added_blocks(outcome: Outcome, metric: Metric) -> int:
    """How many blocks the key adds."""
    effect = outcome.effect(metric)
    if effect is None or effect.verdict == "too few blocks":
        return 1
    guessed = wording.is_early(effect) or wording.is_within_noise(effect)
    return SOME_ADDED if guessed else min(effect.more_blocks or 1, MOST_ADDED)


def _added(run: Run, outcome: Outcome, metric: Metric) -> str:
    number, each_s = added_blocks(outcome, metric), block_s(run)
    return str(number) if each_s is None else f"{number} (about {roughly(number * each_s)})"


def _compares(run: Run) -> bool:
    return run.header.kind == "ab"


# ── the speeds ────────────────────────────────────────────────────────────────────────────
def arms(run: Run) -> str:
    """`A demo-single (none on card 0) · B demo-3-1 (layer 23:8)`; of a replay without a letter."""
    if not _compares(run):
        return one_line(run.header.arms[0].label, MOST)
    return " · ".join(f"{arm.arm} {one_line(arm.label, MOST)}" for arm in run.header.arms)


def speeds(run: Run, outcome: Outcome | None, metric: Metric, width: int) -> Content:
    """A row a metric: both arms by all samples so far, the effect by whole blocks. The chosen one is marked."""
    both = _compares(run)
    one = clean(run.header.arms[0].layout.name)
    head = ["", one, "by load"]
    if both:
        head = ["", f"{'A':>6}", f"{'B':>6}", "B/A speed", "95 % interval", "floor", "verdict"]
    rows = [head]
    for each in METRICS:
        row = [wording.UNITS[each], *(_speed(run, arm.arm, each) for arm in run.header.arms)]
        if not both:
            row.append(wording.UNKNOWN if outcome is None else wording.loads_range(outcome.arms[0], each))
        effect = None if outcome is None else outcome.effect(each)
        if both and effect is not None:
            row += [wording.effect_ratio(effect), wording.interval(effect), wording.floor(effect), effect.verdict]
        elif both:
            row += [wording.UNKNOWN] * 4
        rows.append(row)
    marked = METRICS.index(metric) + 1
    if not both:
        return table(rows, marked=marked)
    tables = [
        table(rows, marked=marked, left=(0, 6)),
        table([[*row[:5], row[6]] for row in rows], marked=marked, left=(0, 5)),
        table([row[:5] for row in rows], marked=marked),  # the verdicts stand above
    ]
    return next((each for each in tables if max(map(cell_len, each.plain.splitlines())) <= width), tables[-1])


def _speed(run: Run, arm: str, metric: Metric) -> str:
    found = speed((sample for sample in run.samples if sample.planned.arm == arm), metric)
    if found is None:
        return wording.UNKNOWN
    return f"{1 / found:.3f}" if metric == "ttft" else f"{found:.1f}"


def blocks(run: Run, metric: Metric) -> Content:
    """A row a block: its order, both arms, the ratio of each metric; a load that failed on a row of its own."""
    both = _compares(run)
    ratios = [f"{'B/A ' if each == METRICS[0] else ''}{wording.NAMES[each]}" for each in METRICS]
    head = ["block", "order", f"A {wording.UNITS[metric]}", "B", *ratios] if both else ["load", wording.UNITS[metric]]
    rows = [head]
    failures: list[str] = []
    for number in range(run.header.blocks):
        samples = [sample for sample in run.samples if sample.planned.block == number]
        of_block = msgspec.structs.replace(run, samples=tuple(samples))
        figures = [_speed(of_block, arm.arm, metric) for arm in run.header.arms]
        if both:
            slots = {p.slot: p.arm for p in run.header.plan if p.block == number}
            effects = compare(samples, run.header.method)
            order = "".join(slots[at] for at in sorted(slots))
            rows.append([str(number + 1), order, *figures, *(wording.ratio(each.ratio) for each in effects)])
        else:
            rows.append([str(number + 1), *figures])
        failures += [
            f"{f'block {number + 1}: {load.arm}' if both else f'load {number + 1}'} does not load: {clean(load.error)}"
            for load in run.loads
            if load.block == number and load.error is not None
        ]
    content = table(rows, left=(0, 1) if both else (0,))
    if both:
        content = content + Content.styled("\nB/A are ratios of speeds: above 1 B is faster.", MUTED)
    for failure in failures:
        content = content + Content.styled(f"\n{failure}", "$text-error")
    return content


# ── outputs ───────────────────────────────────────────────────────────────────────────────
def pair(run: Run, prompt: str) -> tuple[Sample | None, Sample | None, int | None]:
    """One output of each arm that were asked the very same, a differing pair first; and where they part."""
    asked: dict[int, dict[str, Sample]] = {}
    for sample in run.samples:
        if sample.planned.prompt == prompt and sample.timing is not None:
            asked.setdefault(sample.planned.salt, {})[sample.planned.arm] = sample
    whole = [arms for arms in asked.values() if len(arms) == len(run.header.arms)]
    for arms in whole:
        if len(arms) == 2 and (at := first_difference(arms["A"], arms["B"])) is not None:
            return arms["A"], arms["B"], at
    latest = whole[-1] if whole else next(iter(asked.values()), {})
    return latest.get("A"), latest.get("B"), None


def outputs_head(run: Run, outcome: Outcome | None, at: int) -> Content:
    """Which prompt is shown, and whether the arms said the same."""
    prompts = run.header.prompts.prompts
    prompt = prompts[at]
    of_all = Content.styled(f"  prompt {at + 1} of {len(prompts)}  ", MUTED)
    head = Content.styled(one_line(prompt.id, 30), "bold") + of_all
    if not _compares(run):
        return head
    parting = None if outcome is None else next((p for p in outcome.partings if p.prompt == prompt.id), None)
    if parting is None:
        return head + Content("no pair yet")
    if parting.first is None:
        same = "one pair" if parting.compared == 1 else f"all {parting.compared} pairs"
        return head + Content(f"{same} the same, {wording.by_unit((parting,))}")
    said = f"{wording.differing(parting.differ, parting.compared)}, here marked ▸"
    why = why_apart(run.header)
    return head + Content(f"{said}; {why}" if why else said)


def output(arm: str, sample: Sample | None, other: Sample | None) -> Content:
    """One arm's text, marked where it parts from the other's."""
    return Content.styled(f"{arm}  ", "bold $text-primary") + _marked(sample, other)


def _marked(sample: Sample | None, other: Sample | None) -> Content:
    if sample is None:
        return Content.styled(wording.UNKNOWN, MUTED)
    text = clean(sample.text)
    if other is None:
        return Content(text)
    theirs = clean(other.text)
    if text == theirs:
        return Content(text)
    same = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(text, theirs, strict=False)))
    mark, rest = Content.styled("▸", "bold $text-warning"), Content.styled(text[same:], "$text-warning")
    return Content(text[:same]) + mark + rest


# ── details ───────────────────────────────────────────────────────────────────────────────
def details(run: Run, outcome: Outcome | None, folder: Path | None) -> Content:
    """What to be careful about, each arm's figures, and how it was measured."""
    parts = []
    if outcome is not None:
        noted = [Content("- " + clean(note)) for note in wording.notes(outcome)]
        if noted:
            parts.append(Content("\n").join(noted))
        rows = wording.arm_rows(outcome)
        parts.append(table(rows, left=tuple(range(len(rows[0])))))
    measured = how_measured(run.header, len(run.samples))
    if folder is not None:
        measured.insert(1, f"kept in {folder}")
    parts.append(Content.styled("\n".join(clean(line) for line in measured), MUTED))
    return Content("\n\n").join(parts)


# ── tables ────────────────────────────────────────────────────────────────────────────────
def table(rows: Sequence[Sequence[str]], *, marked: int | None = None, left: Sequence[int] = (0,)) -> Content:
    """Columns two spaces apart, the head muted, a marked row bold behind a `›`; figures to the right."""
    rows = [[cell if cell.isprintable() and len(cell) <= MOST else one_line(cell, MOST) for cell in row]
            for row in rows]  # fmt: skip
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = []
        for column, cell in enumerate(row):
            room = " " * (widths[column] - cell_len(cell))
            cells.append(cell + room if column in left else room + cell)
        mark = "› " if number == marked else "  " if marked is not None else ""
        line = (mark + "  ".join(cells)).rstrip()
        lines.append(Content.styled(line, MUTED if number == 0 else "bold" if number == marked else ""))
    return Content("\n").join(lines)
