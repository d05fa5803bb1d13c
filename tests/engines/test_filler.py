"""Requests of exact length: a made-up prompt, tokens already in the context."""

import pytest

from tests.engines.conftest import GREEDY, Opened
from workbench.domain.conversation import Message
from workbench.engines.engine import Filler, PromptTooLong, Reply, Request

ASK = (Message("user", "Name a river."),)


def measure(demo: Opened, filler: Filler, messages: tuple[Message, ...] = ()) -> Reply:
    return demo.engine.chat(Request(messages=messages, sampling=GREEDY, filler=filler), lambda _: None)


def test_a_made_up_prompt_has_exactly_its_tokens(demo: Opened) -> None:
    for _ in range(2):  # the second finds the same tokens in the context, and may not use them
        reply = measure(demo, Filler(prompt_tokens=100))
        assert (reply.timing.prompt_tokens, reply.timing.evaluated_tokens) == (100, 100)
        assert len(reply.tokens) == reply.timing.tokens


def test_depth_is_in_the_context_and_in_no_figure(demo: Opened) -> None:
    shallow = measure(demo, Filler(), ASK).timing
    deep = measure(demo, Filler(depth=400), ASK).timing
    assert deep.prompt_tokens == shallow.prompt_tokens + 400
    assert deep.evaluated_tokens == shallow.evaluated_tokens == shallow.prompt_tokens
    whole = measure(demo, Filler(prompt_tokens=400)).timing
    assert deep.ttft_s < whole.ttft_s


def test_another_salt_makes_other_tokens(demo: Opened) -> None:
    first, second, again = (measure(demo, Filler(prompt_tokens=64, salt=salt)) for salt in (1, 2, 1))
    assert first.tokens == again.tokens
    assert first.tokens != second.tokens


def test_a_chat_goes_on_after_a_measurement(demo: Opened) -> None:
    alone = demo.ask("Name a river.")
    measure(demo, Filler(prompt_tokens=50))
    after = demo.ask("Name a river.")
    assert after.text == alone.text
    assert after.tokens == ()


def test_what_the_context_cannot_hold_is_refused(demo: Opened) -> None:
    with pytest.raises(PromptTooLong) as refused:
        measure(demo, Filler(depth=4000, prompt_tokens=96))
    assert refused.value.prompt_tokens == 4096
