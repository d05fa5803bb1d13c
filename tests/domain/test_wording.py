"""What is said of effects and arms: no more digits than are known, no promise that nothing holds."""

import msgspec
import pytest

from tests.domain.test_outcome import faster_b, resolved
from tests.runs import made_run
from workbench.domain import wording
from workbench.domain.comparison import Effect
from workbench.domain.curve import lengths
from workbench.domain.layout import Context
from workbench.domain.outcome import outcome
from workbench.domain.prompts import Prompt, PromptSet, Synthetic
from workbench.domain.run import Run, told_apart
from workbench.domain.samples import plan_replay
from workbench.domain.split import Split, Virtual

UNSETTLED = Effect(
    metric="decode", by_block=(0.1,) * 3, ratio=1.10, low=0.98, high=1.23, floor=0.05, verdict="can't tell apart",
    more_blocks=3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("ratio", "low", "high", "said", "interval"),
    [
        (0.76, 0.74, 0.78, "24.0 % slower than A", "0.740–0.780"),
        (0.76, 0.70, 0.82, "24 % slower than A", "0.70–0.82"),
        (1.2, 1.19, 1.21, "20.0 % faster than A", "1.190–1.210"),
        (7.165, 1.714, 29.952, "7.2 × as fast as A", "1.7–30.0"),
        (0.1396, 0.033, 0.58, "0.14 × as fast as A", "0.03–0.58"),
        (2.0, 1.99, 2.01, "2 × as fast as A", "1.990–2.010"),
        (34.4, 20.1, 58.8, "34 × as fast as A", "20.1–58.8"),
    ],
)
def test_digits_are_as_many_as_the_interval_deserves(
    ratio: float, low: float, high: float, said: str, interval: str
) -> None:
    effect = Effect(
        metric="decode", by_block=(), ratio=ratio, low=low, high=high, verdict="faster" if ratio > 1 else "slower"
    )
    assert wording.by_how_much(effect, "A") == said
    assert wording.interval(effect) == interval


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "about 3 more blocks or a few beyond would settle it, if the difference stays as it is"),
        ({"more_blocks": 183}, "many more blocks, above 50, would settle it"),
        ({"more_blocks": None}, "no number of blocks in reach would settle it"),
        ({"by_block": (0.1, 0.1), "more_blocks": None}, "two blocks do not tell how many more would settle it"),
        ({"floor": 0.2}, "the difference is within what equal loads differ by, which more blocks hardly change"),
        ({"verdict": "faster"}, ""),
    ],
)
def test_what_more_blocks_would_do(fields: dict[str, object], said: str) -> None:
    effect = msgspec.structs.replace(UNSETTLED, **fields)
    assert wording.outlook(effect) == said
    assert wording.is_hopeless(effect) == said.startswith("no number")


def of_splits(run: Run, a: Split, b: Split, *, name: str = "same") -> Run:
    arms = tuple(
        msgspec.structs.replace(arm, layout=msgspec.structs.replace(arm.layout, name=name, split=split))
        for arm, split in zip(run.header.arms, (a, b), strict=True)
    )
    return msgspec.structs.replace(run, header=msgspec.structs.replace(run.header, arms=arms))


def test_arms_of_one_name_are_told_apart_by_their_split() -> None:
    run = of_splits(made_run(faster_b, blocks=3), Split(layers=(3, 1)), Split(layers=(2, 2)))
    said = outcome(run)
    for rows in (wording.arm_rows(said), wording.effect_rows(said)):
        assert rows[0][1:3] == ("A: same (layer 3:1)", "B: same (layer 2:2)")
    assert told_apart([arm.layout for arm in made_run(faster_b).header.arms]) == ("A", "B")


def test_a_is_named_first_where_there_is_no_verdict() -> None:
    one, even = (outcome(made_run(speed, blocks=blocks)) for speed, blocks in ((faster_b, 1), (lambda _: 50.0, 3)))
    assert wording.title(one).startswith("A (layer auto) against B (layer auto): ")
    assert wording.title(even) == "A (layer auto) and B (layer auto) can't be told apart in decode"
    assert wording.basis(even).startswith("B at 1.000 × A's speed")


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (Split(split_mode="layer"), Split(split_mode="tensor"), "modes layer and tensor"),
        (Split(split_mode="tensor", layers=(3, 1)), Split(split_mode="tensor", layers=(2, 2)), "other shares"),
        (Split(layers=(3, 1)), Split(layers=(2, 2)), "this is unexpected"),
        (Split(split_mode="none"), Split(split_mode="layer"), "this is unexpected"),
        (Split(cards=Virtual(("1GiB",))), Split(cards=Virtual(("2GiB",))), "this is unexpected"),
        (Split(n_gpu_layers=3), Split(), "other layers on the host"),
    ],
)
def test_what_it_means_that_texts_part(a: Split, b: Split, said: str) -> None:
    run = of_splits(made_run(faster_b, texts={"A": "abcd", "B": "abXd"}), a, b)
    (note,) = [note for note in wording.notes(outcome(run)) if note.startswith("outputs: 8 of 8 pairs differ: ")]
    assert said in note
    same = of_splits(made_run(faster_b), a, b)
    assert not any(said in note for note in wording.notes(outcome(same)))


def test_what_else_changes_the_arithmetic_is_named() -> None:
    run = made_run(faster_b, texts={"A": "abcd", "B": "abXd"})
    header = run.header.resolved("A", resolved("aa")).resolved("B", resolved("aa", flash_attn=False))
    b = msgspec.structs.replace(header.arms[1].layout, context=Context(type_k="q8_0"))
    header = msgspec.structs.replace(header, arms=(header.arms[0], msgspec.structs.replace(header.arms[1], layout=b)))
    said = " ".join(wording.notes(outcome(msgspec.structs.replace(run, header=header))))
    assert "(flash attention in one of them, another type_k)" in said


def test_a_set_of_several_lengths_has_a_table() -> None:
    made = tuple(
        Prompt(id=f"p{tokens}", synthetic=Synthetic(prompt_tokens=tokens, max_tokens=8)) for tokens in (512, 64)
    )
    run = made_run(faster_b, blocks=3, prompts=PromptSet(name="lengths", prompts=made))
    assert [row.prompt for row in lengths(run)] == ["p512", "p64"]
    head, *rows = wording.length_rows(outcome(run))
    assert head[2:4] == ("prefill tok/s A", "prefill tok/s B")
    assert len(rows) == 2
    assert {len(row) for row in rows} == {8}
    assert float(rows[0][5]) > float(rows[0][4])
    assert wording.length_rows(outcome(made_run(faster_b))) == []


def test_a_replay_tells_its_loads() -> None:
    run = made_run(lambda planned: 50.0 + planned.slot, blocks=1)
    plan = plan_replay(run.header.prompts, 2, offset=0)
    header = msgspec.structs.replace(run.header, kind="replay", arms=run.header.arms[:1], plan=plan, blocks=2)
    said = outcome(msgspec.structs.replace(run, header=header, samples=run.of("A"), loads=run.loads[:1]))
    assert said.arms[0].by_load["decode"] == pytest.approx((50.0, 53.0))
    assert wording.conclusion(said).endswith("tok/s in decode, by load 50.0 … 53.0")
