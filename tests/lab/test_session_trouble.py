"""A session in trouble: processes that die under it, and its own end."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.lab.sessions import TWO_CARDS, Told, done, layout
from tests.models import write_reciter
from tests.waiting import wait_until
from workbench.domain.conversation import Sampling
from workbench.domain.split import Split
from workbench.lab import events
from workbench.lab.kit import RealKit
from workbench.store.journal import Journal

ROOT = Path(__file__).parents[2]
ENDLESS = Sampling(temperature=0.0, max_tokens=0, ignore_eos=True)

UI = """
import sys, time
from pathlib import Path
from tests.lab.sessions import Told, done, layout
from workbench.domain.conversation import Sampling
from workbench.lab.kit import RealKit
from workbench.store.journal import Journal

told = Told(Journal.create(Path(sys.argv[2])), RealKit())
loaded = told.load(layout(sys.argv[1], n_ctx=8192, layers=(5, 3)))
done(told.session.send("one"))
from workbench.lab import events
before = len(told.of(events.TurnText))
told.session.send("two", Sampling(temperature=0))
while len("".join(event.text for event in told.of(events.TurnText)[before:])) < 8:
    time.sleep(0.01)
print(loaded.pid, *(card.pid for card in loaded.card_processes), flush=True)
time.sleep(600)
"""


@pytest.fixture
def told() -> Iterator[Told]:
    it = Told()
    yield it
    it.close()


@pytest.fixture(scope="session")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reciter(tmp_path_factory.mktemp("models") / "reciter.gguf", "abcdefgh", loop=True)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("victim", ["card", "worker"])
def test_a_process_that_is_killed_in_a_reply_leaves_its_text_and_the_next_prompt_works(
    victim: str, told: Told
) -> None:
    of = layout(layers=(16, 15))
    loaded = told.load(of)
    first = done(told.session.send("Name a river."))
    at = len(told.of(events.TurnText))
    future = told.session.send("Count to a thousand.", ENDLESS)
    wait_until(lambda: len(told.of(events.TurnText)) > at + 2)
    begun = time.monotonic()
    os.kill(loaded.card_processes[1].pid if victim == "card" else loaded.pid, signal.SIGKILL)
    problem = told.wait_for(events.Problem)
    assert time.monotonic() - begun < 1.0
    assert problem.card == ("RPC1" if victim == "card" else None)
    assert problem.serving is None
    turn = done(future)
    assert turn.stop_reason == "died"
    assert turn.reply != ""
    assert told.session.conversation.turns == (first, turn)
    told.idle()
    assert told.session.layout == of
    assert told.session.loaded is not None
    assert told.session.loaded.pid != loaded.pid
    following = done(told.session.send("And another?"))
    assert following.reply
    assert len(told.of(events.Problem)) == 1


def test_a_process_that_is_killed_while_idle_is_said_and_comes_back(told: Told, reciter: Path) -> None:
    loaded = told.load(layout(reciter, layers=(4, 4)))
    os.kill(loaded.card_processes[0].pid, signal.SIGKILL)
    assert told.wait_for(events.Problem).card == "RPC0"
    told.wait_for(events.LayoutLoaded, 2)
    assert [started.why for started in told.of(events.LoadStarted)] == ["load", "respawn"]
    assert done(told.session.send("hello")).reply == "abcdefghabcd"


def test_a_worker_that_is_killed_in_a_load_is_said_and_what_served_serves_on(told: Told, reciter: Path) -> None:
    good = layout(reciter, layers=(4, 4))
    told.load(good)
    known = {child.pid for child in psutil.Process().children(recursive=True)}
    at = len(told.of(events.LoadMoved))
    future = told.session.load(layout(layers=(16, 15)))
    wait_until(lambda: any(moved.stage == "loading weights" for moved in told.of(events.LoadMoved)[at:]))
    for child in psutil.Process().children():
        if child.pid not in known:
            child.kill()
    with pytest.raises(Exception, match="SIGKILL"):
        done(future)
    told.idle()
    assert told.session.layout == good
    assert len(told.of(events.Problem)) == 1
    assert done(told.session.send("hello")).reply == "abcdefghabcd"


def test_a_prompt_that_was_cancelled_and_does_not_stop_is_given_back_and_not_asked_again(
    told: Told, reciter: Path
) -> None:
    loaded = told.load(layout(reciter, layers=(4, 4)))
    os.kill(loaded.pid, signal.SIGSTOP)
    turn = told.session.send("hello")
    wait_until(lambda: told.session._acting._engine is not None)
    told.session.cancel()
    assert done(turn).reply == ""
    assert told.of(events.PromptReturned)[-1].prompt == "hello"
    assert done(told.session.send("hello")).reply == "abcdefghabcd"


def test_an_engine_that_a_probe_brings_down_does_not_come_and_go_for_ever(told: Told) -> None:
    done(told.session.load(layout(layers=(16, 15))))
    wait_until(lambda: told.session._acting is not None)
    assert told.session.loaded is not None
    os.kill(told.session.loaded.pid, signal.SIGKILL)
    told.wait_for(events.LayoutLoaded, 2)
    told.idle()
    assert len(told.of(events.LoadStarted)) == 2
    assert not told.of(events.ProbeDone)


def test_what_is_parked_does_not_come_back_over_what_was_loaded_meanwhile(reciter: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    told = Told()
    try:
        told.load(layout(reciter, layers=(4, 4)))
        done(told.session.send("hello"))
        done(told.session.park())
        other = layout(reciter, layers=(2, 6))
        done(told.session.load(other))
        done(told.session.unpark())
        assert told.session.layout == other
    finally:
        told.close()
    assert set(psutil.Process().children(recursive=True)) == before


def test_close_in_the_middle_of_anything_leaves_no_process(reciter: Path) -> None:
    for moment in ("loading", "replying", "switching", "idle"):
        told = Told(kit=RealKit())
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        future = told.session.load(layout(reciter, n_ctx=4096, layers=(4, 4)))
        if moment != "loading":
            done(future)
        if moment == "replying":
            told.session.send("hello", ENDLESS)
            told.wait_for(events.TurnText)
        elif moment == "switching":
            told.session.resplit(Split(layers=(5, 3), cards=TWO_CARDS))
        begun = time.monotonic()
        told.close()
        assert time.monotonic() - begun < 10
        left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
        assert left == [], moment


def test_a_session_that_is_killed_leaves_its_journal_and_no_process(reciter: Path, tmp_path: Path) -> None:
    ui = subprocess.Popen(
        [sys.executable, "-c", UI, str(reciter), str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert ui.stdout is not None
        serving = {int(pid) for pid in ui.stdout.readline().split()}
        # The spare worker and the forecast's helper too.
        children = {child.pid for child in psutil.Process(ui.pid).children(recursive=True)}
        assert len(serving) == 3
        assert children > serving
        ui.kill()
        wait_until(lambda: all(map(gone, children)), timeout=2.0)
    finally:
        ui.kill()
        ui.communicate()
    taken = Journal.take_latest(tmp_path)
    assert taken is not None
    journal, state = taken
    told = Told(journal)
    try:
        assert state.layout == layout(reciter, n_ctx=8192, layers=(5, 3))
        assert [(turn.prompt, turn.reply) for turn in state.conversation.turns] == [("one", "abcdefghabcd")]
        assert state.unfinished is not None
        assert state.unfinished.prompt == "two"
        assert state.unfinished.partial.startswith("abcdefgh")
        told.load(state.layout)
        done(told.session.restore(state.conversation))
        turn = done(told.session.send("two"))
        assert turn.timing is not None
        assert turn.timing.prompt_tokens == len("user:one\nassistant:abcdefghabcd\nuser:two\nassistant:") + 1
    finally:
        told.close()


def test_a_journal_that_cannot_be_written_is_said_once(told: Told, reciter: Path, tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    with io.FileIO("/dev/full", "ab") as full:
        os.dup2(full.fileno(), journal._file.fileno())
    told.session._voice._journal = journal
    told.load(layout(reciter, layers=(4, 4)))
    assert done(told.session.send("hello")).reply == "abcdefghabcd"
    told.idle()
    assert sum("journal" in notice.message for notice in told.of(events.Notice)) == 1
    assert journal._file.closed
