"""The session: load, chat, re-split, go back, on real engines."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.sessions import GREEDY, TWO_CARDS, Told, done, layout
from tests.models import write_model, write_reciter
from tests.waiting import wait_until
from workbench.domain.conversation import Conversation, Sampling
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split, Virtual
from workbench.engines.engine import LoadCancelled, Loaded, LoadFailed, PromptTooLong
from workbench.lab import aside, events
from workbench.lab.aside import NAME
from workbench.lab.kit import RealKit
from workbench.lab.session import Session
from workbench.store.journal import Journal, read
from workbench.store.models import ModelError

LONG = " ".join(f"word{i}" for i in range(80))


@pytest.fixture
def told() -> Iterator[Told]:
    it = Told()
    yield it
    it.close()


@pytest.fixture(scope="session")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says abcdefgh without end, and loads at once."""
    return write_reciter(tmp_path_factory.mktemp("models") / "reciter.gguf", "abcdefgh", loop=True)


# ── load and chat ────────────────────────────────────────────────────────────────────────
def test_a_conversation_over_a_re_split_evaluates_each_turn_once(told: Told) -> None:
    told.load(layout(layers=(16, 15)))
    first = done(told.session.send(LONG))
    assert first.timing is not None
    assert first.timing.prompt_tokens > 200
    loaded = done(told.session.resplit(Split(layers=(23, 8), cards=TWO_CARDS)))
    assert [card.layers for card in loaded.cards] == [23, 8]
    told.idle()
    second = done(told.session.send("And then?"))
    assert second.timing is not None
    assert second.timing.prompt_tokens > first.timing.prompt_tokens
    assert second.timing.evaluated_tokens < 25
    assert [turn.split for turn in told.session.conversation.turns] == ["layer 16:15", "layer 23:8"]
    assert not told.of(events.Problem)
    assert not told.of(events.Notice)
    change = told.wait_for(events.Changed)
    assert (change.before.label, change.after.label) == ("layer 16:15", "layer 23:8")
    assert change.before.probe is not None
    assert change.after.probe is not None
    assert change.before.probe.depth == change.after.probe.depth


def test_what_is_told_of_a_turn_is_in_order_and_whole(told: Told, reciter: Path) -> None:
    told.load(layout(reciter, layers=(4, 4)))
    at = len(told.events)
    turn = done(told.session.send("hello"))
    told.idle()
    heard = [event for event in told.events[at:] if not isinstance(event, events.Busy)]
    assert heard[0] == events.TurnStarted(0, "hello")
    assert heard[-1] == events.TurnDone(0, turn)
    assert "".join(event.text for event in heard if isinstance(event, events.TurnText)) == turn.reply == "abcdefghabcd"
    assert told.events[at] == events.Busy("prompt")
    assert told.events[-1] == events.Busy(None)


def test_a_load_tells_its_progress_and_what_it_came_to(told: Told, reciter: Path) -> None:
    of = layout(reciter, layers=(5, 3))
    loaded = told.load(of)
    assert told.of(events.LoadStarted)[0].layout == of
    moved = [event.fraction for event in told.of(events.LoadMoved)]
    assert moved == sorted(moved)
    assert moved[-1] == 1.0
    assert told.of(events.LayoutLoaded)[-1].loaded == loaded
    assert (told.session.layout, told.session.loaded) == (of, loaded)
    assert told.of(events.ProbeDone)[-1].measurement.probe is not None


def test_a_fallback_template_is_said(told: Told, tmp_path: Path) -> None:
    told.load(layout(write_model(tmp_path / "bare.gguf", template=None), layers=(4, 4)))
    assert any("no chat template" in notice.message and "chatml" in notice.message for notice in told.of(events.Notice))


def test_a_prompt_without_a_model_comes_back(told: Told) -> None:
    with pytest.raises(LookupError):
        done(told.session.send("hello"))
    assert told.of(events.PromptReturned) == [events.PromptReturned("hello", "no model is loaded")]
    for call in (told.session.go_back, lambda: told.session.resplit(Split())):
        with pytest.raises(LookupError):
            done(call())


def test_a_cancelled_reply_is_a_turn_with_its_text(told: Told, reciter: Path) -> None:
    told.load(layout(reciter, n_ctx=4096, layers=(4, 4)))
    future = told.session.send("hello", Sampling(temperature=0))
    told.wait_for(events.TurnText)
    told.session.cancel()
    turn = done(future)
    assert turn.stop_reason == "cancelled"
    assert turn.reply
    assert ("abcdefgh" * 600).startswith(turn.reply)
    assert told.session.conversation.turns == (turn,)
    following = done(told.session.send("more"))
    assert following.timing is not None
    assert following.timing.evaluated_tokens < 30


# ── re-split and back ────────────────────────────────────────────────────────────────────
def test_go_back_and_forth_in_the_history(told: Told, reciter: Path) -> None:
    first, second = layout(reciter, layers=(5, 3)), layout(reciter, layers=(3, 5))
    told.load(first)
    told.load(second)
    assert [card.layers for card in done(told.session.go_back()).cards] == [5, 3]
    assert told.session.layout == first
    with pytest.raises(LookupError, match="no earlier"):
        done(told.session.go_back())
    assert [card.layers for card in done(told.session.go_forward()).cards] == [3, 5]
    with pytest.raises(LookupError, match="no later"):
        done(told.session.go_forward())
    assert [measurement.layout for measurement in told.session.history] == [first, second]


BAD = {
    "too many layers": Split(layers=(20, 20), cards=TWO_CARDS),
    "no such card": Split(cards=("CUDA9",)),
    "row": Split(split_mode="row", cards=TWO_CARDS),
    "no room for weights": Split(tensor_split=(1, 1), cards=Virtual(("600MiB", "2MiB"))),
    "no room, tensor mode": Split(split_mode="tensor", tensor_split=(1, 1), cards=Virtual(("600MiB", "2MiB"))),
    "main card": Split(split_mode="none", main_gpu=5, cards=TWO_CARDS),
}


@pytest.mark.parametrize("why", BAD)
def test_a_bad_split_leaves_layout_and_conversation_as_they_were(why: str, told: Told, reciter: Path) -> None:
    good = layout(reciter, layers=(4, 4))
    told.load(good)
    done(told.session.send("hello"))
    with pytest.raises(LoadFailed):
        done(told.session.resplit(BAD[why]))
    told.idle()
    problem = told.wait_for(events.Problem)
    assert len(told.of(events.Problem)) == 1
    if "no room" not in why:
        assert problem.serving == "layer 4:4"
    else:
        assert problem.card == "RPC1"
        assert problem.wanted_mib is not None
        assert problem.free_mib is not None
    assert told.session.layout == good
    turn = done(told.session.send("more"))
    assert turn.timing is not None
    assert turn.timing.evaluated_tokens < 30
    assert len(told.session.conversation.turns) == 2


def kept_aside() -> list[str]:
    """The conversations' states that this process holds."""
    targets = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
    return [target for target in targets if NAME in target]


class InTurn(RealKit):
    """Lets no engine stand beside another, as on cards that are full."""

    def stand_beside(self, serving: Layout, loaded: Loaded, following: Layout) -> bool:
        return False


def test_in_turn_the_conversation_is_carried_over_and_back(reciter: Path) -> None:
    told = Told(kit=InTurn(spare=False))
    try:
        good = layout(reciter, layers=(4, 4))
        told.load(good)
        done(told.session.send("hello"))
        done(told.session.resplit(Split(layers=(2, 6), cards=TWO_CARDS)))
        assert told.of(events.LayoutLoaded)[-1].strategy == "in turn"
        second = done(told.session.send("more"))
        with pytest.raises(LoadFailed, match="no room for its weights"):
            done(told.session.resplit(BAD["no room for weights"]))
        told.idle()
        assert [started.why for started in told.of(events.LoadStarted)] == ["load", "resplit", "resplit", "rollback"]
        assert len(told.of(events.Problem)) == 1
        assert told.session.layout == layout(reciter, layers=(2, 6))
        third = done(told.session.send("yet more"))
        for turn in (second, third):
            assert turn.timing is not None
            assert turn.timing.evaluated_tokens < 30
        assert not kept_aside()
    finally:
        told.close()


def test_a_context_beyond_memory_aborts_the_engine_and_the_old_layout_comes_back(told: Told, reciter: Path) -> None:
    """Tensor mode, where the library aborts its process."""
    good = layout(reciter, n_ctx=512, split_mode="tensor", tensor_split=(1, 1), cards=Virtual(("60MiB", "60MiB")))
    told.load(good)
    done(told.session.send("hello"))
    with pytest.raises(Exception, match="no room for the context"):
        done(told.session.set_context(Context(n_ctx=200_000)))
    told.idle()
    problem = told.wait_for(events.Problem)
    assert problem.card in ("RPC0", "RPC1")
    assert problem.wanted_mib is not None
    assert problem.wanted_mib > 400
    assert told.session.layout == good
    turn = done(told.session.send("more"))
    assert turn.timing is not None
    assert turn.timing.evaluated_tokens < 30


def test_a_bad_model_leaves_the_one_that_serves(told: Told, reciter: Path, tmp_path: Path) -> None:
    told.load(layout(reciter, layers=(4, 4)))
    with pytest.raises(ModelError, match="does not exist"):
        done(told.session.load(layout(tmp_path / "nothing.gguf")))
    assert told.wait_for(events.Problem).serving == "layer 4:4"
    assert done(told.session.send("hello")).reply == "abcdefghabcd"


def test_context_settings_keep_the_weights_and_the_conversation(told: Told, reciter: Path) -> None:
    loaded = told.load(layout(reciter, n_ctx=512, layers=(4, 4)))
    done(told.session.send("hello"))
    larger = done(told.session.set_context(Context(n_ctx=1024)))
    assert (larger.pid, larger.n_ctx) == (loaded.pid, 1024)
    turn = done(told.session.send("more"))
    assert turn.timing is not None
    assert turn.timing.evaluated_tokens < 30
    assert told.of(events.LayoutLoaded)[-1].strategy == "context"


def test_a_cache_of_another_type_is_evaluated_again_and_said(told: Told, reciter: Path) -> None:
    told.load(layout(reciter, n_ctx=512, layers=(4, 4)))
    done(told.session.send("hello"))
    done(told.session.set_context(Context(n_ctx=512, type_k="q8_0", type_v="q8_0")))
    assert any("evaluated again" in notice.message for notice in told.of(events.Notice))
    assert done(told.session.send("more")).reply == "abcdefghabcd"


def test_where_the_state_cannot_be_kept_the_split_is_loaded_all_the_same(
    told: Told, reciter: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aside, "SHARE_OF_FREE", 0.0)
    (own_home / "run").write_text("no folder can be made here")
    told.load(layout(reciter, layers=(4, 4)))
    done(told.session.send("hello"))
    done(told.session.resplit(Split(layers=(3, 5), cards=TWO_CARDS)))
    assert any("evaluated again" in notice.message for notice in told.of(events.Notice))
    assert len(done(told.session.send("and on")).reply) > 0
    assert not told.of(events.Problem)


def test_a_load_that_is_cancelled_leaves_what_served(told: Told) -> None:
    good = layout(layers=(16, 15))
    loaded = told.load(good)
    done(told.session.send("Name a river."))
    at = len(told.of(events.LoadMoved))
    future = told.session.resplit(Split(layers=(8, 23), cards=TWO_CARDS))
    wait_until(lambda: len(told.of(events.LoadMoved)) > at + 2)
    assert kept_aside()
    told.session.cancel()
    with pytest.raises(LoadCancelled):
        done(future)
    told.idle()
    assert told.session.layout == good
    assert not told.of(events.Problem)
    assert not kept_aside()
    wait_until(lambda: NAME not in Path(f"/proc/{loaded.pid}/maps").read_text())
    turn = done(told.session.send("And another?"))
    assert turn.timing is not None
    assert turn.timing.evaluated_tokens < 25


def test_where_nothing_serves_any_more_when_the_other_is_loaded_nothing_is_kept_either(
    told: Told, reciter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "_bring_back", lambda *_: None)  # as where it has no room
    loaded = told.load(layout(reciter, layers=(4, 4)))
    done(told.session.send("hello"))
    future = told.session.resplit(Split(layers=(2, 6), cards=TWO_CARDS))
    wait_until(kept_aside)
    os.kill(loaded.pid, signal.SIGKILL)
    assert [card.layers for card in done(future).cards] == [2, 6]
    assert not kept_aside()
    assert done(told.session.send("more")).reply


def test_the_first_load_can_be_cancelled_and_another_takes_its_place(told: Told, reciter: Path) -> None:
    first = told.session.load(layout(layers=(16, 15)))
    second = told.session.load(layout(reciter, layers=(4, 4)))
    assert [card.layers for card in done(second).cards] == [4, 4]
    with pytest.raises(LoadCancelled):
        done(first)
    assert done(told.session.send("hello")).reply == "abcdefghabcd"


def test_of_splits_asked_for_in_a_row_the_last_is_loaded(told: Told, reciter: Path) -> None:
    told.load(layout(reciter, layers=(4, 4)))
    at = len(told.of(events.LayoutLoaded))
    asked = [told.session.resplit(Split(layers=(8 - n, n), cards=TWO_CARDS)) for n in (1, 2, 3, 5, 6)]
    assert [card.layers for card in done(asked.pop()).cards] == [2, 6]
    for overtaken in asked:
        with pytest.raises(LoadCancelled):
            done(overtaken)
    assert len(told.of(events.LayoutLoaded)) == at + 1
    assert not told.of(events.Problem)
    assert not told.of(events.Notice)


def test_a_change_can_be_cancelled_before_it_begins_to_load(told: Told, reciter: Path) -> None:
    def changing() -> bool:
        return told.session.wishes.unsettled

    told.load(good := layout(reciter, layers=(4, 4)))
    assert not changing()
    at = len(told.of(events.LoadStarted))
    asked = told.session.resplit(Split(layers=(3, 5), cards=TWO_CARDS))
    assert changing()
    told.session.cancel()
    with pytest.raises(LoadCancelled):
        done(asked)
    assert not changing()
    assert told.session.layout == good
    assert len(told.of(events.LoadStarted)) <= at + 1


def test_cancel_takes_what_waits_too(told: Told, reciter: Path) -> None:
    good = layout(reciter, layers=(4, 4))
    told.load(good)
    asked = [told.session.resplit(Split(layers=(8 - n, n), cards=TWO_CARDS)) for n in (1, 2)]
    told.session.cancel()
    for cancelled in asked:
        with pytest.raises(LoadCancelled):
            done(cancelled)
    assert told.session.layout == good


def test_going_where_there_is_nothing_leaves_a_load_alone(told: Told, reciter: Path) -> None:
    told.load(layout(reciter, layers=(4, 4)))
    loading = told.session.resplit(Split(layers=(3, 5), cards=TWO_CARDS))
    with pytest.raises(LookupError, match="no earlier"):
        done(told.session.go_back())
    assert [card.layers for card in done(loading).cards] == [3, 5]


# ── the probe ────────────────────────────────────────────────────────────────────────────
def test_a_prompt_goes_before_a_probe_which_runs_again(told: Told) -> None:
    done(told.session.load(layout(layers=(16, 15))))
    wait_until(lambda: told.session._acting is not None)
    turn = done(told.session.send("Name a river."))
    assert turn.stop_reason == "max_tokens"
    told.idle()
    assert told.session.history[0].probe is not None
    following = done(told.session.send("And another?"))
    assert following.timing is not None
    assert following.timing.evaluated_tokens < 25


# ── the conversation ─────────────────────────────────────────────────────────────────────
def test_edit_clear_and_drop(told: Told, reciter: Path) -> None:
    told.load(layout(reciter, layers=(4, 4)))
    for prompt in ("one", "two", "three"):
        done(told.session.send(prompt))
    again = done(told.session.resend(1, "second"))
    assert [turn.prompt for turn in told.session.conversation.turns] == ["one", "second"]
    assert again.timing is not None
    assert again.timing.evaluated_tokens < 30
    done(told.session.drop_oldest())
    assert [turn.prompt for turn in told.session.conversation.turns] == ["second"]
    done(told.session.clear())
    assert told.session.conversation.turns == ()
    fresh = done(told.session.send("one"))
    assert fresh.timing is not None
    assert fresh.timing.prompt_tokens == len("user:one\nassistant:") + 1
    assert told.of(events.ConversationChanged)[-1].conversation == Conversation()


def test_a_full_context_offers_ways_on_and_each_of_them_works(told: Told, reciter: Path) -> None:
    told.load(layout(reciter, n_ctx=256, layers=(4, 4)))
    done(told.session.send("hello", Sampling(temperature=0, max_tokens=100)))
    full = done(told.session.send("go on", Sampling(temperature=0)))
    assert full.stop_reason == "context_full"
    assert "abcdefgh" in full.reply
    assert told.of(events.ContextFull) == [events.ContextFull(256, None, None)]
    with pytest.raises(PromptTooLong):
        done(told.session.send("and on"))
    refused = told.of(events.ContextFull)[-1]
    assert refused.prompt == "and on"
    assert refused.prompt_tokens is not None
    assert refused.prompt_tokens > 256
    assert len(told.session.conversation.turns) == 2
    done(told.session.set_context(Context(n_ctx=512)))
    assert done(told.session.send("and on")).reply == "abcdefghabcd"
    done(told.session.drop_oldest(2))
    assert done(told.session.send("and on")).reply == "abcdefghabcd"


def test_text_that_is_no_text_comes_back_and_the_next_prompt_works(told: Told, reciter: Path) -> None:
    told.load(layout(reciter, layers=(4, 4)))
    turn = done(told.session.send("half \ud83d"))
    assert turn.reply == "abcdefghabcd"
    turn.prompt.encode()
    assert done(told.session.send("hello")).reply == "abcdefghabcd"


# ── journalled ───────────────────────────────────────────────────────────────────────────
def test_every_turn_and_split_is_journalled(tmp_path: Path, reciter: Path) -> None:
    journal = Journal.create(tmp_path)
    told = Told(journal)
    try:
        told.load(layout(reciter, layers=(4, 4)))
        done(told.session.send("one"))
        done(told.session.resplit(Split(layers=(2, 6), cards=TWO_CARDS)))
        told.idle()
        done(told.session.send("two"))
        done(told.session.resend(1, "second"))
    finally:
        told.close()
    state = read(journal.path)
    assert state.problems == ()
    assert state.layout == layout(reciter, layers=(2, 6))
    assert [(turn.prompt, turn.reply) for turn in state.conversation.turns] == [
        ("one", "abcdefghabcd"), ("second", "abcdefghabcd"),
    ]  # fmt: skip
    assert [tried.layout.split.layers for tried in state.tried] == [(4, 4), (2, 6)]
    assert all(tried.probe is not None for tried in state.tried)


def test_a_restored_conversation_goes_on(told: Told, reciter: Path) -> None:
    told.load(layout(reciter, layers=(4, 4)))
    done(told.session.send("one"))
    conversation = told.session.conversation
    done(told.session.clear())
    done(told.session.restore(conversation))
    turn = done(told.session.send("two", GREEDY))
    assert turn.timing is not None
    assert turn.timing.prompt_tokens > len("user:one\nassistant:abcdefghabcd\nuser:two")
