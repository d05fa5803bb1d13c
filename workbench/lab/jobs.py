"""One thread that runs a session's jobs by right of way."""

import contextlib
import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import IntEnum
from typing import Any, TypeVar

T = TypeVar("T")


class Right(IntEnum):
    """Who goes first; within one right, who came first."""

    LOAD = 0
    PROMPT = 1
    PROBE = 2


class _Job:
    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        self.work = work
        self.future: Future[Any] = Future()


class Jobs:
    """The queue and its thread. `on_busy` hears the name of each job that begins, None when idle."""

    def __init__(self, on_busy: Callable[[str | None], None]) -> None:
        self._on_busy = on_busy
        self._heap: list[tuple[Right, int, _Job]] = []
        self._count = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self.running: str | None = None
        self._thread = threading.Thread(target=self._run, name="session-jobs", daemon=True)
        self._thread.start()

    def submit(self, right: Right, name: str, work: Callable[[], T]) -> Future[T]:
        """Queue `work`; its result or exception arrives in the future."""
        job = _Job(name, work)
        with self._changed:
            if self._closed:
                job.future.cancel()
            else:
                heapq.heappush(self._heap, (right, next(self._count), job))
                self._changed.notify_all()
        return job.future

    def drop(self, name: str) -> None:
        """Cancel the waiting jobs of that name."""
        with self._changed:
            kept = [entry for entry in self._heap if entry[2].name != name]
            dropped = [entry[2] for entry in self._heap if entry[2].name == name]
            self._heap = kept
            heapq.heapify(self._heap)
        for job in dropped:
            job.future.cancel()

    def close(self) -> None:
        """Cancel what waits; return when the running job is over."""
        with self._changed:
            self._closed = True
            waiting = [entry[2] for entry in self._heap]
            self._heap = []
            self._changed.notify_all()
        for job in waiting:
            job.future.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                self._on_busy(job.name)
                result = job.work()
            except BaseException as error:
                self.running = None
                job.future.set_exception(error)
            else:
                self.running = None
                job.future.set_result(result)

    def _next(self) -> _Job | None:
        with self._changed:
            is_idle = not self._heap and not self._closed
        if is_idle:
            with contextlib.suppress(Exception):  # a listener's fault must not end the queue
                self._on_busy(None)
        with self._changed:
            while not self._heap and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            job = heapq.heappop(self._heap)[2]
            self.running = job.name
            return job


def done() -> Future[None]:
    """A future that is over."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


def failed(error: BaseException) -> Future[Any]:
    """A future that came to nothing."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def pass_on(ended: Future[T], to: Future[T]) -> None:
    """Give what came of one future to another."""
    if ended.cancelled():
        to.cancel()
    elif (error := ended.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(ended.result())
