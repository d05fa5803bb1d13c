"""The worker's process as its parent sees it: spawn, send, receive, end."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import msgspec

from workbench.domain.rules import check_env
from workbench.engines.engine import EngineDied, EngineError, LoadFailed
from workbench.engines.llama import wire

END_GRACE_S = 2.0
LOG_LIMIT_BYTES = 4 * 2**20


def worker_environment(env: Mapping[str, str | None], virtual: bool) -> dict[str, str]:
    """This process's environment as a worker gets it, with a layout's `env` on top.

    Cards are numbered as nvidia-smi numbers them unless the user asked otherwise. Virtual
    cards share the host's cores, so their threads may not spin against each other. Raises
    LoadFailed for a variable that no layout may set.
    """
    out = dict(os.environ)
    out.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    out["GGML_NO_BACKTRACE"] = "1"
    if virtual:
        out.setdefault("OMP_WAIT_POLICY", "passive")
    for name, message in check_env(env):
        raise LoadFailed(f"{name} {message}", key=f"env.{name}")
    for name, value in env.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = value
    return out


class WorkerProcess:
    """One worker: its process group, the commands to it and the events from it.

    `on_end` is called once, from the reading thread, with the reason when the process ends
    and was not asked to.
    """

    def __init__(self, env: Mapping[str, str], log: Path, on_end: Callable[[EngineDied], None]) -> None:
        self.environment = dict(env)
        self._on_end = on_end
        self._closing = False
        self._sending = threading.Lock()
        self._ended_because: str | None = None
        self.events: queue.SimpleQueue[wire.Event | EngineDied] = queue.SimpleQueue()
        self.died: EngineDied | None = None
        receive, give = os.pipe()
        try:
            with _open_log(log) as output:
                self.process = subprocess.Popen(
                    # -P: a `queue.py` in the current folder must not stand in for Python's own.
                    [sys.executable, "-P", "-m", "workbench.engines.llama.child.worker"],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env={**env, wire.EVENT_FD_VARIABLE: str(give)},
                    pass_fds=(give,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(receive)
            raise
        finally:
            os.close(give)
        self._reader = threading.Thread(target=self._read, args=(receive,), name="worker-events", daemon=True)
        self._reader.start()

    def send(self, command: wire.Command) -> None:
        """Send a command. Raises EngineDied where the process is gone, EngineError for half a character."""
        self.send_line(as_line(command))

    def send_line(self, line: bytes) -> None:
        """Send a command that is a line already. Raises EngineDied where the process is gone."""
        assert self.process.stdin is not None
        rest = memoryview(line)
        try:
            with self._sending:
                while rest:
                    rest = rest[self.process.stdin.write(rest) :]
        except (OSError, ValueError) as error:
            self._reader.join(END_GRACE_S)
            raise self.died or EngineDied("the engine's process is gone") from error

    def _read(self, receive: int) -> None:
        failure: wire.Failed | None = None
        with os.fdopen(receive, "rb") as lines:
            for line in lines:
                try:
                    event = wire.decode_event(line)
                except msgspec.DecodeError:
                    continue  # the last line of a process that was killed while it wrote
                if isinstance(event, wire.Failed) and event.kind == "died":
                    failure = event
                else:
                    self.events.put(event)
        self.process.wait()
        self._end_group()
        self.died = self._reason(failure)
        self.events.put(self.died)
        if not self._closing:
            self._on_end(self.died)

    def _reason(self, failure: wire.Failed | None) -> EngineDied:
        if failure is not None:
            return EngineDied.of(failure)
        if self._ended_because is not None:
            return EngineDied(self._ended_because)
        code = self.process.returncode
        if code < 0:
            return EngineDied(f"the engine's process was ended by {signal.Signals(-code).name}")
        return EngineDied(f"the engine's process ended with code {code}; its log says why")

    def adopt(self, on_end: Callable[[EngineDied], None]) -> bool:
        """Report the end to someone else from now on; False if it has ended already."""
        self._on_end = on_end
        return self.alive

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def terminate(self, because: str) -> None:
        """Ask it to end by signal, and insist a second later. `because` is its cause of death."""
        self._ended_because = because
        self.process.terminate()
        insist = threading.Timer(1.0, self.kill)
        insist.daemon = True
        insist.start()

    def kill(self) -> None:
        """End the whole process group at once; its cards too."""
        if self.alive:
            self._end_group()

    def _end_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it by closing its stdin, or by force; all of its memory is free on return."""
        self._closing = True
        if self._close_stdin(END_GRACE_S):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_GRACE_S)
        self.kill()
        self.process.wait()
        self._reader.join()
        self._close_stdin(-1)

    def _close_stdin(self, timeout_s: float) -> bool:
        """Close it once nobody writes; False where someone still does, to a process that does not read."""
        assert self.process.stdin is not None
        if not self._sending.acquire(timeout=timeout_s):
            return False
        try:
            self.process.stdin.close()
        finally:
            self._sending.release()
        return True


def as_line(command: wire.Command) -> bytes:
    """A command as it is sent. Raises EngineError for text that is no text."""
    try:
        return wire.encode(command)
    except UnicodeEncodeError:
        raise EngineError("the text or a path holds half a character (a lone surrogate): it is not UTF-8") from None


def _open_log(path: Path) -> IO[bytes]:
    """The log, open to append; a long one is put aside first. An engine runs without one if need be."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_LIMIT_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    try:
        return path.open("ab")
    except OSError:
        return open(os.devnull, "ab")
