"""More blocks, how an interval closed in, curves by length, and how long runs take."""

import math

import msgspec

from tests.domain.test_outcome import faster_b
from tests.runs import TWO_PROMPTS, made_run
from workbench.domain.comparison import compare, course
from workbench.domain.curve import curve, has_lengths
from workbench.domain.duration import block_s, expected_s, in_words, loads_and_passes
from workbench.domain.machines import join
from workbench.domain.outcome import outcome
from workbench.domain.prompts import Prompt, PromptSet, Synthetic
from workbench.domain.run import longer
from workbench.domain.split import Split
from workbench.domain.timing import Probe

PROBE = Probe(depth=128, tokens=32, prefill_tok_s=1000.0, decode_tok_s=50.0)


def test_a_longer_plan_begins_with_the_old_one_and_repeats_no_salt() -> None:
    for method in ("fresh", "resident"):
        header = made_run(faster_b, blocks=2, method=method).header
        more = longer(longer(header, 1), 2)
        assert more.plan[: len(header.plan)] == header.plan
        assert (more.blocks, more.added) == (5, (1, 2))
        assert len({(planned.arm, planned.prompt, planned.salt) for planned in more.plan}) == len(more.plan)


def test_blocks_that_were_added_are_a_caution() -> None:
    run = made_run(faster_b, blocks=3)
    header = msgspec.structs.replace(run.header, added=(1,))
    said = outcome(msgspec.structs.replace(run, header=header)).cautions
    assert said == (
        "1 of the blocks was added after a look at the result, which makes a false verdict a little likelier than 5 %",
    )


def test_the_course_ends_where_the_effect_is() -> None:
    effect = compare(made_run(faster_b, blocks=5).samples)[1]
    steps = course(effect)
    assert len(steps) == 5
    assert steps[0].low is None
    assert math.isclose(steps[0].ratio, steps[0].mean)
    assert (steps[-1].mean, steps[-1].low, steps[-1].high) == (effect.ratio, effect.low, effect.high)
    widths = [step.high - step.low for step in steps if step.low is not None and step.high is not None]
    assert widths[0] > widths[-1]


def test_a_curve_has_a_point_a_prompt_and_arm_by_length() -> None:
    assert not has_lengths(TWO_PROMPTS)
    made = tuple(
        Prompt(id=f"p{tokens}", synthetic=Synthetic(prompt_tokens=tokens, max_tokens=8)) for tokens in (512, 64)
    )
    prompts = PromptSet(name="lengths", prompts=made)
    assert has_lengths(prompts)
    run = made_run(faster_b, prompts=prompts)
    grown = []
    for sample in run.samples:
        assert sample.timing is not None
        timing = msgspec.structs.replace(sample.timing, prompt_tokens=int(sample.planned.prompt[1:]))
        grown.append(msgspec.structs.replace(sample, timing=timing))
    points = curve(msgspec.structs.replace(run, samples=tuple(grown)), "ttft")
    assert [(point.arm, point.tokens) for point in points] == [("A", 64), ("A", 512), ("B", 64), ("B", 512)]
    assert points[0].value > points[2].value


def test_how_long_it_takes_follows_loads_and_passes() -> None:
    assert loads_and_passes(2, 4, "fresh") == (16, 16)
    assert loads_and_passes(2, 4, "resident") == (2, 16)
    assert loads_and_passes(1, 3, "fresh") == (3, 3)

    def guess(loads: int, passes: int) -> float:
        found = expected_s(TWO_PROMPTS, loads=loads, passes=passes, load_s=10.0, probe=PROBE)
        assert found is not None
        return found

    assert guess(4, 4) > 40
    assert guess(4, 8) - guess(4, 4) > 4 * 22 / 50
    assert expected_s(TWO_PROMPTS, loads=1, passes=1, load_s=1.0, probe=None) is None
    unknown = msgspec.structs.replace(PROBE, prefill_tok_s=None)
    assert expected_s(TWO_PROMPTS, loads=1, passes=1, load_s=1.0, probe=unknown) is None
    assert [in_words(seconds) for seconds in (45, 125, 3725)] == ["0:45", "2:05", "1:02:05"]


def test_a_block_takes_from_its_first_load_to_its_last_reply() -> None:
    run = made_run(lambda planned: 10.0, blocks=2)
    assert block_s(msgspec.structs.replace(run, samples=(), loads=())) is None
    timed = tuple(msgspec.structs.replace(sample, at=100.0 * sample.planned.block + 30) for sample in run.samples)
    loads = tuple(msgspec.structs.replace(load, at=100.0 * load.block) for load in run.loads)
    found = block_s(msgspec.structs.replace(run, samples=timed, loads=loads))
    assert found is not None
    assert math.isclose(found, 31.2)


def test_two_splits_of_one_name_are_joined_by_their_split() -> None:
    run = made_run(faster_b)
    a, b = (
        msgspec.structs.replace(arm, layout=msgspec.structs.replace(arm.layout, name="same", split=split))
        for arm, split in zip(run.header.arms, (Split(layers=(3, 1)), Split(layers=(2, 2))), strict=True)
    )
    named = msgspec.structs.replace(run, header=msgspec.structs.replace(run.header, arms=(a, b)))
    rows = join(named, named).rows
    assert [row.layout for row in rows if row.metric == "decode"] == ["same (layer 3:1)", "same (layer 2:2)"]
    assert {row.ratio for row in rows} == {1.0}
