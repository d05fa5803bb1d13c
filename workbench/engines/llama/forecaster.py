"""The parent's side of the forecast's helper: a worker that simulates loads and never serves."""

import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from workbench.engines.engine import EngineDied, LoadFailed
from workbench.engines.llama import wire
from workbench.engines.llama.process import WorkerProcess, worker_environment
from workbench.engines.llama.vigil import Vigil

ANSWER_S = 30.0
"""A helper that is silent for so long is ended."""
VIGIL_S = 0.5
"""So often one that is silent is looked at."""
IDLE_S = 60.0
"""A helper that is not asked for so long ends: on CUDA it holds memory on every card."""


class Forecaster:
    """Keeps one helper warm, for the environment that was asked for last. Safe to call from any thread."""

    def __init__(self, log: Path, idle_s: float = IDLE_S) -> None:
        self._log = log
        self._idle_s = idle_s
        self._asking = threading.Lock()
        self._helper: WorkerProcess | None = None
        self._env: dict[str, str] = {}
        self._idle: threading.Timer | None = None
        self._asked = False

    @property
    def warm(self) -> bool:
        """Whether a helper lives that has looked at the cards, and so may hold memory there."""
        helper = self._helper
        return helper is not None and helper.alive and self._asked

    @property
    def pid(self) -> int | None:
        """The helper's process, if one lives."""
        helper = self._helper
        return helper.process.pid if helper is not None and helper.alive else None

    def simulate(self, command: wire.Simulate, env: Mapping[str, str | None]) -> wire.Simulated:
        """Ask. Raises LoadFailed, with the reason, where the draft cannot load, even if it killed the helper."""
        with self._asking:
            try:
                helper = self._ready(worker_environment(env, virtual=True))
                helper.send(command)
                self._asked = True
                answer = _answer(helper)
            except EngineDied as error:
                # The next keystroke finds a new one ready.
                if self._helper is not None:
                    self._helper.kill()
                self._end()
                self._start()
                raise LoadFailed.of(error) from error
            finally:
                self._rest()
        if isinstance(answer, wire.Failed):
            raise LoadFailed.of(answer)
        return answer

    def release(self) -> None:
        """End the helper; what it held on the cards is free when this returns."""
        with self._asking:
            self._end()

    def _ready(self, env: dict[str, str]) -> WorkerProcess:
        if self._helper is not None and self._helper.alive and self._env == env:
            return self._helper
        self._end()
        self._env = env
        return self._start()

    def _start(self) -> WorkerProcess:
        self._asked = False
        self._helper = WorkerProcess(self._env, self._log, on_end=lambda _: None)
        return self._helper

    def _end(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._helper is not None:
            helper, self._helper = self._helper, None
            helper.close()

    def _rest(self) -> None:
        """Count the idle time from now."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = threading.Timer(self._idle_s, self.release)
        self._idle.daemon = True
        self._idle.start()


def _answer(helper: WorkerProcess) -> wire.Simulated | wire.Failed:
    vigil, since = Vigil(), time.monotonic()
    vigil.watch("the forecast's process", helper.process.pid)
    while True:
        try:
            event = helper.events.get(timeout=VIGIL_S)
        except queue.Empty:
            if time.monotonic() - since > ANSWER_S:
                raise EngineDied(f"the forecast was not there within {ANSWER_S:g} s") from None
            if hung := vigil.verdict():
                raise EngineDied(" ".join(hung)) from None
            continue
        if isinstance(event, EngineDied):
            raise event
        if isinstance(event, wire.Simulated):
            return event
        if isinstance(event, wire.Failed):
            return event
