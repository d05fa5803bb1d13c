"""Cancelled: in the reply, in a long prefill, in the load, and against all races."""

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from tests.engines.conftest import Open, Opened, layout, opened
from tests.waiting import wait_until
from workbench.domain.split import Split, Virtual
from workbench.engines.engine import EngineDied, LoadCancelled, LoadProgress, Reply

T = TypeVar("T")
LONG = " ".join(f"word{i}" for i in range(500))
"""About two thousand tokens."""


class Running:
    """A call in a thread of its own: its result or exception, and when it ended."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self.ended = 0.0
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self.result = call()
        except BaseException as error:
            self.error = error
        self.ended = time.monotonic()

    def wait(self, timeout: float = 30.0) -> object:
        """The result. Raises what the call raised."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the call goes on"
        if self.error is not None:
            raise self.error
        return self.result


SPLITS = {
    "two cards": Split(layers=(16, 15), cards=Virtual(("600MiB", "600MiB"))),
    "one card": Split(cards=Virtual(("600MiB",))),
}


@pytest.fixture(scope="module", params=SPLITS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    split = SPLITS[request.param]
    of = layout(n_ctx=4096, cards=split.cards, layers=split.layers)
    with opened(of, tmp_path_factory.mktemp("cancel") / "engine.log") as it:
        yield it


def test_a_reply_is_cancelled_keeps_its_text_and_the_next_one_is_right(engine: Opened) -> None:
    expected = engine.ask("Name three fruits.").text
    pieces: list[str] = []
    running = Running(lambda: engine.ask("Count to a thousand.", max_tokens=0, ignore_eos=True, on_text=pieces.append))
    wait_until(lambda: len(pieces) > 3)
    begun = time.monotonic()
    engine.engine.cancel()
    reply = running.wait()
    assert isinstance(reply, Reply)
    assert running.ended - begun < 1.0
    assert reply.stop_reason == "cancelled"
    assert reply.text == "".join(pieces)
    assert reply.timing.tokens >= len(pieces)
    following = engine.ask("Count to a thousand.", reply.text, "Go on.", max_tokens=4)
    assert following.timing.evaluated_tokens < 20
    assert engine.ask("Name three fruits.").text == expected


def test_a_long_prefill_is_cancelled_and_what_was_evaluated_is_of_use(engine: Opened) -> None:
    expected = engine.ask("Name three fruits.").text
    running = Running(lambda: engine.ask(LONG))
    time.sleep(0.3)  # into the prefill; nothing tells of it
    begun = time.monotonic()
    engine.engine.cancel()
    reply = running.wait()
    quiet_s = running.ended - begun
    assert isinstance(reply, Reply)
    assert (reply.stop_reason, reply.text) == ("cancelled", "")
    assert 0 < reply.timing.evaluated_tokens < reply.timing.prompt_tokens
    assert reply.timing.prompt_tokens > 1900
    whole_s = reply.timing.prefill_s * reply.timing.prompt_tokens / reply.timing.evaluated_tokens
    assert quiet_s < max(1.0, whole_s / 10), f"quiet after {quiet_s:.2f} s; a whole prefill takes {whole_s:.1f} s"
    # About four characters of these words are a token.
    assert engine.ask(LONG[: 2 * reply.timing.evaluated_tokens], max_tokens=1).timing.evaluated_tokens < 20
    assert engine.ask("Name three fruits.").text == expected


def test_a_probe_is_cancelled_and_says_so_by_no_figures(engine: Opened) -> None:
    first = engine.ask("Name a river.", max_tokens=4)
    running = Running(engine.engine.probe)
    wait_until(lambda: engine.engine._grace_s is not None)
    engine.engine.cancel()
    assert running.wait() is None
    second = engine.ask("Name a river.", first.text, "And another?", max_tokens=4)
    assert second.timing.evaluated_tokens < 20


def test_a_cancel_reaches_the_call_it_was_meant_for_and_no_other(tiny_engine: Opened) -> None:
    """Cancels that come as a call begins or ends: none is lost to the ladder, none hits the next call."""
    for i in range(60):
        running = Running(functools.partial(tiny_engine.ask, "hello", max_tokens=3 + i % 5, ignore_eos=True))
        while tiny_engine.engine._grace_s is None and not running.ended:
            time.sleep(0.0002)
        time.sleep(i % 12 / 2000)
        tiny_engine.engine.cancel()
        reply = running.wait()
        assert isinstance(reply, Reply)
        assert reply.stop_reason in ("cancelled", "max_tokens")
        following = tiny_engine.ask("hello", max_tokens=2, ignore_eos=True)
        assert following.stop_reason == "max_tokens"
    assert tiny_engine.worker.alive


@pytest.fixture
def tiny_engine(tiny: object, open_engine: Open) -> Iterator[Opened]:
    with open_engine(layout(str(tiny), n_ctx=256, layers=(4, 4))) as it:
        yield it


def test_a_cancel_while_nothing_runs_does_nothing(tiny_engine: Opened) -> None:
    tiny_engine.engine.cancel()
    assert tiny_engine.ask("hello", max_tokens=2, ignore_eos=True).stop_reason == "max_tokens"


@pytest.mark.parametrize("stage", ["starting cards", "loading weights"])
def test_a_load_is_cancelled_at_any_stage_and_leaves_no_process(stage: str, open_engine: Open) -> None:
    with open_engine(layout(layers=(16, 15)), load=False) as it:

        def cancel(progress: LoadProgress) -> None:
            if progress.stage == stage:
                it.engine.cancel()

        with pytest.raises(LoadCancelled):
            it.engine.load(cancel)
        it.engine.close()
        assert not it.worker.alive


def test_a_worker_that_does_not_stop_is_ended(open_engine: Open) -> None:
    """SIGSTOP: neither the flag nor SIGTERM reaches it. The text so far is kept, the cards are gone."""
    with open_engine(layout(layers=(16, 15))) as it:
        pieces: list[str] = []
        running = Running(lambda: it.ask("Count.", max_tokens=0, ignore_eos=True, on_text=pieces.append))
        wait_until(lambda: len(pieces) > 2)
        os.kill(it.loaded.pid, signal.SIGSTOP)
        it.engine.cancel()
        with pytest.raises(EngineDied) as caught:
            running.wait()
        assert caught.value.partial == "".join(pieces)
        assert "stop" in caught.value.reason
        with pytest.raises(EngineDied):
            it.ask("hello")


def test_close_ends_a_stopped_worker_whose_pipe_is_full(tiny_engine: Opened) -> None:
    os.kill(tiny_engine.loaded.pid, signal.SIGSTOP)
    running = Running(lambda: tiny_engine.ask("x" * 2_000_000))
    wait_until(lambda: tiny_engine.engine._grace_s is not None)
    begun = time.monotonic()
    tiny_engine.engine.cancel()
    assert time.monotonic() - begun < 1.0  # a screen's thread calls it
    tiny_engine.engine.close()
    with pytest.raises(EngineDied):
        running.wait()
    assert not tiny_engine.worker.alive


def test_a_call_of_another_thread_ends_when_the_engine_is_closed(tiny_engine: Opened) -> None:
    running = Running(lambda: tiny_engine.ask("hello", max_tokens=200, ignore_eos=True))
    wait_until(lambda: tiny_engine.engine._grace_s is not None)
    tiny_engine.engine.close()
    with pytest.raises(EngineDied):
        running.wait()
    assert tiny_engine.deaths == []
