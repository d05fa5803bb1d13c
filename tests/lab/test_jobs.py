import threading
from concurrent.futures import CancelledError

import pytest

from tests.waiting import wait_until
from workbench.lab.jobs import Jobs, Right


class Gate:
    """A job that runs until it is let go."""

    def __init__(self, jobs: Jobs) -> None:
        self._open = threading.Event()
        self._begun = threading.Event()
        self.future = jobs.submit(Right.PROBE, "gate", self._work)
        assert self._begun.wait(5)

    def _work(self) -> None:
        self._begun.set()
        assert self._open.wait(5)

    def let_go(self) -> None:
        self._open.set()


def test_right_of_way_then_order_of_arrival() -> None:
    done: list[str] = []
    jobs = Jobs(lambda _: None)
    gate = Gate(jobs)
    futures = [
        jobs.submit(right, name, lambda name=name: done.append(name))  # type: ignore[misc]
        for right, name in [
            (Right.PROBE, "probe"), (Right.PROMPT, "first"), (Right.LOAD, "load"), (Right.PROMPT, "second"),
        ]
    ]  # fmt: skip
    gate.let_go()
    for future in futures:
        future.result(5)
    assert done == ["load", "first", "second", "probe"]
    jobs.close()


def test_what_a_job_raises_arrives_in_its_future_and_the_next_one_runs() -> None:
    jobs = Jobs(lambda _: None)
    with pytest.raises(ZeroDivisionError):
        jobs.submit(Right.LOAD, "bad", lambda: 1 // 0).result(5)
    assert jobs.submit(Right.LOAD, "good", lambda: 7).result(5) == 7
    jobs.close()


def test_a_listener_that_fails_ends_no_queue() -> None:
    def fail(job: str | None) -> None:
        raise ValueError(job)

    jobs = Jobs(fail)
    with pytest.raises(ValueError, match="one"):
        jobs.submit(Right.LOAD, "one", lambda: None).result(5)
    with pytest.raises(ValueError, match="two"):
        jobs.submit(Right.LOAD, "two", lambda: None).result(5)
    jobs.close()


def test_a_listener_may_ask_for_jobs() -> None:
    names: list[str] = []
    jobs: Jobs

    def listen(job: str | None) -> None:
        if job == "first":
            thread = threading.Thread(target=lambda: jobs.submit(Right.LOAD, "second", lambda: names.append("second")))
            thread.start()
            thread.join(5)
            assert not thread.is_alive()

    jobs = Jobs(listen)
    jobs.submit(Right.LOAD, "first", lambda: names.append("first")).result(5)
    wait_until(lambda: names == ["first", "second"])
    jobs.close()


def test_waiting_jobs_are_dropped_by_name_and_at_the_end() -> None:
    heard: list[str | None] = []
    jobs = Jobs(heard.append)
    gate = Gate(jobs)
    probe = jobs.submit(Right.PROBE, "probe", lambda: None)
    prompt = jobs.submit(Right.PROMPT, "prompt", lambda: None)
    jobs.drop("probe")
    assert probe.cancelled()
    assert not prompt.cancelled()
    closing = threading.Thread(target=jobs.close)
    closing.start()
    wait_until(prompt.cancelled)
    gate.let_go()
    closing.join(5)
    assert not closing.is_alive()
    with pytest.raises(CancelledError):
        jobs.submit(Right.LOAD, "late", lambda: None).result(5)
    assert heard == [None, "gate"]


def test_it_tells_what_runs_and_that_it_is_idle() -> None:
    heard: list[str | None] = []
    jobs = Jobs(heard.append)
    jobs.submit(Right.LOAD, "load", lambda: None).result(5)
    wait_until(lambda: heard == [None, "load", None])
    assert jobs.running is None
    jobs.close()
