"""The command in a real terminal, as far as the command line is concerned."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.terminals import Terminal
from tests.waiting import wait_until
from workbench.cli.failures import Code


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    made: list[Terminal] = []
    yield made
    for terminal in made:
        terminal.close()


@pytest.mark.parametrize("args", [("demo",), ("layouts/small.yaml",)])
def test_the_screen_opens_loads_and_ends_cleanly(
    folder: Path, terminals: list[Terminal], args: tuple[str, ...]
) -> None:
    terminals.append(terminal := Terminal(folder, *args))
    wait_until(lambda: b"RPC1" in terminal.written, 60)
    started = psutil.Process(terminal.process.pid).children(recursive=True)
    assert started
    terminal.type(b"\x11")
    assert terminal.process.wait(30) == Code.DONE, terminal.written[-2000:]
    assert b"Traceback" not in terminal.written
    wait_until(lambda: not any(child.is_running() for child in started))


def test_bytes_that_are_no_text_and_coloured_pastes_do_no_harm(folder: Path, terminals: list[Terminal]) -> None:
    terminals.append(terminal := Terminal(folder, "layouts/small.yaml"))
    wait_until(lambda: b"RPC1" in terminal.written, 60)
    terminal.type(b"\xff\x9b")
    terminal.type(b"\x1b[200~one \x1b[31mtwo\x11\x1b[0m three\x1b[201~")
    wait_until(lambda: b"one two three" in terminal.written)
    terminal.type(b"\x11")
    assert terminal.process.wait(30) == Code.DONE, terminal.written[-2000:]


def test_stopped_and_continued_it_still_ends(folder: Path, terminals: list[Terminal]) -> None:
    terminals.append(terminal := Terminal(folder, "layouts/small.yaml"))
    wait_until(lambda: b"RPC1" in terminal.written, 60)
    screen = psutil.Process(terminal.process.pid)
    before = screen.num_threads()
    for _ in range(3):
        terminal.written = b""
        screen.suspend()
        screen.resume()
        wait_until(lambda: b"\x1b[?1049h" in terminal.written)
    assert screen.num_threads() <= before + 2, "each SIGCONT leaves threads behind"
    terminal.type(b"\x11")
    assert terminal.process.wait(30) == Code.DONE, terminal.written[-2000:]


def test_what_cannot_be_opened_is_said_without_a_screen(folder: Path, terminals: list[Terminal]) -> None:
    terminals.append(terminal := Terminal(folder, "nothing.gguf"))
    assert terminal.process.wait(30) == Code.WRONG
    wait_until(lambda: b"nothing.gguf" in terminal.written)
    assert b"\x1b[?1049h" not in terminal.written
