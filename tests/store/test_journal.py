"""Journals: whatever ends a session, what was said comes back."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.domain.conversation import Conversation, Turn
from workbench.domain.layout import Layout
from workbench.domain.memory import CardMemory
from workbench.domain.timing import Probe, Timing
from workbench.store.journal import (
    KEEP,
    VERSION,
    ConversationSet,
    Journal,
    JournalBusy,
    JournalError,
    LayoutServes,
    SplitTried,
    TextArrived,
    TurnBegun,
    TurnEnded,
    Unfinished,
    read,
)

LAYOUT = Layout(name="a", model="m.gguf")
TIMING = Timing(prompt_tokens=9, evaluated_tokens=3, tokens=2, decoded_tokens=1, ttft_s=0.1, prefill_s=0.1, decode_s=1)


def turn(prompt: str = "hi", reply: str = "hello") -> Turn:
    return Turn(prompt=prompt, reply=reply, stop_reason="stop", timing=TIMING, split="layer 3:1")


def talk(journal: Journal, *prompts: str) -> None:
    for index, prompt in enumerate(prompts):
        journal.append(TurnBegun(index, prompt))
        journal.append(TurnEnded(index, turn(prompt)))


def test_a_session_comes_back_whole(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "journals")
    tried = SplitTried(layout=LAYOUT, cards=(CardMemory(name="RPC0", weights_mib=1, kv_mib=2, compute_mib=3),),
                       probe=Probe(depth=512, tokens=32, prefill_tok_s=100, decode_tok_s=9))
    journal.append(LayoutServes(LAYOUT))
    journal.append(tried)
    talk(journal, "one", "two")
    journal.append(TurnBegun(2, "three"))
    journal.append(TextArrived("Three "))
    journal.append(TextArrived("is …"))
    state = read(journal.path)
    journal.close()
    assert state.layout == LAYOUT
    assert state.conversation == Conversation(turns=(turn("one"), turn("two")))
    assert state.unfinished == Unfinished(2, "three", "Three is …")
    assert state.tried == (tried,)
    assert state.problems == ()


def test_an_edited_turn_takes_the_later_ones_with_it(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    talk(journal, "one", "two", "three")
    journal.append(TurnBegun(1, "other"))
    assert read(journal.path).conversation.turns == (turn("one"),)
    journal.append(TurnEnded(1, turn("other")))
    assert read(journal.path).conversation.turns == (turn("one"), turn("other"))
    journal.append(ConversationSet(Conversation()))
    assert read(journal.path).conversation.turns == ()
    journal.close()


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "journals")
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(journal.path.parent.stat().st_mode) == 0o700
    journal.close()


def test_a_cut_last_line_is_reported_and_the_rest_used_and_gone_on_with(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    talk(journal, "one", "two")
    journal.close()
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-20])
    again, state = Journal.reopen(journal.path)
    assert state.conversation.turns == (turn("one"),)
    assert state.unfinished == Unfinished(1, "two", "")
    assert state.problems == (f"{journal.path.name}:5: damaged (cut off), left out",)
    again.append(TurnEnded(1, turn("two")))
    again.close()
    assert read(journal.path).conversation.turns == (turn("one"), turn("two"))


def test_damaged_lines_in_the_middle_are_left_out(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    talk(journal, "one")
    with journal.path.open("ab") as file:
        file.write(b'\xff\xfe\n{"type": "who"}\n[]\n\n')
    journal.append(TurnEnded(1, turn("two")))
    journal.close()
    state = read(journal.path)
    assert len(state.problems) == 3
    assert state.conversation.turns == (turn("one"), turn("two"))
    lines = journal.path.read_bytes().split(b"\n")
    journal.path.write_bytes(b"\n".join([b"%%", *lines[1:]]))
    state = read(journal.path)
    assert "header" in state.problems[0]
    assert len(state.conversation.turns) == 2


@given(cut=st.integers(0, 1200), junk=st.binary(max_size=40))
def test_any_cut_and_any_junk_reads(tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes) -> None:
    journal = Journal.create(tmp_path_factory.mktemp("journal"))
    journal.append(LayoutServes(LAYOUT))
    talk(journal, "one", "two")
    journal.close()
    data = journal.path.read_bytes()
    journal.path.write_bytes(data[:cut] + junk)
    turns = read(journal.path).conversation.turns
    assert turns == (turn("one"), turn("two"))[: len(turns)]


def test_a_newer_version_is_refused_with_one_message(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"type":"journal","version":{VERSION + 1},"started":1,"more":[]}}\n{{"type":"new"}}\n')
    for attempt in (read, Journal.reopen):
        with pytest.raises(JournalError, match=r"newer workbench \(journal version 2, this one reads 1\)"):
            attempt(path)


def test_those_that_cannot_be_used_are_passed_over_left_as_they_are_and_told(tmp_path: Path) -> None:
    older = Journal.create(tmp_path)
    talk(older, "older")
    older.close()
    os.utime(older.path, (1, 1))
    newer, damaged = tmp_path / "newer.jsonl", tmp_path / "damaged.jsonl"
    newer.write_text(f'{{"type":"journal","version":{VERSION + 1},"started":1}}\n')
    damaged.write_bytes(b"\x00" * 400)
    told: list[str] = []
    taken = Journal.take_latest(tmp_path, told.append)
    assert taken is not None
    assert taken[1].conversation.turns[0].prompt == "older"
    taken[0].close()
    assert len(told) == 2
    assert any(str(damaged) in one and "nothing of it can be used" in one for one in told)
    assert any(str(newer) in one and "newer workbench" in one for one in told)
    assert newer.exists()
    assert damaged.read_bytes() == b"\x00" * 400


def test_the_latest_is_the_one_written_last_that_holds_something(tmp_path: Path) -> None:
    assert Journal.take_latest(tmp_path / "none") is None
    first, second, empty = (Journal.create(tmp_path) for _ in range(3))
    talk(first, "first")
    talk(second, "second")
    first.close()
    second.close()
    os.utime(first.path, (1, 1))
    taken = Journal.take_latest(tmp_path)
    assert taken is not None
    journal, state = taken
    assert state.conversation.turns[0].prompt == "second"
    other = Journal.take_latest(tmp_path)
    assert other is not None
    assert other[1].conversation.turns[0].prompt == "first"
    assert Journal.take_latest(tmp_path) is None
    with pytest.raises(JournalBusy, match="still open in another workbench"):
        Journal.reopen(second.path)
    for one in (journal, other[0], empty):
        one.close()
    assert not empty.path.exists()
    assert second.path.exists()


def test_a_session_killed_in_mid_reply_leaves_its_prompt_and_its_lock(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", f"""
import sys
from pathlib import Path
from workbench.store.journal import Journal, TextArrived, TurnBegun
journal = Journal.create(Path({str(tmp_path)!r}))
journal.append(TurnBegun(0, "why?"))
journal.append(TextArrived("Because"))
print("ready", flush=True)
sys.stdin.read()
"""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"ready\n"
    assert Journal.take_latest(tmp_path) is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    child.stdin.close()
    taken = Journal.take_latest(tmp_path)
    assert taken is not None
    assert taken[1].unfinished == Unfinished(0, "why?", "Because")
    taken[0].close()


def test_the_newest_are_kept_and_living_ones_never_removed(tmp_path: Path) -> None:
    living = Journal.create(tmp_path)
    talk(living, "here")
    os.utime(living.path, (1, 1))
    for number in range(KEEP + 5):
        (tmp_path / f"old-{number:03d}.jsonl").touch()
        os.utime(tmp_path / f"old-{number:03d}.jsonl", (10 + number, 10 + number))
    newest = Journal.create(tmp_path)
    left = {path.name for path in tmp_path.glob("*.jsonl")}
    assert len(left) == KEEP + 1
    assert {living.path.name, newest.path.name, f"old-{KEEP + 4:03d}.jsonl"} <= left
    assert "old-005.jsonl" not in left
    living.close()
    newest.close()


def test_a_full_disk_is_one_message_and_the_next_record_stands_on_its_own_line(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    file = journal._file
    half = mock.Mock(wraps=file, closed=False)
    half.write.side_effect = [10, OSError(28, "No space left on device")]
    journal._file = half
    with pytest.raises(JournalError, match="No space left"):
        journal.append(TurnBegun(0, "one"))
    os.write(file.fileno(), b'{"type":"b')
    journal._file = file
    talk(journal, "two")
    journal.close()
    state = read(journal.path)
    assert state.conversation.turns == (turn("two"),)
    assert len(state.problems) == 1


def test_what_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="no journal can be kept"):
        Journal.create(tmp_path / "file" / "journals")
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal.reopen(tmp_path / "none.jsonl")
    with pytest.raises(JournalError, match="cannot be read"):
        read(tmp_path / "none.jsonl")
    journal = Journal.create(tmp_path)
    with pytest.raises(JournalError, match="half a character"):
        journal.append(TurnBegun(0, "\ud800"))
    journal.close()
    journal.close()


def test_turns_are_synced_and_text_is_not(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    with mock.patch("os.fsync") as fsync:
        journal.append(TurnBegun(0, "a"))
        journal.append(TextArrived("b"))
        assert fsync.call_count == 0
        journal.append(TurnEnded(0, turn()))
        assert fsync.call_count == 1
    journal.close()
