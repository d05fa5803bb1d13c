"""What a prompt becomes when it is measured, and which samples count."""

import pytest

from workbench.domain.conversation import Message, Sampling
from workbench.domain.prompts import Prompt, PromptSet, Synthetic
from workbench.domain.samples import (
    CardState,
    Conditions,
    fits,
    fixed_sampling,
    plan_ab,
    plan_replay,
    spoiled,
    unique,
)


def test_measured_replies_are_greedy_and_of_fixed_length() -> None:
    sampling = fixed_sampling(Prompt(id="a", text="Hi"), Sampling(max_tokens=40, temperature=0.7, top_k=5))
    assert (sampling.max_tokens, sampling.temperature, sampling.ignore_eos, sampling.top_k) == (40, 0.0, True, 5)
    assert fixed_sampling(Prompt(id="a", text="Hi"), Sampling()).max_tokens == 128


def test_what_a_prompt_says_of_itself_is_kept() -> None:
    prompt = Prompt(id="a", text="Hi", temperature=0.5, ignore_eos=False, max_tokens=7)
    sampling = fixed_sampling(prompt, Sampling())
    assert (sampling.temperature, sampling.ignore_eos, sampling.max_tokens, sampling.seed) == (0.5, False, 7, 1)
    made = Prompt(id="b", synthetic=Synthetic(prompt_tokens=9, max_tokens=5))
    assert fixed_sampling(made, Sampling(max_tokens=40)).max_tokens == 5


def test_a_prompt_is_unique_from_its_first_message_on() -> None:
    said = (Message("system", "Be terse."), Message("user", "Hi"))
    assert unique(said, 42) == (Message("system", "No. 000042\nBe terse."), Message("user", "Hi"))
    assert unique((), 42) == ()


def test_repeats_are_samples_of_their_own() -> None:
    prompts = PromptSet(name="s", prompts=(Prompt(id="a", text="Hi", repeat=2), Prompt(id="b", text="Ho")))
    plan = plan_replay(prompts, loads=2, offset=899_998)
    assert [(p.block, p.prompt, p.repeat) for p in plan[:4]] == [(0, "a", 0), (0, "a", 1), (0, "b", 0), (1, "a", 0)]
    assert len(plan_ab(prompts, 3, "fresh", 0)) == 3 * 4 * 3
    assert all(0 <= planned.salt < 900_000 for planned in plan)


@pytest.mark.parametrize(
    ("card", "why"),
    [
        (CardState(name="CUDA0"), None),
        (CardState(name="CUDA0", throttle=()), None),
        (CardState(name="CUDA0", throttle=("power cap",)), None),
        (CardState(name="CUDA0", throttle=("power cap", "hardware thermal")), "CUDA0 was throttled: hardware thermal"),
        (CardState(name="CUDA0", foreign_percent=4.0), None),
        (CardState(name="CUDA0", foreign_percent=30.0), "another process used CUDA0 for 30 % of the time"),
    ],
)
def test_a_sample_is_left_out_by_rule(card: CardState, why: str | None) -> None:
    assert spoiled(Conditions(cards=(CardState(name="CUDA1", throttle=()), card))) == why


def test_prompts_of_known_length_must_fit() -> None:
    made = Prompt(id="a", synthetic=Synthetic(prompt_tokens=480, max_tokens=32))
    assert fits(made, Sampling(), 512) is None
    assert fits(made, Sampling(), 511) == "needs 512 tokens with its reply, n_ctx is 511"
    deep = Prompt(id="b", text="Hi", depth=500, max_tokens=12)
    assert fits(deep, Sampling(), 512) == "needs at least 513 tokens with its reply, n_ctx is 512"
