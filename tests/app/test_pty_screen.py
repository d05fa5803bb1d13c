"""The screen in terminals of many kinds: what they are sent, and what is on them then."""

import base64
import json
import re
import time
from pathlib import Path

import psutil
import pytest

from tests.app.conftest import OpenTerminal
from tests.terminals import ENTER, ESC, QUIT, Terminal
from tests.waiting import wait_until

STAGE = """
import asyncio, json, sys, threading, time
from workbench.app.run import set_defaults, show
set_defaults()
from textual import constants
from tests.app.stage import make_app
from workbench.engines.scripted import Script

script = Script(**json.loads(sys.argv[1]))
app = make_app(script)
longest = 0.0

async def tick():
    global longest
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - before)

app.call_later(lambda: setattr(app, 'ticking', asyncio.create_task(tick())))
code = show(app)
turns = [[turn.reply, turn.timing.decode_tok_s] for turn in app.session.conversation.turns]
said = {'turns': turns, 'stood_s': longest, 'fps': constants.MAX_FPS, 'animations': constants.TEXTUAL_ANIMATIONS,
        'colours': str(app.console.color_system)}
print('\\nSAID ' + json.dumps(said))
sys.exit(code)
"""
# ruff: noqa: RUF001
MIXED = "你好世界 🙂 👩‍👩‍👧 ❤️ 🇩🇪 é\n\nمرحبا بالعالم\n\nשלום עולם\n\nनमस्ते"
COLOURS = re.compile(rb"\x1b\[([0-9;]+)m")


def stage(start: OpenTerminal, script: dict[str, object] | None = None, **options: object) -> Terminal:
    """The app over a scripted engine, its first layout loaded."""
    terminal = start(json.dumps({"tok_s": 0, **(script or {})}), program=("-c", STAGE), **options)
    wait_until(lambda: terminal.shows("layer 1:1") or terminal.process.poll() is not None, 30)
    assert terminal.process.poll() is None, terminal.written
    return terminal


def ask(terminal: Terminal, prompt: str = "hello") -> None:
    terminal.type(prompt.encode() + ENTER)
    terminal.wait_for("first token")


def at_rest(terminal: Terminal) -> list[str]:
    """What is on the screen once nothing more comes."""
    seen: list[list[str]] = []

    def still() -> bool:
        seen.append(terminal.lines())
        return len(seen) > 40 and all(lines == seen[-1] for lines in seen[-40:])

    wait_until(still)
    return seen[-1]


def end(terminal: Terminal) -> dict[str, object]:
    """Quit; what the app said of itself."""
    terminal.type(QUIT)
    assert terminal.process.wait(30) == 0
    wait_until(lambda: terminal.restored and b"SAID" in terminal.written)
    said: dict[str, object] = json.loads(terminal.written.rpartition(b"SAID ")[2].splitlines()[0])
    return said


def colours(terminal: Terminal) -> set[str]:
    """All parameters of SGR that were sent, but for those of attributes."""
    return {code.decode() for codes in COLOURS.findall(terminal.written) for code in _split(codes)}


def _split(codes: bytes) -> list[bytes]:
    """`1;34;49` as 1, 34, 49; `38;5;12` as one."""
    return re.findall(rb"[34]8;(?:5;\d+|2;\d+;\d+;\d+)|\d+", codes)


def test_a_link_that_stands_still_loses_nothing_and_changes_no_figure(start: OpenTerminal) -> None:
    words = " ".join(f"w{number}" for number in range(200))
    terminal = stage(start, {"reply": words, "tok_s": 100.0})
    terminal.type(b"count" + ENTER)
    terminal.wait_for("w5")
    begun = time.monotonic()
    terminal.reading.clear()
    while time.monotonic() < begun + 3:  # longer than the reply takes, and more than the line holds
        terminal.resize((118, 40))
        terminal.resize((120, 40))
        time.sleep(0.05)
    stood_s = time.monotonic() - begun
    terminal.reading.set()
    wait_until(lambda: terminal.shows("w199") and terminal.shows("tok/s ·"))
    caught_up = at_rest(terminal)
    terminal.resize((100, 30))
    terminal.resize((120, 40))
    wait_until(lambda: terminal.lines() == caught_up)
    said = end(terminal)
    turns = said["turns"]
    assert isinstance(turns, list)
    (reply, tok_s), = turns
    assert reply.split() == words.split()
    assert tok_s > 40, "the engine waited for the link"
    assert isinstance(said["stood_s"], float)
    assert said["stood_s"] < stood_s / 2, "the app waited for the link"


def test_a_storm_of_sizes_ends_in_the_right_picture(start: OpenTerminal) -> None:
    terminal = stage(start, size=(80, 24))
    ask(terminal)
    before = terminal.lines()
    for number in range(100):
        terminal.resize((60 + number % 90, 20 + number % 30))
    terminal.resize((59, 19))
    terminal.wait_for("too small: 60 columns and 20 lines are")
    wait_until(lambda: sum(bool(line.strip()) for line in terminal.lines()) == 2)
    terminal.resize((80, 24))
    wait_until(lambda: terminal.lines() == before)
    end(terminal)


def test_dialogs_give_way_in_a_terminal_that_is_too_small(start: OpenTerminal) -> None:
    terminal = stage(start, size=(80, 24))
    terminal.type(b"\x1bOP")
    terminal.wait_for("Help")
    terminal.resize((50, 15))
    wait_until(lambda: terminal.shows("too small") and not terminal.shows("Help"))
    terminal.resize((80, 24))
    terminal.wait_for("Help")


@pytest.mark.parametrize(
    ("env", "allowed", "some"),
    [
        ({"NO_COLOR": "1"}, r"39|49|[0-9]|2[1-9]", False),
        ({"TERM": "vt100"}, r"39|49|[0-9]|2[1-9]", False),
        ({"TERM": "xterm-16color"}, r"[34][0-79]|9[0-7]|10[0-7]|[0-9]|2[1-9]", True),
        ({"COLORFGBG": "0;15", "TERM": "xterm-256color"}, r"[34][0-79]|9[0-7]|10[0-7]|[0-9]|2[1-9]|[34]8;5;\d+", True),
        (
            {"SSH_CONNECTION": "a 1 b 2", "COLORTERM": "truecolor"},
            r"[34][0-79]|9[0-7]|10[0-7]|[0-9]|2[1-9]|[34]8;5;\d+",
            True,
        ),
    ],
    ids=["no-color", "vt100", "16", "light", "ssh"],
)
def test_colours_are_those_that_the_terminal_has(
    start: OpenTerminal, env: dict[str, str], allowed: str, some: bool
) -> None:
    terminal = stage(start, env=env)
    ask(terminal)
    terminal.type(b"\x1b[17~")
    wait_until(lambda: terminal.shows("← →") or terminal.shows("< >"))
    sent = colours(terminal)
    assert {code for code in sent if not re.fullmatch(allowed, code)} == set()
    assert any(code in sent for code in ("34", "94", "38;5;4")) is some
    said = end(terminal)
    if "SSH_CONNECTION" in env:
        assert (said["fps"], said["animations"], said["colours"]) == (15, "none", "256")


@pytest.mark.parametrize("env", [{"WORKBENCH_ASCII": "1"}, {"LANG": "C"}], ids=str)
def test_without_line_drawing_all_is_ascii(start: OpenTerminal, env: dict[str, str]) -> None:
    terminal = stage(start, env=env)
    ask(terminal)
    terminal.type(b"\x1b[17~" + b"\x1b[C" * 3)
    wait_until(lambda: terminal.shows("+- Split") and terminal.shows("+3"))
    terminal.type(b"\x1bOP")
    terminal.wait_for("Help")
    terminal.type(ESC)
    wait_until(lambda: not terminal.shows("Help"))
    terminal.type(b"\x10")
    terminal.wait_for("Search for commands")
    assert terminal.written.isascii()


def test_wide_and_right_to_left_text_moves_nothing(start: OpenTerminal) -> None:
    terminal = stage(start, {"reply": MIXED})
    ask(terminal, "你好 🙂 שלום")
    shown = "\n".join(terminal.lines())
    for piece in ("你好世界 🙂 👩 ❤", "DE é", "مرحبا بالعالم", "שלום עולם", "नम"):
        assert piece in shown.replace("é", "é")
    right = terminal.cells(59)[2:-3]
    assert set(right) <= {"│", "┤", "╯", "╮"}, right
    said = end(terminal)
    assert isinstance(said["turns"], list)
    assert said["turns"][0][0].split() == MIXED.split()


def test_copying_goes_to_the_terminal_and_to_files_that_overwrite_nothing(start: OpenTerminal, tmp_path: Path) -> None:
    (tmp_path / "reply-1.md").write_text("mine")
    (tmp_path / "chat.md").write_text("mine")
    terminal = stage(start, {"reply": "four words of text"})
    ask(terminal, "hello there")
    terminal.type(b"\x1b[Z" * 4)
    terminal.wait_for("copy")
    terminal.type(b"y")
    wait_until(lambda: b"\x1b]52;c;" + base64.b64encode(b"four words of text") in terminal.written)
    terminal.type(b"w")
    wait_until((tmp_path / "reply-2.md").exists)
    assert (tmp_path / "reply-2.md").read_text() == "four words of text\n"
    for name in ("chat.md", "chat.txt", "~nobody-of-that-name/x.md", "talk.md", "talk.jsonl"):
        terminal.type(b"\x0f")
        terminal.wait_for("Save the chat")
        terminal.type(name.encode() + ENTER)
        if name.startswith("talk"):
            wait_until((tmp_path / name).exists)
            wait_until(lambda: not terminal.shows("Save the chat"))
        else:
            terminal.wait_for("not saved")
            terminal.type(b"\x1b[27u")
            wait_until(lambda: not terminal.shows("Save the chat"))
    assert (tmp_path / "reply-1.md").read_text() == (tmp_path / "chat.md").read_text() == "mine"
    text = (tmp_path / "talk.md").read_text()
    assert text.startswith("# Chat with ")
    assert "## You\n\nhello there\n\n## Model\n\nfour words of text\n\n*" in text
    (turn,) = map(json.loads, (tmp_path / "talk.jsonl").read_text().splitlines())
    assert (turn["prompt"], turn["reply"].strip()) == ("hello there", "four words of text")


def test_the_mouse_can_be_left_to_the_terminal(start: OpenTerminal) -> None:
    terminal = stage(start, env={"WORKBENCH_MOUSE": "0"})
    end(terminal)
    assert b"\x1b[?1000h" not in terminal.written
    assert b"\x1b[?1003h" not in terminal.written


def test_without_a_shell_nothing_is_suspended(start: OpenTerminal) -> None:
    terminal = stage(start)
    terminal.type(b"\t\t\x1a")
    terminal.wait_for("no shell here")
    assert psutil.Process(terminal.process.pid).status() != psutil.STATUS_STOPPED
