"""Effects, intervals, the floor and the verdict."""

import math

import msgspec
import pytest
from scipy import stats

from tests.benchmarks.calibration import calibrate
from tests.runs import TWO_PROMPTS, Speed, made_run, sample
from workbench.cli.outcome import outcome_text
from workbench.domain.comparison import Effect, LoadNoise, Metric, compare, course, load_noise, pool, speed
from workbench.domain.outcome import outcome
from workbench.domain.samples import Method, Planned, Sample

NOISE = (0.03, -0.02, 0.01, -0.03, 0.02, 0.0, -0.01, 0.025)


def effect_of(samples: tuple[Sample, ...], metric: Metric = "decode", **how: object) -> Effect:
    effects = compare(samples, **how)  # type: ignore[arg-type]
    return next(effect for effect in effects if effect.metric == metric)


def noisy(ratio: float, spread: float = 1.0) -> Speed:
    """Speeds whose loads differ by NOISE in turn."""

    def of(planned: Planned) -> float:
        jitter = NOISE[(planned.block * 4 + planned.slot) % len(NOISE)] * spread
        return 50.0 * (ratio if planned.arm == "B" else 1.0) * math.exp(jitter)

    return of


def test_rate_is_tokens_over_time_not_a_mean_of_rates() -> None:
    run = made_run(lambda planned: 10.0 if planned.prompt == "rivers" else 40.0)
    assert speed(run.of("A"), "decode") == pytest.approx(2 / (1 / 10 + 1 / 40))


def test_the_effect_is_paired_by_prompt_within_a_block() -> None:
    run = made_run(lambda p: (10.0 if p.prompt == "rivers" else 40.0) * (1.2 if p.arm == "B" else 1.0))
    effect = effect_of(run.samples)
    assert effect.by_block == pytest.approx((math.log(1.2),) * 2)
    assert effect.ratio == pytest.approx(1.2)


def test_the_interval_is_students_on_the_blocks() -> None:
    run = made_run(noisy(1.3), blocks=4)
    effect = effect_of(run.samples)
    low, high = stats.t.interval(0.95, 3, loc=sum(effect.by_block) / 4, scale=stats.sem(effect.by_block))
    assert (effect.low, effect.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert effect.verdict == "faster"
    assert effect.more_blocks is None


def test_first_token_times_turn_into_speeds() -> None:
    run = made_run(noisy(1.3), blocks=4)
    assert effect_of(run.samples, "ttft").ratio == pytest.approx(1.3, rel=0.05)
    assert effect_of(run.samples, "ttft").verdict == "faster"


def test_the_floor_is_the_half_width_of_an_a_a_mean() -> None:
    run = made_run(noisy(1.0), blocks=2)
    # Each arm's two loads of a block: slots 0 and 3, 1 and 2.
    differences = [NOISE[3] - NOISE[0], NOISE[2] - NOISE[1], NOISE[7] - NOISE[4], NOISE[6] - NOISE[5]]
    sd = math.sqrt(sum(each**2 for each in differences) / 4 / 2)
    effect = effect_of(run.samples)
    assert effect.floor == pytest.approx(stats.t.ppf(0.975, 4) * sd / math.sqrt(2))
    noise = load_noise(run.samples)["decode"]
    assert noise.sd == pytest.approx(sd)
    assert noise.pairs == 4


def test_an_interval_that_excludes_one_is_no_verdict_within_the_floor() -> None:
    """Loads of one arm differ much, and by chance the blocks agree."""

    def of(planned: Planned) -> float:
        first = planned.slot < 2
        return 50.0 * (1.01 if planned.arm == "B" else 1.0) * (1.1 if first else 1 / 1.1)

    effect = effect_of(made_run(of, blocks=3).samples)
    assert effect.low is not None
    assert effect.low > 1
    assert effect.verdict == "can't tell apart"
    assert effect.more_blocks is not None


def test_a_small_difference_says_how_many_more_blocks() -> None:
    few = effect_of(made_run(noisy(1.02, spread=1.5), blocks=4).samples)
    assert few.verdict == "can't tell apart"
    assert few.more_blocks is not None
    assert 1 <= few.more_blocks < 200
    # The noise repeats every other block, so an even count has the same mean.
    many = made_run(noisy(1.02, spread=1.5), blocks=4 + few.more_blocks + few.more_blocks % 2)
    assert effect_of(many.samples).verdict == "faster"
    less = made_run(noisy(1.02, spread=1.5), blocks=(4 + few.more_blocks) // 4 * 2)
    assert effect_of(less.samples).verdict == "can't tell apart"


def test_equal_to_the_last_digit_is_not_apart() -> None:
    effect = effect_of(made_run(lambda planned: 50.0).samples)
    assert (effect.ratio, effect.low, effect.high, effect.floor) == (1.0, 1.0, 1.0, 0.0)
    assert effect.verdict == "can't tell apart"
    assert effect.more_blocks is None


def test_one_block_is_too_few() -> None:
    effect = effect_of(made_run(lambda p: 60.0 if p.arm == "B" else 50.0, blocks=1).samples)
    assert effect.verdict == "too few blocks"
    assert effect.ratio == pytest.approx(1.2)
    assert effect.low is None
    assert compare(()) == tuple(Effect(metric=metric, by_block=()) for metric in ("prefill", "decode", "ttft"))


def test_a_block_that_is_not_whole_does_not_count() -> None:
    run = made_run(lambda planned: 50.0, blocks=3)
    cut = tuple(s for s in run.samples if (s.planned.block, s.planned.slot) != (2, 3))
    assert len(effect_of(cut).by_block) == 2


def test_what_is_left_out_counts_nowhere() -> None:
    run = made_run(lambda planned: 50.0)
    spoiled = [msgspec.structs.replace(s, left_out="throttled", timing=sample(s.planned, 1.0).timing)
               if s.planned.key == "0.1.0.rivers" else s for s in run.samples]  # fmt: skip
    assert effect_of(tuple(spoiled)).by_block == (0.0, 0.0)


def test_a_prompt_that_one_arm_lacks_is_left_out_of_both() -> None:
    run = made_run(lambda p: 10.0 if p.prompt == "rivers" else 40.0)
    lacking = tuple(s for s in run.samples if not (s.planned.arm == "B" and s.planned.prompt == "rivers"))
    assert effect_of(lacking).by_block == pytest.approx((0.0, 0.0))


def test_resident_never_says_more_than_fresh_loads_allow() -> None:
    run = made_run(noisy(1.3, spread=0.1), blocks=4, method="resident")
    unknown = effect_of(run.samples, method="resident")
    assert unknown.low is not None
    assert unknown.low > 1
    assert (unknown.verdict, unknown.floor) == ("can't tell apart", None)
    small, large = LoadNoise(sd=0.02, pairs=16), LoadNoise(sd=0.2, pairs=16)
    assert effect_of(run.samples, method="resident", known={"decode": small}).verdict == "faster"
    within = effect_of(run.samples, method="resident", known={"decode": large})
    assert within.verdict == "can't tell apart"
    assert within.floor == pytest.approx(stats.t.ppf(0.975, 16) * 0.2 * math.sqrt(2))


def test_noise_of_several_runs_is_pooled_by_pairs() -> None:
    pooled = pool([{"decode": LoadNoise(sd=0.01, pairs=2)}, {"decode": LoadNoise(sd=0.04, pairs=6)}])
    assert pooled["decode"].sd == pytest.approx(math.sqrt((0.0001 * 2 + 0.0016 * 6) / 8))
    assert pooled["decode"].pairs == 8
    assert pool([]) == {}


def test_calibrated() -> None:
    """A reduced one; the benchmark has the figures."""
    figures = calibrate(n=100, blocks=4, seed=3)["decode"]
    assert 0.9 <= figures["coverage"] <= 0.985
    assert figures["false_verdicts"] <= 0.05
    assert calibrate(n=40, blocks=8, seed=3)["decode"]["right_verdicts"] >= 0.85


def test_both_arms_get_the_same_prompts_and_no_prompt_comes_twice_in_an_arm() -> None:
    methods: tuple[Method, ...] = ("fresh", "resident")
    for method in methods:
        plan = made_run(lambda planned: 1.0, blocks=3, method=method).header.plan
        salts = {arm: sorted(planned.salt for planned in plan if planned.arm == arm) for arm in ("A", "B")}
        assert salts["A"] == salts["B"]
        assert len(set(salts["A"])) == len(salts["A"]) == 3 * 2 * len(TWO_PROMPTS.prompts)
        assert len({planned.key for planned in plan}) == len(plan)


def test_the_order_of_a_plan() -> None:
    fresh = made_run(lambda planned: 1.0).header.plan
    assert "".join(planned.arm for planned in fresh) == "AABBBBAA" "BBAAAABB"
    resident = made_run(lambda planned: 1.0, method="resident").header.plan
    assert "".join(planned.arm for planned in resident) == "ABBAABBA" "BAABBAAB"
    assert [planned.prompt for planned in resident[:5]] == ["rivers"] * 4 + ["tides"]


def test_blocks_that_differ_beyond_all_measure_have_a_wide_interval_and_no_verdict() -> None:
    def of(planned: Planned) -> float:
        return 1e-10 if (planned.arm == "B") == (planned.block == 0) else 1e9

    run = made_run(of)
    effect = effect_of(run.samples)
    assert effect.verdict == "can't tell apart"
    assert effect.high is not None
    assert math.isfinite(effect.high)
    assert max(map(len, outcome_text(outcome(run)).splitlines())) < 200


def test_blocks_whose_loads_did_not_follow_one_another_in_turn_do_not_count() -> None:
    """A failed, and was measured when the machine had become faster."""
    run = made_run(lambda p: 50.0 * (2.0 if p.arm == "A" and p.block < 3 else 1.0) * (1 + 0.001 * p.slot), blocks=5)
    late = {load: 100 + load for load in range(1, 13)}
    samples = tuple(
        msgspec.structs.replace(s, load=late.get(s.load, s.load) if s.planned.arm == "A" else s.load)
        for s in run.samples
    )
    assert effect_of(run.samples).verdict == "can't tell apart"
    effect = effect_of(samples)
    assert len(effect.by_block) == 2
    assert [step.block for step in course(effect)] == [3, 4]
    assert effect.ratio == pytest.approx(1.0, rel=0.01)
    assert load_noise(samples)["decode"].pairs == 4
    cautions = outcome(msgspec.structs.replace(run, samples=samples)).cautions
    assert any(caution.startswith("3 blocks left out of the comparison") for caution in cautions)
    assert len(effect_of(samples, method="resident").by_block) == 5
