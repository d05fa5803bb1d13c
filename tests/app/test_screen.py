"""Loading, trouble, dialogs, and terminals of every size."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from tests.app.stage import LAYOUT, ask, cuda_cards, make_app, measured, running, until
from workbench.app.app import WorkbenchApp
from workbench.app.outside import LayoutEntry, ModelEntry, Outside
from workbench.app.screens.context_full import ContextFullScreen, larger_n_ctx
from workbench.app.screens.layouts import LayoutsScreen
from workbench.app.screens.models import ModelsScreen
from workbench.app.screens.save_as import SaveAsScreen
from workbench.app.theme import NoColours
from workbench.domain.layout import Context
from workbench.domain.split import Split
from workbench.engines.engine import LoadFailed
from workbench.engines.scripted import MODEL, Script
from workbench.lab.cards import Inventory
from workbench.lab.events import ContextFull

OTHER = msgspec.structs.replace(LAYOUT, name="other", split=Split(layers=(20, 11)))


def status(app: WorkbenchApp) -> str:
    return str(app.main.status.render()) if app.main.status.display else ""


async def test_a_load_shows_how_far_it_is_and_can_be_stopped() -> None:
    script = Script(tok_s=0)
    app = make_app(script)
    async with running(app) as pilot:
        script.load_s = 30.0
        app.session.load(OTHER)
        await until(pilot, lambda: "%" in status(app) and "weights on" in status(app))
        assert "Esc stops" in status(app)
        script.load_s = 0.0
        await pilot.press("escape")
        await until(pilot, lambda: "%" not in status(app))
        assert app.session.layout == LAYOUT


async def test_a_failed_load_leaves_chat_and_layout_and_stays_in_sight() -> None:
    script = Script(tok_s=0)
    app = make_app(script)
    async with running(app) as pilot:
        await ask(pilot, app, "one")
        script.fail_load = LoadFailed("out of memory", card="CUDA1", wanted_mib=900, free_mib=260)
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: "CUDA1" in status(app) and "900 MiB" in status(app))
        await until(pilot, lambda: app.session.loaded is not None and "%" not in status(app))
        assert "260 MiB" in status(app)
        assert app.session.layout == LAYOUT
        assert len(app.main.chat.log_view.turns) == 1
        await pilot.press("f8")
        assert "out of memory" in str(app.screen.query_one("VerticalScroll Static", Static).render())
        await pilot.press("escape", "escape", "escape", "escape")
        assert status(app) == ""


async def test_going_back() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: measured(app) == 2)
        await pilot.press("f7")
        await until(pilot, lambda: app.session.layout == LAYOUT)


async def test_layouts_are_listed_with_those_that_are_broken() -> None:
    entries = [
        LayoutEntry(Path("layouts/even.yaml"), LAYOUT),
        LayoutEntry(Path("layouts/broken.yaml"), error="layouts/broken.yaml:3: splt: unknown key; split?"),
        LayoutEntry(Path("layouts/other.yaml"), OTHER),
    ]
    app = make_app(Script(tok_s=0), Outside(list_layouts=lambda: entries))
    async with running(app) as pilot:
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, LayoutsScreen))
        options = app.screen.query_one(OptionList)
        await until(pilot, lambda: options.option_count == 3)
        assert options.highlighted == 0
        await pilot.press("down")
        about = app.screen.query_one("#about", Static)
        await until(pilot, lambda: "unknown key" in str(about.render()))
        await pilot.press("enter")
        assert isinstance(app.screen, LayoutsScreen)
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.session.layout == OTHER)


async def test_layouts_of_one_name_are_told_apart_by_their_files() -> None:
    entries = [
        LayoutEntry(Path("layouts/even.yaml"), LAYOUT),
        LayoutEntry(Path("layouts/other.yaml"), OTHER),
        LayoutEntry(Path.home() / "config" / "layouts" / "even.yaml", msgspec.structs.replace(LAYOUT, split=Split())),
    ]
    app = make_app(Script(tok_s=0), Outside(list_layouts=lambda: entries))
    async with running(app) as pilot:
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, LayoutsScreen))
        options = app.screen.query_one(OptionList)
        await until(pilot, lambda: options.option_count == 3)
        lines = [str(options.get_option_at_index(at).prompt) for at in range(3)]
        assert "layouts/even.yaml" in lines[0]
        assert ".yaml" not in lines[1]
        assert "~/config/layouts/even" in lines[2]


async def test_models_are_listed_as_they_are_found_and_loaded() -> None:


    def find(found: Callable[[ModelEntry], None]) -> None:
        found(ModelEntry(Path("/m/a.gguf"), msgspec.structs.replace(MODEL, path="/m/a.gguf", name="Model A")))
        found(ModelEntry(Path("/m/b.gguf"), error="not a GGUF file"))

    app = make_app(Script(tok_s=0), Outside(find_models=find))
    async with running(app) as pilot:
        await pilot.press("f4")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        options = app.screen.query_one(OptionList)
        await until(pilot, lambda: options.option_count == 2)
        line = str(options.get_option_at_index(0).prompt)
        for figure in ("Model A", "93 MiB", "Q4_1", "30", "8k"):
            assert figure in line
        await pilot.press("enter")
        await until(pilot, lambda: app.session.layout is not None and app.session.layout.name == "a")


async def test_without_anything_to_load_the_hint_says_what_helps() -> None:
    app = make_app(Script(), Outside(hint="There is no model in ~/models.\nworkbench FOLDER …"), first=None)
    async with running(app, loaded=False) as pilot:
        await until(pilot, lambda: "no model in ~/models" in str(app.main.query_one("#hint", Static).render()))
        app.main.chat.prompt.fill("go", None)
        await pilot.press("enter")
        await until(pilot, lambda: "F4 models" in status(app))
        assert app.main.chat.prompt.text == "go"


@pytest.mark.parametrize("theme", ["terminal-dark", "textual-light"])
async def test_without_colours_the_chosen_row_is_reversed(monkeypatch: pytest.MonkeyPatch, theme: str) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app(Script(tok_s=0), Outside(list_layouts=lambda: [LayoutEntry(Path("layouts/even.yaml"), LAYOUT)]))
    (plain,) = (each for each in app._filters if isinstance(each, NoColours))

    def reversed_text() -> str:
        _, behind = app.screen.background_colors
        lines = (line.apply_filter(plain, behind) for line in app.screen._compositor.render_strips())
        return "".join(part.text for line in lines for part in line if part.style and part.style.reverse)

    async with running(app) as pilot:
        app.theme = theme
        await pilot.press("f2")
        await until(pilot, lambda: LAYOUT.model in reversed_text())
        await pilot.press("ctrl+p", "down")
        await until(pilot, lambda: "help" in reversed_text())


async def test_saving_asks_for_a_name_and_shows_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layouts").mkdir()
    (tmp_path / "layouts" / "taken.yaml").write_text("name: taken")
    (tmp_path / "layouts" / f"{LAYOUT.name}.yaml").touch()
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("ctrl+s")
        await until(pilot, lambda: isinstance(app.screen, SaveAsScreen))
        name = app.screen.query_one(Input)
        goes = app.screen.query_one("#goes", Static)
        assert name.value == f"{LAYOUT.name}-2"
        await until(pilot, lambda: str(goes.render()) == f"→ layouts/{LAYOUT.name}-2.yaml")
        name.value = "taken"
        await pilot.press("enter")
        wrong = app.screen.query_one("#wrong", Static)
        await until(pilot, lambda: "exists already" in str(wrong.render()))
        await pilot.press("enter")
        assert "is there already; ^o overwrites it" in str(goes.render())
        assert (tmp_path / "layouts" / "taken.yaml").read_text() == "name: taken"
        await pilot.press("ctrl+o")
        await until(pilot, lambda: app.screen is app.main)
        assert "model:" in (tmp_path / "layouts" / "taken.yaml").read_text()
        await pilot.press("ctrl+s")
        await until(pilot, lambda: isinstance(app.screen, SaveAsScreen))
        app.screen.query_one(Input).value = "mine"
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is app.main)
        assert "saved:" in status(app)
        assert (tmp_path / "layouts" / "mine.yaml").exists()


async def fill_the_context(pilot: Pilot[None], app: WorkbenchApp, prompt: str) -> None:
    """Two turns, and a prompt for which there is no room any more."""
    for said in ("one", "two"):
        await ask(pilot, app, said)
    app.main.chat.prompt.fill(prompt, None)
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(app.screen, ContextFullScreen))


@pytest.mark.parametrize(
    ("keys", "turns", "n_ctx"),
    [(("enter",), 3, 1024), (("down", "enter"), 2, 64), (("down", "down", "enter"), 1, 64)],
    ids=["larger", "drop", "new"],
)
async def test_a_full_context_has_three_ways_on(keys: tuple[str, ...], turns: int, n_ctx: int) -> None:
    first = msgspec.structs.replace(LAYOUT, context=Context(n_ctx=64))
    app = make_app(Script(reply="yes " * 10, tok_s=0), first=first)
    async with running(app) as pilot:
        await fill_the_context(pilot, app, "word " * 30)
        await pilot.press(*keys)
        await until(pilot, lambda: app.screen is app.main)
        await until(pilot, lambda: app.session.loaded is not None and app.session.loaded.n_ctx == n_ctx)
        await until(pilot, lambda: len(app.session.conversation.turns) == turns)
        await until(pilot, lambda: len(app.main.chat.log_view.turns) == turns)


async def test_turns_are_not_dropped_for_a_prompt_that_fits_nowhere() -> None:
    first = msgspec.structs.replace(LAYOUT, context=Context(n_ctx=64))
    app = make_app(Script(reply="yes " * 10, tok_s=0), first=first)
    async with running(app) as pilot:
        await fill_the_context(pilot, app, "word " * 200)
        assert app.screen.query_one(OptionList).option_count == 1
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: app.session.loaded is not None and app.session.loaded.n_ctx > 64)
        await until(pilot, lambda: len(app.session.conversation.turns) == 3)


async def test_a_full_context_can_be_left_with_the_prompt_kept() -> None:
    first = msgspec.structs.replace(LAYOUT, context=Context(n_ctx=64))
    app = make_app(Script(reply="yes", tok_s=0), first=first)
    async with running(app) as pilot:
        app.main.chat.prompt.fill("word " * 80, None)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ContextFullScreen))
        await pilot.press("escape")
        assert app.main.chat.prompt.text.startswith("word word")
        assert app.main.chat.log_view.turns == []


def test_the_larger_context_holds_the_prompt_and_knows_its_limit() -> None:
    assert larger_n_ctx(ContextFull(4096, None, None), 131072) == 8192
    assert larger_n_ctx(ContextFull(4096, 20000, "p"), 131072) == 32768
    assert larger_n_ctx(ContextFull(4096, None, None), 6000) == 6000
    assert larger_n_ctx(ContextFull(8192, None, None), 8192) is None
    assert larger_n_ctx(ContextFull(4096, 20000, "p"), 8192) is None


@pytest.mark.parametrize("size", [(160, 48), (120, 40), (100, 30), (99, 30), (80, 24), (60, 20)])
async def test_everything_fits_or_lies_behind_a_tab(size: tuple[int, int]) -> None:
    app = make_app(Script(tok_s=0), Outside(find_cards=lambda: Inventory(cards=cuda_cards(2))))
    async with running(app, size) as pilot:
        for pane in app.main.panes:
            app.main.go_to(pane)
            await pilot.pause()
            assert pane.region.area > 0
            assert pane.region.right <= size[0]
            assert pane.region.bottom <= size[1]
        narrow = size[0] < 100
        assert (app.main.chat.region.area == 0) == narrow
        for visible in ("#header", "#foot", "#change"):
            assert app.main.query_one(visible).region.area > 0


async def test_a_terminal_that_is_too_small_says_so_and_recovers() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app, (80, 24)) as pilot:
        await pilot.resize_terminal(59, 19)
        await until(pilot, lambda: app.main.query_one("#too-small").region.area > 0)
        assert app.main.chat.region.area == 0
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: app.main.chat.region.area > 0 and app.main.split.region.area > 0)
