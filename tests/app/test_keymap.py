"""One registry of keys: no clash, nothing unreachable, nothing that a terminal cannot send."""

import ast
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.dom import DOMNode
from textual.widgets import TextArea

import workbench.app
from tests.app.stage import make_app, running, until
from workbench.app.app import WorkbenchApp
from workbench.app.keymap import ALONE, DEFAULTS, KEYS, Key, Keymap, Where, shown
from workbench.app.panes.bars import FootKeys
from workbench.app.panes.cards import CardsPane
from workbench.app.panes.change import ChangePane
from workbench.app.panes.chat import ChatLog
from workbench.app.panes.prompt import Prompt
from workbench.app.panes.split import SplitPane
from workbench.app.screens.ab_run import ABScreen
from workbench.app.screens.ab_setup import SetupScreen
from workbench.app.screens.card_detail import CardDetailScreen
from workbench.app.screens.context import ContextScreen
from workbench.app.screens.dialog import Dialog
from workbench.app.screens.help import ABOUT
from workbench.app.screens.main import MainScreen
from workbench.app.screens.runs import RunsScreen
from workbench.app.screens.save_as import SaveAsScreen
from workbench.app.screens.topology import TopologyScreen
from workbench.app.user_keys import own_keys, read_keymap
from workbench.engines.scripted import Script
from workbench.store.documents import DocumentError

OWNERS: dict[Where, type] = {
    "anywhere": MainScreen, "prompt": Prompt, "chat": ChatLog, "cards": CardsPane, "split": SplitPane,
    "change": ChangePane, "setup": SetupScreen, "result": ABScreen, "runs": RunsScreen, "app": WorkbenchApp,
    "context": ContextScreen, "card": CardDetailScreen, "topology": TopologyScreen, "saving": SaveAsScreen,
    "dialog": Dialog,
}  # fmt: skip
PLAIN = Keymap()


def test_no_key_is_bound_twice_in_a_pane() -> None:
    assert [key for key, count in Counter((key.where, key.keys) for key in KEYS).items() if count > 1] == []


def test_keys_are_those_that_every_terminal_sends() -> None:
    allowed = re.compile(
        r"[a-z0-9]|f\d|f10|ctrl\+[a-z]|enter|escape|(shift\+)?tab|up|down|left|right"
        r"|left_square_bracket|right_square_bracket|equals_sign"
    )
    assert [keys for key in KEYS for keys in key.keys.split(",") if not allowed.fullmatch(keys)] == []


def test_every_action_has_a_name_of_its_own() -> None:
    assert len(DEFAULTS) == len(KEYS)


def test_nothing_is_bound_outside_the_registry() -> None:
    for path in Path(workbench.app.__path__[0]).rglob("*.py"):
        importlib.import_module(".".join(("workbench.app", *path.relative_to(workbench.app.__path__[0]).parts))[:-3])
    ours = {cls for base in (DOMNode,) for cls in descendants(base) if cls.__module__.startswith("workbench.app")}
    assert {MainScreen, Prompt, WorkbenchApp} <= ours
    editing = {binding for binding in TextArea.BINDINGS if isinstance(binding, Binding)}
    for cls in ours:
        for binding in vars(cls).get("BINDINGS", ()):
            assert isinstance(binding, Binding), cls
            assert binding in editing or DEFAULTS.get(binding.id or "") == binding.key, (cls, binding)


def test_every_text_that_names_a_key_names_one_that_there_is() -> None:
    texts = [
        node.value
        for path in Path(workbench.app.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\{[a-z_0-9]+\}", node.value)
    ]
    assert len(texts) > 20
    for text in texts:
        assert "{" not in PLAIN.words(text)


def descendants(cls: type) -> set[type]:
    children: list[type] = type.__subclasses__(cls)
    return {cls, *(found for child in children for found in descendants(child))}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.where}-{key.keys}")
def test_every_key_has_something_to_do(key: Key) -> None:
    where, action = key.where, key.action.partition("(")[0]
    owner = WorkbenchApp if action.startswith("app.") else OWNERS[where]
    assert hasattr(owner, f"action_{action.removeprefix('app.')}")


@pytest.mark.parametrize("where", OWNERS)
def test_footer_and_help_come_from_the_registry(where: Where) -> None:
    assert {shown(key) for key in PLAIN.footer(where) if key.where == where} <= {keys for keys, _ in PLAIN.help(where)}
    assert where in ABOUT


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


async def test_the_palette_has_every_action_of_the_screen_below_it() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        titles = [command.title for command in app.get_system_commands(app.main)]
        for key in KEYS:
            if key.where not in ALONE and key.action != "app.command_palette":
                assert any(title.endswith(key.what) for title in titles), key
        found = {command.title: command.callback for command in app.get_system_commands(app.main)}
        found["Split: one layer more on this card"]()
        await until(pilot, lambda: app.main.where == "split" and app.main.split.changed)
        await pilot.press("c")
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert "the largest n_ctx that fits" in titles
        assert "open a model" not in titles


async def test_a_users_keys_take_the_place_of_the_defaults_everywhere() -> None:
    own = Keymap({"compare": "f5", "runs": "f3", "split.more": "x,right", "prompt.submit": "ctrl+b"})
    app = make_app(Script(tok_s=0), keymap=own)
    async with running(app) as pilot:
        await pilot.press("f6", "x")
        assert app.main.split.changed
        assert "x" in str(app.main.query_one(FootKeys).render())
        assert "x move layers" in str(app.main.split.query_one("#forecast").render()) or app.main.split.changed
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, SetupScreen))
        await pilot.press("escape", "escape", "escape")
        app.main.go_to(app.main.chat.prompt)
        await pilot.press("h", "i", "ctrl+b")
        await until(pilot, lambda: len(app.session.conversation.turns) == 1)
        assert str(app.main.chat.prompt.placeholder).startswith("Ask something · ^b sends")


def write(folder: Path, text: str) -> Path:
    path = folder / "keymap.yaml"
    path.write_text(text)
    return path


def test_a_key_map_as_people_write_it(tmp_path: Path) -> None:
    assert read_keymap(tmp_path / "none.yaml").own == {}
    text = "keys:\n  compare: F5\n  runs: ^b\n  split.more: [→, 7]\n  split.even: ['=', e]\n  split.more_5: p\n"
    assert read_keymap(write(tmp_path, text.replace(", 7", ", x"))).own == {
        "compare": "f5", "runs": "ctrl+b", "split.more": "right,x", "split.even": "equals_sign,e", "split.more_5": "p",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("comprae: F5", ("keys.comprae", "did you mean `compare`?")),
        ("split.mor: x", ("split.mor", "did you mean `split.more`?")),
        ("compare: alt+x", ("keys.compare", "alt+x", "no key that every terminal sends", "^b")),
        ("compare: F11", ("F11", "F1 to F10")),
        ("compare: 1.5", ("1.5",)),
        ("compare:", ("has no key",)),
        ("compare: x", ("`x`", "typed into the prompt")),
        ("prompt.submit: ↑", ("typed into the prompt",)),
        ("compare: ^i", ("Tab",)),
        ("compare: ^k", ("edits the prompt",)),
        ("compare: F5", ("F5", "key of runs (past runs", "another")),
        ("split.more: m", ("split.mode",)),
        ("split.more: F5", ("runs",)),
        ("card.next: q", ("card.close",)),
        ("escape: F7", ("cannot have another key than Esc",)),
        ("split.card_3: x", ("cannot have another key",)),
        ("compare: {a: b}", ("keys.compare",)),
    ],
)
def test_what_is_wrong_with_a_key_map_is_named_with_file_line_and_key(
    tmp_path: Path, line: str, words: tuple[str, ...]
) -> None:
    path = write(tmp_path, f"# mine\nkeys:\n  {line}\n")
    with pytest.raises(DocumentError) as failed:
        read_keymap(path)
    assert str(failed.value).startswith(f"{path}:3: keys.{line.partition(':')[0]}: ")
    for word in words:
        assert word in str(failed.value)


def test_a_wrong_key_map_leaves_the_defaults(own_home: Path) -> None:
    (own_home / "config").mkdir()
    write(own_home / "config", "keys: {compare: F5}\n")
    keymap, said = own_keys()
    assert keymap.own == {}
    assert "keymap.yaml:1" in said
    assert "default keys are used" in said
