"""The terminal: bytes of any kind, pastes of anything, SIGCONT at any time, a line that is cut."""

import contextlib
import os
import re
import selectors
import signal
from codecs import getincrementaldecoder
from io import TextIOWrapper
from typing import TextIO, cast

from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from workbench.app.abilities import encoding
from workbench.app.outlet import Outlet
from workbench.domain.text import clean

ENDING = (
    signal.SIGTERM, signal.SIGHUP, signal.SIGINT,
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGXCPU,
)  # fmt: skip
"""What ends the app, also by the hand of a batch system; its exit code is then 128 and the signal's number."""

_START, _END = "\x1b[200~", "\x1b[201~"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_TICK_S = 0.1
_READ_BYTES = 4096


class Pastes:
    """Takes out of what is pasted all that Textual's parser would run as keys: colours, control characters."""

    def __init__(self) -> None:
        self._held: list[str] | None = None
        self._tail = ""

    def plain(self, text: str) -> str:
        """What the parser may have now; a paste is held back until its end is there."""
        out = []
        while text:
            if self._held is None:
                at = (self._tail + text).find(_START)
                if at < 0:
                    out.append(text)
                    self._tail = (self._tail + text)[1 - len(_START) :]
                    break
                begun = at + len(_START) - len(self._tail)
                out.append(text[:begun])
                self._held, self._tail, text = [], "", text[begun:]
            else:
                at = (self._tail + text).find(_END)
                self._held.append(text)
                if at < 0:
                    self._tail = (self._tail + text)[1 - len(_END) :]
                    break
                pasted, _, text = "".join(self._held).partition(_END)
                out += _text(pasted), _END
                self._held, self._tail = None, ""
        return "".join(out)


def _text(pasted: str) -> str:
    return clean(_SEQUENCE.sub("", pasted.replace("\r\n", "\n").replace("\r", "\n")))


class Terminal(LinuxDriver):
    """Textual's own driver, which ends or hangs on some of what terminals do."""

    _ended = False
    _outlet: Outlet | None = None

    def start_application_mode(self) -> None:
        """Take the terminal; signals that end the process put it right first."""
        if self._outlet is None:
            file = cast(TextIO, self._file)
            self._outlet = Outlet(file.fileno(), encoding(os.environ), self._caught_up)
            self._file = cast(TextIOWrapper, self._outlet)
        for number in ENDING:
            self._loop.add_signal_handler(number, self._end, number)
        self._ended = False
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def suspend_application_mode(self) -> None:
        """Let go of the terminal for a while."""
        self._ended = True
        super().suspend_application_mode()

    def stop_application_mode(self) -> None:
        """Put the terminal right, also one that takes nothing at the moment."""
        if self._outlet is not None:
            self._outlet.clear_the_way()
        super().stop_application_mode()

    def close(self) -> None:
        """Wait for the last words."""
        super().close()
        if self._outlet is not None:
            self._outlet.finish()

    @property
    def can_suspend(self) -> bool:
        """Whether a shell of this session would bring the process back."""
        return os.getsid(os.getppid()) == os.getsid(0) != os.getpid()

    @property
    def behind(self) -> bool:
        """Whether the terminal has not taken the last pictures yet; the app draws anew once it has."""
        return self._outlet is not None and self._outlet.behind

    def _caught_up(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._app.refresh)

    def _end(self, number: int) -> None:
        self._app.exit(return_code=128 + number)

    def _run_input_thread(self) -> None:
        # A fault is met like that of any thread; Textual's own way ends with exit code 0.
        self.run_input_thread()

    def run_input_thread(self) -> None:
        """Read until the end. What is no text is shown as such; a terminal that is gone ends the app."""
        decode = getincrementaldecoder(encoding(os.environ))("replace").decode
        parser, pastes = XTermParser(self._debug), Pastes()
        with selectors.SelectSelector() as ready:
            ready.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if ready.select(_TICK_S):
                    try:
                        data = os.read(self.fileno, _READ_BYTES)
                    except BlockingIOError:
                        continue
                    except OSError:
                        data = b""
                    if not data:
                        self._loop.call_soon_threadsafe(self._end, signal.SIGHUP)
                        return
                    # The parser takes an empty text for the end.
                    if text := pastes.plain(decode(data)):
                        for message in parser.feed(text):
                            self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)

    def _sigtstp_application(self, *_: object) -> None:
        # In the loop: a handler that runs while something is written would wait for itself.
        self._loop.call_soon_threadsafe(super()._sigtstp_application)

    def _sigcont_application(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._come_back)

    def _come_back(self) -> None:
        """SIGCONT follows a SIGSTOP and a hang-up too: what was not let go of is begun anew, if it is there."""
        if not self._auto_restart or not os.isatty(self.fileno):
            return
        if not self._ended:
            self.suspend_application_mode()
        self.resume_application_mode()
        self._app.refresh(layout=True)


def take_terminal(app: App[None]) -> None:
    """Let the app use this driver, unless it was told to use another."""
    if app.driver_class is LinuxDriver:
        app.driver_class = Terminal
