"""Whatever strangers write, what is drawn is text: it steers nothing, links nowhere and breaks no line."""

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.content import Content
from textual.pilot import Pilot
from textual.screen import Screen

from tests.app.hostile import STEERING, hostile, hostile_app
from tests.app.stage import ask, make_app, running, until
from tests.waiting import wait_until
from workbench.app.app import WorkbenchApp
from workbench.app.guard import Guard
from workbench.app.wording import whereto
from workbench.domain.layout import Layout
from workbench.domain.text import clean, escaped_json, flat, tame, visible
from workbench.engines.engine import LoadFailed
from workbench.engines.scripted import Script

SIZE = (120, 40)


def drawn(screen: Screen[object]) -> list[str]:
    """The lines of a screen as they go to the terminal, once each was seen to be text and as wide as the screen."""
    lines = []
    for strip in screen._compositor.render_strips():
        for text, style, _ in strip:
            assert text.isprintable() or set(text) <= {"\xa0"}, ascii(text)
            assert style is None or style.link is None
            assert style is None or style.meta.get("@click", "link('").startswith(("link('", 'link("'))
        line = "".join(text for text, _, _ in strip)
        assert cell_len(line) == SIZE[0], ascii(line)
        lines.append(line)
    return lines


async def everything(app: WorkbenchApp, pilot: Pilot[None]) -> dict[str, list[str]]:
    """What each screen shows, by its name."""
    seen = {"start": drawn(app.screen)}
    await ask(pilot, app, hostile("prompt"))
    await pilot.press("ctrl+t")
    seen["chat"] = drawn(app.screen)
    await app.main.chat.log_view.turns[0].be_still()
    await pilot.pause()
    seen["still"] = drawn(app.screen)
    for key, name in (("f2", "layouts"), ("f4", "models")):
        await pilot.press(key)
        await until(pilot, lambda: app.screen.query("OptionList") and app.screen.query_one("OptionList").option_count)  # type: ignore[attr-defined]
        await pilot.press("down")
        await pilot.pause()
        seen[name] = drawn(app.screen)
        await pilot.press("escape")
    app.main.go_to(app.main.cards)
    await pilot.press("enter")
    await pilot.pause()
    seen["card"] = drawn(app.screen)
    await pilot.press("escape")
    app.say(hostile("notice"))
    app.say(hostile("problem"), problem=True)
    await pilot.pause()
    seen["status"] = drawn(app.screen)
    await pilot.press("f8")
    await pilot.pause()
    seen["messages"] = drawn(app.screen)
    return seen


async def test_nothing_drawn_steers_or_links() -> None:
    app = hostile_app()
    async with running(app, SIZE) as pilot:
        seen = await everything(app, pilot)
    for name, what in (("chat", "reply"), ("layouts", "file"), ("models", "metadata"), ("card", "card")):
        assert any(what in line for line in seen[name]), name
    assert any("[@click=app.quit]q[/]" in line for line in seen["messages"])  # markup is shown, not read


async def test_a_failure_in_the_engines_words_is_text() -> None:
    app = make_app(Script(fail_load=LoadFailed(hostile("reason"), card="CUDA0")))
    async with running(app, SIZE, loaded=False) as pilot:
        await until(pilot, lambda: any(said.problem for said in app.said))
        await pilot.pause()
        assert any("reason" in line for line in drawn(app.screen))


def test_the_last_look_mends_what_a_widget_forgot() -> None:
    """Whatever is drawn, as wide as it was; plain text goes through as it is."""
    forgotten = Segment(hostile("x", lines=True), Style(bold=True, link="http://evil.example"))
    plain = Segment("plain ▓ 漢字", Style(bold=True))
    mended, same = Guard().apply([forgotten, plain], Color(0, 0, 0))
    assert mended.text.isprintable()
    assert mended.cell_length == forgotten.cell_length
    assert mended.style is not None
    assert (mended.style.link, mended.style.bold) == (None, True)
    assert same is plain


def test_the_title_tells_where_what_is_said_goes() -> None:
    there = Layout(name="a", engine="openai", model="m", url="https://api.example.org/v1")
    assert whereto(there) == " at api.example.org"
    assert whereto(msgspec.structs.replace(there, url="http://127.0.0.1:8080")) == ""
    assert whereto(Layout(name="a", model="m.gguf")) == ""


def test_titles_take_no_markup() -> None:
    """A border's title that is no Content is read as markup."""
    folder = Path(__file__).parents[2] / "workbench" / "app"
    for path in folder.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "border_title = f" in line or "border_subtitle = f" in line:
                harmless = ("turn {index + 1}", "{NAMES[metric]}", "{UNITS[metric]}")
                assert any(part in line for part in harmless), f"{path}:{number}: put it into Content(…)"
            assert "from_markup" not in line, f"{path}:{number}"
            assert "markup=True" not in line, f"{path}:{number}"
    assert Content("[b]x[/b]").plain == "[b]x[/b]"


# ── the text itself ───────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("piece", "shown"), STEERING.items(), ids=ascii)
def test_each_piece(piece: str, shown: str) -> None:
    assert clean(f"a{piece}b") == f"a{shown}b"
    assert flat(f"a\n{piece}\tb") == " ".join(f"a {shown} b".split())
    assert visible(piece).isprintable()
    assert clean(clean(piece)) == clean(piece)


@pytest.mark.parametrize(
    "text",
    ["Zoë, naïve, Ångström", "नमस्ते", "ภาษาไทย", "می‌خواهم", "שָׁלוֹם עֲלֵיכֶם", "👩‍💻 👍🏽 🇩🇪 ❤️", "a\n\tb", "한글 漢字"],
)
def test_letters_of_all_scripts_stay_also_piece_by_piece(text: str) -> None:
    assert clean(text) == text
    assert "".join(map(tame, text)) == text


def test_marks_neither_tower_nor_stand_loose() -> None:
    assert clean("o" + "\u0301" * 60) == "o" + "\u0301" * 4
    assert clean("a\n\u0301\u200db") == "a\nb"


def test_json_stays_what_it_is() -> None:
    value = {"a": "\x9b\u202e\U000e0041\u2028b"}
    text = escaped_json(json.dumps(value, ensure_ascii=False))
    assert text.isprintable()
    assert json.loads(text) == value


# ── a real terminal ───────────────────────────────────────────────────────────────────────
class Tmux:
    """A tmux server of its own, with one window."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux")
        self._folder = folder

    def __call__(self, *words: str) -> str:
        env = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        done = subprocess.run(["tmux", "-f", "/dev/null", "-S", self._socket, *words], capture_output=True, text=True,
                              env=env, timeout=30)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def open(self, name: str, *words: str) -> None:
        """Run the hostile screen in a window of its own."""
        root = str(Path(__file__).parents[2])
        command = ["env", f"PYTHONPATH={root}", "TEXTUAL_ANIMATIONS=none", "COLORTERM=", "TMUX=", "TERM=tmux-256color",
                   sys.executable, "-m", "tests.app.hostile", *words]  # fmt: skip
        self("new-session", "-d", "-s", name, "-n", "window", "-x", str(SIZE[0]), "-y", str(SIZE[1]), "-c",
             str(self._folder), *command)  # fmt: skip

    def pane(self, name: str) -> str:
        """What is on the screen, without the figures of the reply."""
        return re.sub(r"[\d.]+ tok/s ·[^│]*", "", self("capture-pane", "-p", "-t", name))


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    it = Tmux(tmp_path)
    yield it
    it("kill-server")


def test_a_tmux_screen_shows_the_same_as_of_plain_text(tmux: Tmux) -> None:
    """Of hostile text and of what should be shown of it: the panes are the same, cell by cell."""
    names = {"hostile": (), "plain": ("plain",)}
    for name, words in names.items():
        tmux.open(name, *words)
    for name in names:
        wait_until(lambda name=name: "tok/s" in tmux.pane(name) and "hint" in tmux.pane(name), 60)  # type: ignore[misc]
    titles = {name: tmux("display-message", "-p", "-t", name, "#{pane_title}") for name in names}

    def both_show(*texts: str) -> None:
        panes: list[str] = []

        def same() -> bool:
            panes[:] = [tmux.pane(name) for name in names]
            return all(text in panes[0] for text in texts) and panes[0] == panes[1]

        try:
            wait_until(same, 20)
        except AssertionError:
            raise AssertionError("\n".join(difflib.ndiff(panes[0].splitlines(), panes[1].splitlines()))) from None

    def press(*keys: str) -> None:
        for name in names:
            tmux("send-keys", "-t", name, *keys)

    both_show("metadata")
    press("hello", "Enter")
    both_show("The end.", "click", "[@click=app.quit]q[/]")
    press("F4")
    both_show("Models", "broken")
    press("Escape")
    press("F2")
    both_show("Layouts", "error")
    assert {name: tmux("display-message", "-p", "-t", name, "#{pane_title}") for name in names} == titles
    assert "owned" not in titles["hostile"]
