"""The engine worker: one model in a process of its own.

Commands come as JSON lines on stdin, events go out on the pipe whose number the client put
into the environment. When stdin ends, for whatever reason, the process and its cards end.
"""

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import llama_cpp.llama_cpp as llama
import msgspec

from workbench.domain.text import flat
from workbench.engines.engine import EngineError, Loaded, LoadFailed, PromptTooLong, StateRefused
from workbench.engines.llama import wire
from workbench.engines.llama.child import mapped, native
from workbench.engines.llama.child.cards import VirtualCards
from workbench.engines.llama.child.forecast import Simulator
from workbench.engines.llama.child.header import HeaderError, read_header
from workbench.engines.llama.child.model import Model
from workbench.engines.llama.child.talk import Talk

GATHER_S = 0.025
"""Text that arrives within this time goes out as one event."""


class EventPipe:
    """Events to the client, written by a thread of its own so that no token waits for the pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.SimpleQueue[str | wire.Event] = queue.SimpleQueue()
        self._writing = threading.Lock()
        threading.Thread(target=self._drain, daemon=True).start()

    def text(self, piece: str) -> None:
        """A piece of the reply."""
        self._queue.put(piece)

    def send(self, event: wire.Event) -> None:
        """An event, behind the text that came before it."""
        self._queue.put(event)

    def send_now(self, event: wire.Event) -> None:
        """An event past the queue: the process is about to end."""
        self._write(event)

    def _drain(self) -> None:
        while True:
            item = self._queue.get()
            if not isinstance(item, str):
                self._write(item)
                continue
            time.sleep(GATHER_S)
            pieces, after = [item], None
            while not self._queue.empty():
                following = self._queue.get()
                if not isinstance(following, str):
                    after = following
                    break
                pieces.append(following)
            self._write(wire.Text("".join(pieces)))
            if after is not None:
                self._write(after)

    def _write(self, event: wire.Event) -> None:
        line = memoryview(wire.encode(event))
        with self._writing, contextlib.suppress(OSError):
            while line:
                line = line[os.write(self._fd, line) :]


class Worker:
    """Reads commands, runs one at a time, answers each with one closing event."""

    def __init__(self, events: EventPipe) -> None:
        self._events = events
        self._abort = native.AbortFlag()
        self._log = native.LibraryLog()
        self._cards = VirtualCards(self._card_died, lambda card: self._events.send(wire.CardStarted(card)))
        self._model = Model(self._log, self._cards, self._abort)
        self._simulator = Simulator(self._log)
        self._talk: Talk | None = None
        self._commands: queue.SimpleQueue[tuple[float, wire.Command]] = queue.SimpleQueue()
        self._dying = threading.Lock()
        native.on_abort(self._aborted)

    def run(self) -> None:
        """Until the process ends."""
        threading.Thread(target=self._read, daemon=True).start()
        self._events.send(
            wire.Ready(
                pid=os.getpid(),
                supports_rpc=llama.llama_supports_rpc(),
                supports_gpu_offload=llama.llama_supports_gpu_offload(),
                build=llama.llama_print_system_info().decode("utf-8", "replace"),
            )
        )
        while True:
            arrived, command = self._commands.get()
            try:
                self._run(arrived, command)
                mapped.drop()
            except Exception as error:
                self._fail(error)

    def _read(self) -> None:
        received = to_cancel = 0
        try:
            for line in sys.stdin.buffer:
                command = wire.decode_command(line)
                if isinstance(command, wire.ExpectState):
                    mapped.expect(Path(command.path), command.size)
                elif isinstance(command, wire.Cancel):
                    to_cancel = command.call
                else:
                    received += 1
                    self._abort.clear()
                    self._commands.put((time.monotonic(), command))
                if to_cancel == received:
                    self._abort.set()
        except Exception as error:
            self._fail(error)
        self._end(0)

    def _run(self, arrived: float, command: wire.Command) -> None:
        try:
            self._events.send(self._answer(arrived, command))
        except LoadFailed as error:
            kind: wire.ErrorKind = "cancelled" if self._abort else "load_failed"
            self._events.send(_failed(kind, error))
        except PromptTooLong as error:
            failure = _failed("prompt_too_long", error)
            self._events.send(msgspec.structs.replace(failure, prompt_tokens=error.prompt_tokens, n_ctx=error.n_ctx))
        except StateRefused as error:
            self._events.send(_failed("state_refused", error))
        except EngineError as error:
            self._events.send(_failed("error", error))

    def _answer(self, arrived: float, command: wire.Command) -> wire.Event:
        match command:
            case wire.Load():
                loaded = self._model.load(command, lambda done, stage: self._events.send(wire.Progress(done, stage)))
                self._talk = Talk(self._model, self._abort)
                return wire.LoadDone(self._with_template(loaded))
            case wire.NewContext(context):
                loaded = self._model.new_context(context)
                self._talking.attach()
                return wire.LoadDone(self._with_template(loaded))
            case wire.Chat(messages=messages, sampling=sampling, filler=filler):
                talk = self._talking
                stop, timing = talk.chat(messages, sampling, arrived, self._events.text, filler)
                tokens = () if filler is None else tuple(talk.tokens[timing.prompt_tokens :])
                return wire.ChatDone(stop_reason=stop, timing=timing, tokens=tokens)
            case wire.RunProbe():
                return wire.ProbeDone(self._talking.probe())
            case wire.SaveState(path):
                return wire.StateSaved(self._talking.save(Path(path)))
            case wire.RestoreState(state):
                self._talking.restore(state)
                return wire.StateRestored()
            case wire.ListDevices():
                return wire.Devices(tuple(_describe(device) for device in native.devices()), native.backends())
            case wire.Describe():
                return wire.Described(
                    llama_version=native.told_by("llama_version"),
                    ggml_version=native.told_by("ggml_version"),
                    commit=native.told_by("ggml_commit"),
                    backends=native.backends(),
                    libraries=native.gpu_libraries(),
                )
            case wire.Inspect(path):
                return _inspect(path)
            case wire.Simulate():
                return self._simulator.answer(command)
            case wire.Cancel() | wire.ExpectState():
                raise AssertionError("the reader takes these")

    @property
    def _talking(self) -> Talk:
        if self._talk is None:
            raise EngineError("no model is loaded")
        return self._talk

    def _with_template(self, loaded: Loaded) -> Loaded:
        template = self._talking.template
        return msgspec.structs.replace(loaded, template=template.name, template_is_fallback=template.is_fallback)

    # ── ends ─────────────────────────────────────────────────────────────────────────────
    def _fail(self, error: Exception) -> None:
        traceback.print_exc()
        self._die(wire.Failed(kind="died", reason=f"the worker failed: {error!r}; its log has the details"))

    def _card_died(self, name: str) -> None:
        self._die(wire.Failed(kind="died", reason=f"the process of {name} ended", card=name))

    def _aborted(self, message: str) -> None:
        """The library is about to abort: say what is known. A dead card's watcher may say it better."""
        time.sleep(0.1)
        self._die(_failed("died", self._model.why_aborted(message)))

    def _die(self, failure: wire.Failed) -> None:
        self._dying.acquire()  # for good: the first to know says why, the others wait for the end
        self._events.send_now(failure)
        self._end(1)

    def _end(self, code: int) -> None:
        self._cards.kill()
        os._exit(code)


def _failed(kind: wire.ErrorKind, error: EngineError) -> wire.Failed:
    return wire.Failed(
        kind=kind,
        reason=error.reason,
        card=error.card,
        wanted_mib=error.wanted_mib,
        free_mib=error.free_mib,
        key=error.key,
    )


def _describe(device: int) -> wire.Device:
    props = native.device_props(device)
    return wire.Device(
        name=native.device_name(device),
        description=flat((props.description or b"").decode("utf-8", "replace")),
        type=native.device_type(device),
        device_id=flat(props.device_id.decode("utf-8", "replace")) if props.device_id else None,
        total_mib=props.memory_total / native.MIB,
        free_mib=props.memory_free / native.MIB,
    )


def _inspect(path: str) -> wire.Event:
    try:
        return wire.Inspected(path=path, model=read_header(Path(path)))
    except HeaderError as error:
        return wire.Inspected(path=path, error=str(error))


def main() -> None:
    """Run on the pipe that the client made."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Worker(EventPipe(int(os.environ.pop(wire.EVENT_FD_VARIABLE)))).run()


if __name__ == "__main__":
    main()
