"""However the screen ends, the terminal is as it was, nothing is left, and the exit code says why."""

import contextlib
import os
import signal
import time

import psutil
import pytest

from tests.app.conftest import OpenTerminal
from tests.terminals import F8, QUIT, Terminal
from tests.waiting import wait_until

CRASH = """
import sys, threading
from workbench.app import app, terminal
from workbench.cli import failures, main

def fail(*_): raise RuntimeError('on purpose')
def fail_aside(self): threading.Thread(target=fail).start()

def stage():
    from tests.app.stage import make_app
    from workbench.app.run import show
    from workbench.engines.scripted import Script
    try:
        sys.exit(show(make_app(Script(tok_s=0))))
    except RuntimeError as error:
        sys.exit(failures.explain(error))

where = sys.argv.pop()
if where == 'input':
    terminal.Pastes.plain = fail
else:
    app.WorkbenchApp.action_messages = {'loop': fail, 'thread': fail_aside}[where]
main() if 'demo' in sys.argv else stage()
"""


def loaded(terminal: Terminal) -> list[psutil.Process]:
    """Wait for the demonstration to serve; worker, cards and helper."""
    terminal.wait_for("ctx 4096", timeout=60)
    children = terminal.children()
    assert len(children) >= 3
    return children


def gone(children: list[psutil.Process]) -> bool:
    return not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_a_signal_leaves_nothing(start: OpenTerminal, number: signal.Signals) -> None:
    terminal = start("demo", size=(80, 24))
    children = loaded(terminal)
    terminal.process.send_signal(number)
    code = terminal.process.wait(30)
    wait_until(lambda: gone(children))
    if number == signal.SIGKILL:
        assert code == -number
    else:
        assert code == 128 + number
        wait_until(lambda: terminal.restored)
        assert b"Traceback" not in terminal.written


def test_a_terminal_that_goes_leaves_nothing(start: OpenTerminal) -> None:
    terminal = start("demo", size=(80, 24))
    children = loaded(terminal)
    terminal.hang_up()
    assert terminal.process.wait(30) == 128 + signal.SIGHUP
    wait_until(lambda: gone(children))


@pytest.mark.parametrize("where", ["loop", "thread", "input"])
def test_a_fault_of_our_own_leaves_nothing(start: OpenTerminal, where: str) -> None:
    terminal = start(*(("demo",) if where == "loop" else ()), where, program=("-c", CRASH), size=(80, 24))
    children = loaded(terminal) if where == "loop" else []
    terminal.wait_for("ctx 4096")
    terminal.type(F8)
    assert terminal.process.wait(30) == 1
    wait_until(lambda: gone(children))
    wait_until(lambda: terminal.restored and b"workbench: unexpected RuntimeError: on purpose" in terminal.written)
    assert b"Traceback" not in terminal.written


def test_stopped_it_gives_the_terminal_back_and_takes_it_again(start: OpenTerminal) -> None:
    terminal = start("demo", size=(80, 24))
    children = loaded(terminal)
    process = psutil.Process(terminal.process.pid)
    for _ in range(2):
        os.kill(process.pid, signal.SIGTSTP)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        wait_until(lambda: terminal.restored)
        assert not gone(children)
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: not terminal.restored and terminal.shows("ctx 4096"))
    terminal.type(QUIT)
    assert terminal.process.wait(30) == 0
    wait_until(lambda: terminal.restored and gone(children))


def test_it_ends_though_the_link_stands_still(start: OpenTerminal) -> None:
    terminal = start("demo", size=(80, 24))
    children = loaded(terminal)
    terminal.reading.clear()
    _fill(terminal)
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.process.wait(30) == 128 + signal.SIGTERM
    wait_until(lambda: gone(children))
    terminal.reading.set()
    wait_until(lambda: terminal.restored)


def _fill(terminal: Terminal) -> None:
    """Make it draw more than a terminal that does not read takes."""
    for at in range(40):
        terminal.resize((80 + at % 2, 24))
        time.sleep(0.02)


@pytest.mark.parametrize("after_s", [0.0, 0.05])
def test_an_early_ctrl_c_says_nothing(start: OpenTerminal, after_s: float) -> None:
    terminal = start("--help", program=("-X", "frozen_modules=on", "-c", EARLY))
    wait_until(lambda: b"go" in terminal.written)
    time.sleep(after_s)
    with contextlib.suppress(ProcessLookupError):
        terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(30) in (0, -signal.SIGINT, 130)
    assert b"Traceback" not in terminal.written


EARLY = "import signal; from workbench.__main__ import main; print('go', flush=True); main()"
