"""llama.cpp as an engine: the client of a worker."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

from workbench.domain.layout import Context
from workbench.domain.rules import check_positions
from workbench.domain.timing import Probe
from workbench.engines.engine import (
    EngineDied,
    EngineError,
    LoadCancelled,
    Loaded,
    LoadFailed,
    LoadProgress,
    ModelInfo,
    PromptTooLong,
    Reply,
    Request,
    SavedState,
    StateRefused,
)
from workbench.engines.llama import wire
from workbench.engines.llama.process import WorkerProcess, as_line, worker_environment
from workbench.engines.llama.vigil import Vigil

REPLY_GRACE_S = 3.0
"""How long a cancelled reply may take to stop before its worker is ended."""
LOAD_GRACE_S = 0.4
STATE_GRACE_S = 30.0
"""The same for what moves the conversation's state about: ended halfway, the state would be lost."""
VIGIL_S = 1.0
"""So long without an event, and the processes are looked at."""
WORKER = "engine's process"

_Closing = TypeVar("_Closing")


class LlamaEngine:
    """One worker and the layout it loads; see `engine.Engine` for the calls."""

    def __init__(self, command: wire.Load, worker: WorkerProcess) -> None:
        self._command = command
        self._worker = worker
        self._vigil = Vigil()
        self._vigil.watch(WORKER, worker.process.pid)
        self._state = threading.Lock()
        self._call = 0
        """The number of the command that was sent last; the worker counts them too."""
        self._grace_s: float | None = None
        """Seconds that a cancel leaves the running call; None when nothing runs."""
        self._cancelled = False

    def look_at_model(self) -> ModelInfo:
        """Read the model's header and hold the split against it. Raises LoadFailed, EngineDied."""
        seen = self._ask(wire.Inspect(self._command.model_path), wire.Inspected)
        if seen.model is None:
            raise LoadFailed(seen.error or "the model's header cannot be read", key="model")
        fault = check_positions(self._command.split, seen.model.n_layer)
        if fault is not None:
            raise LoadFailed(fault.message, key=f"split.{fault.key}")
        return seen.model

    def load(self, on_progress: Callable[[LoadProgress], None]) -> Loaded:
        """Load. Raises LoadFailed, LoadCancelled, EngineDied."""

        def progress(event: wire.Event) -> None:
            if isinstance(event, wire.Progress):
                on_progress(LoadProgress(event.fraction, event.stage))

        return self._make(self._command, progress)

    def chat(self, request: Request, on_text: Callable[[str], None]) -> Reply:
        """Answer; `on_text` gets the reply piece by piece. Raises PromptTooLong, EngineDied."""
        if any(message.images for message in request.messages):
            raise EngineError("this engine reads no images; a layout of a server whose model does is needed")
        pieces: list[str] = []

        def text(event: wire.Event) -> None:
            if isinstance(event, wire.Text):
                pieces.append(event.text)
                on_text(event.text)

        chat = wire.Chat(messages=request.messages, sampling=request.sampling, filler=request.filler)
        try:
            done = self._ask(chat, wire.ChatDone, text, grace_s=REPLY_GRACE_S)
        except EngineDied as error:
            error.partial = "".join(pieces)
            raise
        reply = "".join(pieces)
        return Reply(text=reply, stop_reason=done.stop_reason, timing=done.timing, tokens=done.tokens)

    def probe(self) -> Probe | None:
        """Measure at fixed depth. Raises EngineError where the conversation cannot be set aside."""
        return self._ask(wire.RunProbe(), wire.ProbeDone).probe

    def expect_state(self, path: Path, size: int) -> None:
        """See `Engine`."""
        with contextlib.suppress(EngineDied):
            self._worker.send(wire.ExpectState(str(path), size))

    def save_state(self, path: Path) -> SavedState:
        """Write the conversation's state. Raises EngineError where it cannot."""
        return self._ask(wire.SaveState(str(path)), wire.StateSaved).state

    def restore_state(self, state: SavedState) -> None:
        """Take a state over. Raises StateRefused where this context cannot hold it."""
        self._ask(wire.RestoreState(state), wire.StateRestored)

    def new_context(self, context: Context) -> Loaded:
        """Keep the weights, make another context. Raises LoadFailed, LoadCancelled, EngineDied."""
        return self._make(wire.NewContext(context))

    def cancel(self) -> None:
        """Stop the running call: by flag, then by signal, then by force. Returns at once."""
        with self._state:
            if self._grace_s is None or self._cancelled:
                return
            self._cancelled = True
            call, grace_s = self._call, self._grace_s
        # Threads of their own: the pipe to a worker that is stopped may be full.
        threading.Thread(target=self._ask_to_stop, args=(call,), name="cancel", daemon=True).start()
        ladder = threading.Timer(grace_s, self._insist, args=(call, grace_s))
        ladder.daemon = True
        ladder.start()

    def _ask_to_stop(self, call: int) -> None:
        with contextlib.suppress(EngineDied):
            self._worker.send(wire.Cancel(call))

    def _insist(self, call: int, grace_s: float) -> None:
        with self._state:
            still_running = self._grace_s is not None and self._call == call
        if still_running:
            self._worker.terminate(f"the engine did not stop within {grace_s:g} s of being asked, and was ended")

    def close(self) -> None:
        """End the worker and its cards; memory is free when this returns."""
        self._worker.close()

    def _make(self, command: wire.Command, progress: Callable[[wire.Event], None] = lambda _: None) -> Loaded:
        try:
            return self._ask(command, wire.LoadDone, progress, grace_s=LOAD_GRACE_S).loaded
        except EngineDied as error:
            if self._cancelled:
                raise LoadCancelled("the load was cancelled") from error
            raise

    def _ask(
        self,
        command: wire.Command,
        closing: type[_Closing],
        other: Callable[[wire.Event], None] = lambda _: None,
        *,
        grace_s: float = STATE_GRACE_S,
    ) -> _Closing:
        """Send a command and return its closing event; the events before it go to `other`."""
        line = as_line(command)
        with self._state:
            self._call += 1
            self._grace_s = grace_s
            self._cancelled = False
        try:
            self._worker.send_line(line)
            return self._hear(closing, other)
        finally:
            with self._state:
                self._grace_s = None

    def _hear(self, closing: type[_Closing], other: Callable[[wire.Event], None]) -> _Closing:
        """Read events up to the closing one, also when `other` fails: the next call begins on a quiet pipe."""
        failure: Exception | None = None
        while True:
            event = self._next_event()
            if isinstance(event, EngineDied):
                raise event
            if isinstance(event, closing | wire.Failed):
                if failure is not None:
                    raise failure
                if isinstance(event, wire.Failed):
                    _raise(event)
                return event
            if isinstance(event, wire.CardStarted):
                self._vigil.watch(event.card.name, event.card.pid)
            if failure is None:
                try:
                    other(event)
                except Exception as error:
                    failure = error
                    self.cancel()

    def _next_event(self) -> wire.Event | EngineDied:
        self._vigil.rest()
        while True:
            try:
                return self._worker.events.get(timeout=VIGIL_S)
            except queue.Empty:
                self._look_for_hang()

    def _look_for_hang(self) -> None:
        hung = self._vigil.verdict()
        if hung is not None:
            name, reason = hung
            self._worker.kill()
            card = None if name == WORKER else name
            raise EngineDied(f"the {name if card is None else f'process of {name}'} {reason}", card=card)


def _raise(failed: wire.Failed) -> NoReturn:
    match failed.kind:
        case "cancelled":
            raise LoadCancelled("the load was cancelled")
        case "prompt_too_long":
            raise PromptTooLong(failed.prompt_tokens, failed.n_ctx)
        case "state_refused":
            raise StateRefused(failed.reason)
        case "load_failed":
            kind: type[EngineError] = LoadFailed
        case _:
            kind = EngineError
    raise kind.of(failed)


def list_devices(env: Mapping[str, str | None], log: Path) -> wire.Devices:
    """The devices that llama.cpp sees, from a worker that ends at once. Raises EngineDied."""
    worker = WorkerProcess(worker_environment(env, virtual=False), log, on_end=lambda _: None)
    try:
        worker.send(wire.ListDevices())
        return _next(worker, wire.Devices)
    finally:
        worker.close()


def inspect_models(paths: Iterable[Path], log: Path) -> Iterator[wire.Inspected]:
    """The header of each model, one by one; one that brings its reader down counts as unreadable. Raises EngineDied."""
    worker: WorkerProcess | None = None
    try:
        for path in paths:
            if worker is None or not worker.alive:
                worker = WorkerProcess(worker_environment({}, virtual=False), log, on_end=lambda _: None)
                _next(worker, wire.Ready)
            try:
                worker.send(wire.Inspect(str(path)))
                inspected = _next(worker, wire.Inspected)
            except EngineDied as error:
                worker.close()
                inspected = wire.Inspected(path=str(path), error=f"its header cannot be read: {error.reason}")
            except EngineError:
                inspected = wire.Inspected(path=str(path), error="its name is not UTF-8; rename it")
            yield inspected
    finally:
        if worker is not None:
            worker.close()


def build_facts(log: Path) -> tuple[wire.Ready, wire.Described]:
    """What the installed llama.cpp was built with. Raises EngineDied."""
    worker = WorkerProcess(worker_environment({}, virtual=False), log, on_end=lambda _: None)
    try:
        ready = _next(worker, wire.Ready)
        worker.send(wire.Describe())
        return ready, _next(worker, wire.Described)
    finally:
        worker.close()


def examine(log: Path) -> tuple[wire.Ready, wire.Described, tuple[wire.Device, ...] | EngineDied]:
    """How llama.cpp was built and what it sees, or what it ended of when it looked. Raises EngineDied."""
    worker = WorkerProcess(worker_environment({}, virtual=False), log, on_end=lambda _: None)
    try:
        ready = _next(worker, wire.Ready)
        worker.send(wire.Describe())
        described = _next(worker, wire.Described)
        try:
            worker.send(wire.ListDevices())
            return ready, described, _next(worker, wire.Devices).devices
        except EngineDied as error:
            return ready, described, error
    finally:
        worker.close()


def _next(worker: WorkerProcess, closing: type[_Closing]) -> _Closing:
    while True:
        event = worker.events.get()
        if isinstance(event, EngineDied):
            raise event
        if isinstance(event, closing):
            return event
