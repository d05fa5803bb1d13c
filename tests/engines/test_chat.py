"""Replies: streamed, ended, sampled, and continued from what the context holds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import Open, Opened, layout, opened
from tests.models import write_model, write_reciter
from workbench.domain.conversation import Message, Sampling
from workbench.engines.engine import EngineError, PromptTooLong, Request

RECITED = "é日🙂 wor"
WORDS = " ".join(f"word{i}" for i in range(270))
"""About a thousand tokens."""


@pytest.fixture(scope="module")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("reciter")
    model = write_reciter(folder / "reciter.gguf", RECITED)
    with opened(layout(model, n_ctx=256, layers=(4, 4)), folder / "engine.log") as it:
        yield it


# ── the text ─────────────────────────────────────────────────────────────────────────────
def test_characters_come_whole_though_each_token_is_a_byte(reciter: Opened) -> None:
    pieces: list[str] = []
    reply = reciter.ask("hello", on_text=pieces.append)
    assert reply.text == "".join(pieces) == RECITED
    assert reply.stop_reason == "stop"
    assert reply.timing.tokens == len(RECITED.encode())


def test_a_reply_that_ends_within_a_character_says_so(reciter: Opened) -> None:
    assert reciter.ask("hello", max_tokens=3).text == "é\ufffd"


def test_pieces_stream_and_join_to_the_text(demo: Opened) -> None:
    pieces: list[str] = []
    reply = demo.ask("Write three sentences on rivers.", on_text=pieces.append, max_tokens=40)
    assert "".join(pieces) == reply.text
    assert len(pieces) > 3
    timing = reply.timing
    assert (timing.tokens, reply.stop_reason) == (40, "max_tokens")
    assert timing.decoded_tokens == 39
    assert min(timing.ttft_s, timing.prefill_s, timing.decode_s) > 0
    assert timing.io_s < timing.decode_s


def test_the_model_ends_its_reply_by_itself(demo: Opened) -> None:
    reply = demo.ask("Say only the word yes.", max_tokens=200)
    assert reply.stop_reason == "stop"
    assert reply.timing.tokens < 200
    assert "<|" not in reply.text


def test_past_the_end_where_it_is_asked_for(demo: Opened) -> None:
    reply = demo.ask("Say only the word yes.", max_tokens=60, ignore_eos=True)
    assert (reply.stop_reason, reply.timing.tokens) == ("max_tokens", 60)


# ── sampling ─────────────────────────────────────────────────────────────────────────────
def test_greedy_is_the_same_each_time(demo: Opened) -> None:
    assert demo.ask("Name three fruits.").text == demo.ask("Name three fruits.").text


def test_a_seed_makes_a_reply_again_and_another_seed_another(demo: Opened) -> None:
    def reply(seed: int | None) -> str:
        return demo.ask("Tell me a story.", temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=seed).text

    assert reply(1) == reply(1)
    assert len({reply(seed) for seed in (1, 2, 3)}) > 1
    assert len({reply(None) for _ in range(3)}) > 1


@pytest.mark.parametrize(
    "sampling", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-3}], ids=lambda how: next(iter(how))
)
def test_each_sampling_parameter_counts(demo: Opened, sampling: dict[str, Any]) -> None:
    """Each at its narrowest leaves one token to choose, whatever the temperature."""
    how: dict[str, Any] = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **sampling}
    assert demo.ask("Name three fruits.", seed=5, **how).text == demo.ask("Name three fruits.").text


# ── the context's end ────────────────────────────────────────────────────────────────────
def test_a_full_context_ends_the_reply_and_keeps_its_text(tmp_path: Path, open_engine: Open) -> None:
    model = write_reciter(tmp_path / "endless.gguf", "abcdefgh", loop=True)
    with open_engine(layout(model, n_ctx=256, layers=(4, 4))) as it:
        reply = it.ask("hello", max_tokens=0)
        assert reply.stop_reason == "context_full"
        assert reply.text.startswith("abcdefghabcdefgh")
        assert reply.timing.prompt_tokens + reply.timing.decoded_tokens == it.loaded.n_ctx
        assert it.ask("hello", max_tokens=8).text == "abcdefgh"


def test_a_prompt_that_does_not_fit_is_refused_with_both_figures(reciter: Opened) -> None:
    with pytest.raises(PromptTooLong) as caught:
        reciter.ask("x" * 300)
    assert caught.value.n_ctx == reciter.loaded.n_ctx == 256
    assert caught.value.prompt_tokens > 300
    assert str(caught.value.prompt_tokens) in caught.value.reason
    assert reciter.ask("hello").text == RECITED


# ── templates ────────────────────────────────────────────────────────────────────────────
def test_a_model_without_a_template_gets_a_named_fallback_that_ends_at_its_mark(
    tmp_path: Path, open_engine: Open
) -> None:
    words = ("<|im_", "end|>")
    model = write_reciter(tmp_path / "bare.gguf", ["hi", *words, "xyz"], after="\n", words=words)
    without = write_model(tmp_path / "without.gguf", template=None)
    with open_engine(layout(without, n_ctx=256, layers=(4, 4))) as it:
        assert it.loaded.template_is_fallback
        assert "chatml" in it.loaded.template
        assert it.ask("hello", max_tokens=3).timing.tokens == 3
    with open_engine(layout(model, n_ctx=256, layers=(4, 4))) as it:
        assert not it.loaded.template_is_fallback


def test_a_stop_string_over_two_tokens_ends_the_reply_and_is_not_doubled_in_the_next_prompt(
    tmp_path: Path, open_engine: Open
) -> None:
    words = ("<|im_", "end|>")
    model = write_reciter(tmp_path / "m.gguf", ["hi", *words, "xyz"], after="\n", words=words, template=None)
    with open_engine(layout(model, n_ctx=512, layers=(4, 4))) as it:
        first = it.ask("hello")
        assert (first.text, first.stop_reason) == ("hi", "stop")
        both = it.ask("hello", first.text, "again")
        assert both.text == "hi"
    with open_engine(layout(model, n_ctx=512, layers=(4, 4))) as it:
        assert it.ask("hello", first.text, "again").timing.prompt_tokens == both.timing.prompt_tokens


def test_a_template_that_refuses_is_an_error_and_the_engine_serves_on(tmp_path: Path, open_engine: Open) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}:"
    model = write_reciter(tmp_path / "m.gguf", "abc", template=template)
    with open_engine(layout(model, n_ctx=256, layers=(4, 4))) as it:
        with pytest.raises(EngineError, match="no system here"):
            it.ask("hello", system="be brief")
        assert it.ask("hello").text == "abc"


def test_a_template_that_cannot_be_read_is_a_clear_failure(tmp_path: Path, open_engine: Open) -> None:
    model = write_model(tmp_path / "m.gguf", template="{% for %}")
    with pytest.raises(EngineError, match="chat template cannot be read") as caught, open_engine(layout(model)):
        pass
    assert caught.value.key == "model"


def test_half_a_character_is_refused_and_the_engine_serves_on(reciter: Opened) -> None:
    with pytest.raises(EngineError, match="half a character"):
        reciter.ask("\ud83d")
    assert reciter.ask("hello").text == RECITED


def test_a_listener_that_fails_ends_its_reply_and_not_the_next(reciter: Opened) -> None:
    def fail(_: str) -> None:
        raise ValueError("of the listener")

    with pytest.raises(ValueError, match="of the listener"):
        reciter.ask("hello", on_text=fail)
    assert reciter.ask("hello").text == RECITED


# ── what is evaluated ────────────────────────────────────────────────────────────────────
def fresh(demo: Opened, *said: str) -> int:
    """Tokens of a whole conversation."""
    return demo.ask(*said, max_tokens=1).timing.prompt_tokens


def test_the_second_turn_of_a_long_conversation_evaluates_its_own_tokens_alone(demo: Opened) -> None:
    demo.ask("Something else.", max_tokens=1)
    first = demo.ask(WORDS, max_tokens=60, temperature=0.9, seed=3)
    assert first.timing.prompt_tokens > 900
    assert first.timing.evaluated_tokens > first.timing.prompt_tokens - 40
    second = demo.ask(WORDS, first.text, "And then?")
    own = second.timing.prompt_tokens - first.timing.prompt_tokens - first.timing.tokens
    # The last token of the first reply was sampled and not yet decoded.
    assert second.timing.evaluated_tokens == own + first.timing.tokens - first.timing.decoded_tokens
    assert second.timing.evaluated_tokens < 25


def test_a_turn_that_is_asked_anew_evaluates_from_there(demo: Opened) -> None:
    """Also where the reply before it was sampled as other tokens than its text is cut into."""
    first = demo.ask(WORDS, max_tokens=80, temperature=1.3, seed=11)
    second = demo.ask(WORDS, first.text, "And then?", max_tokens=30, temperature=1.3, seed=12)
    demo.ask(WORDS, first.text, "And then?", second.text, "Really?", max_tokens=20)
    again = demo.ask(WORDS, first.text, "What else?")
    own = again.timing.prompt_tokens - first.timing.prompt_tokens - first.timing.tokens
    assert again.timing.evaluated_tokens <= own
    assert again.timing.evaluated_tokens < 25


def test_the_same_prompt_again_evaluates_one_token(demo: Opened) -> None:
    reply = demo.ask(WORDS, max_tokens=4)
    again = demo.ask(WORDS, max_tokens=4)
    assert again.timing.evaluated_tokens == 1
    assert again.text == reply.text


def test_the_probe_leaves_the_conversation_in_the_context(demo: Opened) -> None:
    first = demo.ask("Name a river.", max_tokens=8)
    expected = demo.ask("Name a river.", first.text, "And another?").text
    demo.ask("Name a river.", max_tokens=8)
    probe = demo.engine.probe()
    assert probe is not None
    assert min(probe.depth, probe.tokens, probe.prefill_tok_s or 0, probe.decode_tok_s) > 0
    second = demo.ask("Name a river.", first.text, "And another?")
    assert second.text == expected
    assert second.timing.evaluated_tokens < 20


def test_messages_without_a_prompt_are_answered_as_the_template_has_it(reciter: Opened) -> None:
    reply = reciter.engine.chat(Request(messages=(Message("system", "s"),), sampling=Sampling(temperature=0)), print)
    assert reply.text == RECITED
