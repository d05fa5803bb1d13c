"""llama.cpp as an engine: the client of a worker."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

from workbench.domain.layout import Context
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
from workbench.engines.llama.process import WorkerProcess, worker_environment
from workbench.engines.llama.vigil import Vigil

CANCEL_GRACE_S = 3.0
"""How long a cancelled reply may take to stop before its worker is ended."""
LOAD_CANCEL_GRACE_S = 0.4
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
        self._text: list[str] = []
        self._grace_s: float | None = None
        """Seconds that a cancel leaves the running call; None when nothing runs."""
        self._call = 0
        self._state = threading.Lock()
        self._cancelled = False

    def look_at_model(self) -> ModelInfo:
        """Read the model's header and hold the split against it. Raises LoadFailed, EngineDied."""
        seen = self._ask(wire.Inspect(self._command.model_path), wire.Inspected)
        if seen.model is None:
            raise LoadFailed(seen.error or "the model's header cannot be read", key="model")
        positions = seen.model.n_layer + 1
        layers = self._command.split.layers
        if layers is not None and sum(layers) > positions:
            raise LoadFailed(
                f"{' + '.join(map(str, layers))} = {sum(layers)} layers are asked for, the model has {positions} "
                f"positions ({seen.model.n_layer} layers and the output)",
                key="split.layers",
            )
        return seen.model

    def load(self, on_progress: Callable[[LoadProgress], None]) -> Loaded:
        """Load. Raises LoadFailed, LoadCancelled, EngineDied."""

        def progress(event: wire.Event) -> None:
            if isinstance(event, wire.Progress):
                on_progress(LoadProgress(event.fraction, event.stage))

        try:
            with self._running(LOAD_CANCEL_GRACE_S):
                return self._ask(self._command, wire.LoadDone, progress).loaded
        except EngineDied as error:
            if self._cancelled:
                raise LoadCancelled("the load was cancelled") from error
            raise

    def chat(self, request: Request, on_text: Callable[[str], None]) -> Reply:
        """Answer; `on_text` gets the reply piece by piece. Raises PromptTooLong, EngineDied."""
        self._text = []

        def text(event: wire.Event) -> None:
            if isinstance(event, wire.Text):
                self._text.append(event.text)
                on_text(event.text)

        try:
            with self._running(CANCEL_GRACE_S):
                chat = wire.Chat(messages=request.messages, sampling=request.sampling, filler=request.filler)
                done = self._ask(chat, wire.ChatDone, text)
        except EngineDied as error:
            error.partial = "".join(self._text)
            raise
        reply = "".join(self._text)
        return Reply(text=reply, stop_reason=done.stop_reason, timing=done.timing, tokens=done.tokens)

    def probe(self) -> Probe | None:
        """Measure at fixed depth. Raises EngineError where the conversation cannot be set aside."""
        with self._running(CANCEL_GRACE_S):
            return self._ask(wire.RunProbe(), wire.ProbeDone).probe

    def save_state(self, path: Path) -> SavedState:
        """Write the conversation's state. Raises EngineError where it cannot."""
        with self._running(CANCEL_GRACE_S):
            return self._ask(wire.SaveState(str(path)), wire.StateSaved).state

    def restore_state(self, state: SavedState) -> None:
        """Take a state over. Raises StateRefused where this context cannot hold it."""
        with self._running(CANCEL_GRACE_S):
            self._ask(wire.RestoreState(state), wire.StateRestored)

    def new_context(self, context: Context) -> Loaded:
        """Keep the weights, make another context. Raises LoadFailed, EngineDied."""
        with self._running(CANCEL_GRACE_S):
            return self._ask(wire.NewContext(context), wire.LoadDone).loaded

    def cancel(self) -> None:
        """Stop the running call: by flag, then by signal, then by force."""
        with self._state:
            if self._grace_s is None:
                return
            self._cancelled = True
            call, grace = self._call, self._grace_s
        try:
            self._worker.send(wire.Cancel())
        except EngineDied:
            return
        ladder = threading.Timer(grace, self._insist, args=(call,))
        ladder.daemon = True
        ladder.start()

    def _insist(self, call: int) -> None:
        with self._state:
            still_running = self._grace_s is not None and self._call == call
        if still_running:
            self._worker.terminate()

    def close(self) -> None:
        """End the worker and its cards; memory is free when this returns."""
        self._worker.close()

    @contextmanager
    def _running(self, grace_s: float) -> Iterator[None]:
        with self._state:
            self._call += 1
            self._grace_s = grace_s
            self._cancelled = False
        try:
            yield
        finally:
            with self._state:
                self._grace_s = None

    def _ask(
        self, command: wire.Command, closing: type[_Closing], other: Callable[[wire.Event], None] = lambda _: None
    ) -> _Closing:
        self._worker.send(command)
        self._vigil.rest()
        while True:
            try:
                event = self._worker.events.get(timeout=VIGIL_S)
            except queue.Empty:
                self._look_for_hang()
                continue
            self._vigil.rest()
            if isinstance(event, closing):
                return event
            if isinstance(event, EngineDied):
                raise event
            if isinstance(event, wire.Failed):
                _raise(event)
            if isinstance(event, wire.CardStarted):
                self._vigil.watch(event.card.name, event.card.pid)
            other(event)

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
    raise kind(failed.reason, card=failed.card, wanted_mib=failed.wanted_mib, free_mib=failed.free_mib, key=failed.key)


def list_devices(env: Mapping[str, str | None], log: Path) -> tuple[wire.Device, ...]:
    """The devices that llama.cpp sees, from a worker that ends at once. Raises EngineDied."""
    return _ask_once(env, log, (wire.ListDevices(),), wire.Devices)[0].devices


def inspect_models(paths: Iterable[Path], log: Path) -> Iterator[wire.Inspected]:
    """The header of each model, one by one, from one worker. Raises EngineDied."""
    worker = WorkerProcess(worker_environment({}, virtual=False), log, on_end=lambda _: None)
    try:
        for path in paths:
            worker.send(wire.Inspect(str(path)))
            yield _next(worker, wire.Inspected)
    finally:
        worker.close()


def engine_facts(log: Path) -> wire.Ready:
    """What the installed llama.cpp was built with. Raises EngineDied."""
    return _ask_once({}, log, (), wire.Ready)[0]


def _ask_once(
    env: Mapping[str, str | None], log: Path, commands: tuple[wire.Command, ...], closing: type[_Closing]
) -> list[_Closing]:
    worker = WorkerProcess(worker_environment(env, virtual=False), log, on_end=lambda _: None)
    try:
        for command in commands:
            worker.send(command)
        return [_next(worker, closing) for _ in range(max(1, len(commands)))]
    finally:
        worker.close()


def _next(worker: WorkerProcess, closing: type[_Closing]) -> _Closing:
    while True:
        event = worker.events.get()
        if isinstance(event, EngineDied):
            raise event
        if isinstance(event, closing):
            return event
