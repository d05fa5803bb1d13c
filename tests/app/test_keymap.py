"""One registry of keys: no clash, nothing unreachable, nothing that a terminal cannot send."""

import re
from collections import Counter

import pytest

from tests.app.stage import make_app, running
from workbench.app.app import WorkbenchApp
from workbench.app.keymap import KEYS, Key, Where, footer_keys, help_lines, shown
from workbench.app.panes.cards import CardsPane
from workbench.app.panes.change import ChangePane
from workbench.app.panes.chat import ChatLog
from workbench.app.panes.prompt import Prompt
from workbench.app.panes.split import SplitPane
from workbench.app.screens.ab_run import ABScreen
from workbench.app.screens.ab_setup import SetupScreen
from workbench.app.screens.main import MainScreen
from workbench.app.screens.runs import RunsScreen
from workbench.engines.scripted import Script

OWNERS: dict[Where, type] = {
    "anywhere": MainScreen, "prompt": Prompt, "chat": ChatLog, "cards": CardsPane, "split": SplitPane,
    "change": ChangePane, "setup": SetupScreen, "result": ABScreen, "runs": RunsScreen,
}  # fmt: skip


def test_no_key_is_bound_twice_in_a_pane() -> None:
    assert [key for key, count in Counter((key.where, key.keys) for key in KEYS).items() if count > 1] == []


def test_keys_are_those_that_every_terminal_sends() -> None:
    allowed = re.compile(
        r"[a-z0-9]|f\d|f10|ctrl\+[a-z]|enter|escape|(shift\+)?tab|up|down|left|right"
        r"|left_square_bracket|right_square_bracket|equals_sign"
    )
    assert [key.keys for key in KEYS if not allowed.fullmatch(key.keys)] == []


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.where}-{key.keys}")
def test_every_key_has_something_to_do(key: Key) -> None:
    where, action = key.where, key.action.partition("(")[0]
    owner = WorkbenchApp if action.startswith("app.") else OWNERS[where]
    assert hasattr(owner, f"action_{action.removeprefix('app.')}")


@pytest.mark.parametrize("where", OWNERS)
def test_footer_and_help_come_from_the_registry(where: Where) -> None:
    assert {shown(key) for key in footer_keys(where) if key.where == where} <= {keys for keys, _ in help_lines(where)}


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_tab_goes_through_all_panes_and_back(size: tuple[int, int]) -> None:
    app = make_app(Script(tok_s=0))
    async with running(app, size) as pilot:
        seen = []
        for _ in range(6):
            seen.append(app.main.where)
            assert app.main.focused is not None
            assert app.main.focused.region.area > 0
            await pilot.press("tab")
        assert seen == ["prompt", "chat", "cards", "split", "change", "prompt"]
        for keys, there in ((["f6"], "split"), (["f6"], "prompt"), (["f6", "escape"], "prompt"), (["ctrl+l"], "change"),
                            (["ctrl+l"], "prompt"), (["ctrl+l", "f6"], "split"), (["shift+tab"], "cards"),
                            (["ctrl+l", "shift+tab"], "split"), (["escape"], "prompt")):
            await pilot.press(*keys)
            assert app.main.where == there


async def test_help_is_for_the_focused_pane_first() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("f6", "f1")
        text = app.screen.query_one("VerticalScroll Static").render()
        assert str(text).startswith("Split")
        await pilot.press("escape")
        assert app.screen is app.main


async def test_the_palette_lists_the_key_map() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app):
        titles = {command.title for command in app.get_system_commands(app.main)}
        assert {key.what for key in KEYS if key.palette} <= titles
