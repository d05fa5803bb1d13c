"""Conversations are edited without touching what was."""

import typing

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from workbench.domain.conversation import Conversation, Message, StopReason, Turn, turns_to_drop

turns = st.lists(st.builds(Turn, prompt=st.text(min_size=1), reply=st.text(),
                           stop_reason=st.sampled_from(typing.get_args(StopReason))), max_size=6).map(tuple)
conversations = st.builds(Conversation, system=st.none() | st.text(), turns=turns)


def test_what_the_engine_is_asked_leaves_out_turns_without_a_reply() -> None:
    conversation = Conversation(system="Be brief.", turns=(
        Turn(prompt="one", reply="1", stop_reason="stop"), Turn(prompt="two", reply="", stop_reason="cancelled")))
    assert conversation.messages("three") == (
        Message("system", "Be brief."), Message("user", "one"), Message("assistant", "1"), Message("user", "three"))
    assert Conversation().messages() == ()


@given(conversations, st.integers(0, 7))
def test_cutting_keeps_the_order_and_the_system_text(conversation: Conversation, count: int) -> None:
    assert conversation.upto(count).turns + conversation.without_oldest(count).turns == conversation.turns
    assert conversation.upto(count).system == conversation.without_oldest(count).system == conversation.system


@given(conversations)
def test_a_turn_more_is_one_at_the_end(conversation: Conversation) -> None:
    turn = Turn(prompt="p", reply="r", stop_reason="stop")
    longer = conversation.with_turn(turn)
    assert longer.turns[-1] == turn
    assert longer.upto(len(conversation.turns)) == conversation
    assert longer.messages("next")[:len(conversation.messages())] == conversation.messages()


@given(conversations)
def test_it_goes_through_json_unharmed(conversation: Conversation) -> None:
    assert msgspec.json.decode(msgspec.json.encode(conversation), type=Conversation) == conversation


def test_as_many_of_the_oldest_turns_go_as_the_prompt_needs() -> None:
    turns = [Turn(prompt="p" * 400, reply="r" * 1584, stop_reason="stop")] * 4  # 2000 characters each with their frame
    prompt = "p" * 1984
    assert [turns_to_drop(turns, prompt, 2000, room) for room in (2000, 1999, 1200, 400, 399)] == [0, 1, 2, 4, None]
    assert turns_to_drop([], prompt, 2000, 1000) is None
