"""The next start: as it was left. Hints: once."""

from functools import partial
from pathlib import Path

import pytest

from tests.app.stage import ask, make_app, running, until
from workbench.app.app import WorkbenchApp
from workbench.app.keymap import Keymap
from workbench.app.memory import HINTS, Memory
from workbench.app.outside import Outside
from workbench.app.panes.bars import Header, Tabs
from workbench.engines.scripted import Script
from workbench.lab.cards import Inventory


def remembered(path: Path, keymap: Keymap | None = None) -> WorkbenchApp:
    return make_app(Script(tok_s=0), memory=Memory(path), keymap=keymap)


def said(app: WorkbenchApp) -> list[str]:
    return [one.message for one in app.said]


async def test_the_next_start_is_as_the_last_one_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)
    path = tmp_path / "screen.json"
    app = remembered(path)
    async with running(app, (80, 24)) as pilot:
        app.main.chat.prompt.insert("half a thought")
        app.main.go_to(app.main.cards)
        await pilot.press("l")
        app.theme = "textual-light"
        await pilot.pause()
        app.exit()
    app = remembered(path)
    async with running(app, (80, 24)):
        assert app.theme == "textual-light"
        assert app.main.where == "prompt"
        assert app.main.query_one(Tabs).chat
        assert app.main.cards.compact is app.memory.state.compact is not None
        assert app.main.chat.prompt.text == "half a thought"


async def test_themes_draw_the_screen_and_are_remembered(tmp_path: Path) -> None:
    app = remembered(tmp_path / "screen.json")
    async with running(app) as pilot:
        assert {"terminal-dark", "terminal-light", "textual-light"} <= set(app.available_themes)
        for theme in sorted(app.available_themes)[::4]:
            app.theme = theme
            await pilot.pause()
            assert app.memory.state.theme == theme


async def test_a_theme_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "screen.json"
    path.write_text('{"version": 1, "theme": "of-another-time"}')
    app = remembered(path)
    async with running(app):
        assert app.theme in app.available_themes


async def test_a_damaged_state_is_told_and_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "screen.json"
    path.write_text("{")
    memory = Memory(path)
    assert memory.trouble is not None
    app = make_app(Script(tok_s=0), memory=memory)
    async with running(app):
        assert app.main.where == "prompt"


async def test_each_hint_is_shown_once_and_never_over_something_else(tmp_path: Path) -> None:
    path = tmp_path / "screen.json"
    keymap = Keymap({"compare": "f5", "runs": "f3"})
    hints = {name: keymap.words(text) for name, text in HINTS.items()}
    app = remembered(path, keymap)
    async with running(app) as pilot:
        app.say("something that matters", problem=True)
        await pilot.press("f6", "f6")
        assert said(app) == ["something that matters"]
        app.main.status.dismiss()
        await ask(pilot, app, "one")
        await until(pilot, lambda: hints["reply"] in said(app))
        app.main.status.dismiss()
        await pilot.press("f6", "f6", "f6")
        assert said(app).count(hints["split"]) == 1
        app.main.status.dismiss()
        await pilot.press("left", "enter")
        await until(pilot, lambda: hints["change"] in said(app))
    assert "F5 measures both" in hints["change"]
    assert not any(Memory(path).due(name) for name in HINTS)


async def test_a_hint_goes_away_by_itself_and_what_else_was_said_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.app.app.HINT_S", 0.05)
    app = remembered(tmp_path / "screen.json")
    async with running(app) as pilot:
        await pilot.press("f6")
        await until(pilot, lambda: said(app) and not app.main.status.display)
        assert "A draft" in said(app)[0]
        app.say("something else")
        app.main.status.forget("A draft: it was")
        assert app.main.status.display


async def test_cards_that_the_build_cannot_use_are_named_in_the_title() -> None:
    found = Inventory(cards=(), lack="…", helps="make venv", warning="2 NVIDIA cards, built without CUDA")
    for size in ((120, 40), (80, 24), (60, 20)):
        app = make_app(Script(tok_s=0), Outside(find_cards=lambda: found))
        async with running(app, size) as pilot:
            line = app.main.query_one(Header)
            await until(pilot, partial(getattr, line, "warning"))
            assert "2 NVIDIA cards, built without CUDA" in str(line.render())
            assert line.render().cell_length <= size[0] - 2
