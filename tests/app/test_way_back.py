"""The way back and on: suggestions, a load beside a reply, the history, forecast against measured."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from textual.widgets import Input, Static

from tests.app.stage import LAYOUT, ScriptKit, Suggesting, ask, cuda_cards, make_app, measured, running, snapshot, until
from workbench.app.app import WorkbenchApp
from workbench.app.history_rows import layout_names, tightest
from workbench.app.messages import Accounted, Metered
from workbench.app.outside import Outside
from workbench.app.panes.bars import FootKeys
from workbench.app.screens.accounts import AccountsScreen
from workbench.app.screens.save_as import SaveAsScreen
from workbench.domain.duty import CardDuty, Duty
from workbench.domain.layout import Context
from workbench.domain.memory import CardMemory
from workbench.domain.split import Split, Virtual
from workbench.engines.engine import EngineError, LoadFailed
from workbench.engines.scripted import Script
from workbench.lab.cards import Inventory
from workbench.lab.events import Measurement

FITS = msgspec.structs.replace(LAYOUT, split=Split(layers=(20, 11)), context=Context(n_ctx=2048))
FULL = LoadFailed("out of memory", card="CUDA1", wanted_mib=900, free_mib=260)


def status(app: WorkbenchApp) -> str:
    return str(app.main.status.render()) if app.main.status.display else ""


def change(app: WorkbenchApp) -> str:
    return str(app.main.change.render())


def foot(app: WorkbenchApp) -> str:
    return str(app.main.query_one(FootKeys).render())


@pytest.mark.parametrize("size", [(160, 48), (120, 40), (80, 24)])
async def test_where_memory_ended_one_key_loads_what_fits(size: tuple[int, int]) -> None:
    script = Script(tok_s=0)
    app = make_app(script, kit=ScriptKit(script, Suggesting(FITS)))
    async with running(app, size) as pilot:
        assert "F9" not in foot(app)
        script.fail_load = FULL
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: "F9 loads it" in status(app))
        told = status(app)
        assert told.index("out of memory") < told.index("layer 20:11, n_ctx 2048 fits, 57 MiB to spare on card 1")
        assert app.session.layout == LAYOUT
        assert app.main.status.region.bottom <= size[1]
        assert app.main.status.size.height == (3 if size[0] == 80 else 2)
        assert foot(app).startswith("F9 load what fits")
        await ask(pilot, app, "it serves meanwhile")
        assert "out of memory" not in status(app)
        assert "F9 loads it" in status(app)
        await pilot.press("f9")
        await until(pilot, lambda: app.session.layout == FITS)
        await until(pilot, lambda: status(app) == "" and "F9" not in foot(app))
        await pilot.press("f9")
        await until(pilot, lambda: "nothing is suggested" in status(app))


async def test_a_suggestion_goes_with_its_message_and_with_another_load() -> None:
    script = Script(tok_s=0)
    app = make_app(script, kit=ScriptKit(script, Suggesting(FITS)))
    async with running(app) as pilot:
        for keys in (["escape"], ["right", "enter"]):
            script.fail_load = FULL
            await pilot.press("f6", "left", "enter")
            await until(pilot, lambda: "F9 loads it" in status(app))
            await until(pilot, lambda: not app.hearing.busy)
            await pilot.press(*keys)
            await until(pilot, lambda: "F9" not in status(app) + foot(app))
            await pilot.press("escape", "escape")


async def test_a_failure_that_is_not_of_memory_suggests_nothing() -> None:
    script = Script(tok_s=0)
    app = make_app(script, kit=ScriptKit(script, Suggesting(FITS)))
    async with running(app) as pilot:
        failure: EngineError = LoadFailed("the file is truncated")
        script.fail_load = failure
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: "truncated" in status(app))
        await until(pilot, lambda: not app.hearing.busy)
        assert "F9" not in status(app)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_a_reply_streams_while_a_split_loads_beside(size: tuple[int, int]) -> None:
    script = Script(reply="word " * 5000, tok_s=200)
    kit = ScriptKit(script)
    kit.beside = True
    app = make_app(script, kit=kit)
    async with running(app, size) as pilot:
        app.main.chat.prompt.fill("go", None)
        await pilot.press("enter")
        await until(pilot, lambda: app.main.chat.answering)
        await pilot.press("f6", "left", "enter")
        waits = "layer 15:16 is loaded, takes over after this reply  Esc stops the reply first"
        await until(pilot, lambda: status(app) == waits)
        assert app.main.chat.answering
        before = len(app.main.chat.log_view.turns[-1].reply)
        await until(pilot, lambda: len(app.main.chat.log_view.turns[-1].reply) > before)
        await pilot.press("escape")
        await until(pilot, lambda: app.session.layout is not None and app.session.layout.split.layers == (15, 16))
        await until(pilot, lambda: status(app) == "" and not app.main.chat.answering)
        assert app.session.conversation.turns[0].split == "layer 1:1"
        await until(pilot, lambda: "loaded beside, the chat was silent for" in change(app))


async def test_escape_stops_the_reply_and_then_the_load_beside_it() -> None:
    script = Script(reply="word " * 5000, tok_s=200)
    kit = ScriptKit(script)
    kit.beside = True
    app = make_app(script, kit=kit)
    async with running(app) as pilot:
        app.main.chat.prompt.fill("go", None)
        await pilot.press("enter")
        await until(pilot, lambda: app.main.chat.answering)
        script.load_s = 30.0
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: "weights on" in status(app))
        await pilot.press("escape")
        await until(pilot, lambda: not app.main.chat.answering)
        assert "Esc stops" in status(app)
        assert "reply" not in status(app)
        await pilot.press("escape")
        await until(pilot, lambda: "%" not in status(app))
        assert app.session.layout == LAYOUT


async def test_escape_stops_a_load_beside_and_not_the_probe_that_runs_meanwhile() -> None:
    script = Script(tok_s=0)
    kit = ScriptKit(script)
    kit.beside = True
    app = make_app(script, kit=kit)
    async with running(app) as pilot:
        script.load_s = script.probe_s = 30.0
        app.session.probe()
        await until(pilot, lambda: app.hearing.job == "probe")
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: "weights on" in status(app) and app.hearing.job == "probe")
        await pilot.press("escape")
        await until(pilot, lambda: "%" not in status(app))
        assert app.session.layout == LAYOUT
        assert app.hearing.job == "probe"


async def test_escape_in_the_editor_reverts_first_and_stops_then() -> None:
    script = Script(tok_s=0)
    app = make_app(script)
    async with running(app) as pilot:
        script.load_s = 30.0
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: "weights on" in status(app))
        await pilot.press("left", "escape")
        assert not app.main.split.changed
        assert "%" in status(app)
        script.load_s = 0.0
        await pilot.press("escape")
        await until(pilot, lambda: "cancelled" in status(app) and "%" not in status(app))
        assert app.session.layout == LAYOUT


# ── the history ───────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("size", [(160, 48), (120, 40), (80, 24), (60, 20)])
async def test_each_split_is_a_line_to_go_back_to(size: tuple[int, int]) -> None:
    app = make_app(Script(tok_s=50))
    async with running(app, size) as pilot:
        for counts in ((15, 16), (14, 17), (13, 18), (12, 19)):
            await asyncio.wrap_future(app.session.resplit(Split(layers=counts)))
        await until(pilot, lambda: app.session.history[-1].probe)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: "▸● layer 12:19" in change(app))
        pane = app.main.change
        assert pane.region.bottom <= size[1]
        assert "50.0" in change(app)
        await pilot.press("down", "down", "down", "down", "down")
        await until(pilot, lambda: "▸  layer 1:1" in change(app))
        row = change(app).splitlines().index(next(line for line in change(app).splitlines() if "▸" in line))
        assert row < pane.content_size.height
        await pilot.press("enter")
        await until(pilot, lambda: app.session.layout == LAYOUT)
        await until(pilot, lambda: "▸● layer 1:1" in change(app))
        assert len(app.session.history) == 5
        await pilot.press("enter")
        await until(pilot, lambda: "serves already" in status(app))


async def test_back_and_forward() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: measured(app) == 2)
        second = app.session.layout
        await pilot.press("f7")
        await until(pilot, lambda: app.session.layout == LAYOUT)
        await until(pilot, lambda: not app.hearing.busy)
        await pilot.press("ctrl+g")
        await until(pilot, lambda: app.session.layout == second)
        await until(pilot, lambda: not app.hearing.busy)
        await pilot.press("ctrl+g")
        await until(pilot, lambda: status(app) == "i there is no later layout")
        await pilot.press("escape")
        assert not app.main.status.display
        await pilot.press("ctrl+g")
        await until(pilot, lambda: status(app) == "i there is no later layout")
        app.session.load(LAYOUT)
        await until(pilot, lambda: app.session.layout == LAYOUT and not app.main.status.display)


async def test_any_line_is_saved_as_a_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layouts").mkdir()
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: measured(app) == 2)
        await pilot.press("ctrl+l", "down", "s")
        await until(pilot, lambda: isinstance(app.screen, SaveAsScreen))
        app.screen.query_one(Input).value = "first"
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is app.main)
        assert "tensor_split: [1, 1]" in (tmp_path / "layouts" / "first.yaml").read_text()
        assert app.main.where == "change"


async def test_a_line_tells_what_was_free_and_what_a_token_took() -> None:
    cards = cuda_cards(2)
    app = make_app(Script(tok_s=0), Outside(find_cards=lambda: Inventory(cards=cards)))
    async with running(app, (160, 48)) as pilot:
        assert change(app).splitlines()[-1].split()[3:6] == ["0.0", "–", "–"]
        app.post_message(Metered(snapshot(cards, 1.0, used=(0.25, 0.75))))
        await until(pilot, lambda: "35.1 GiB" in change(app))
        await ask(pilot, app, "go")
        duty = Duty(mode="layer", cards=(CardDuty(name="CUDA0", joules=80.0),), tokens=10, seconds=2.0)
        app.post_message(Accounted(duty))
        await until(pilot, lambda: " 8.0 " in change(app))
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: measured(app) == 2)
        app.post_message(Metered(snapshot(cards, 2.0, used=(0.5, 0.5))))
        await until(pilot, lambda: "70.2 GiB" in change(app))
        assert "35.1 GiB" in change(app)
        assert sum(" 8.0 " in line for line in change(app).splitlines()) == 1


def test_a_virtual_card_has_free_what_its_size_leaves() -> None:
    layout = msgspec.structs.replace(LAYOUT, split=Split(cards=Virtual(("600MiB", "300MiB"))))
    cards = tuple(CardMemory(name=f"RPC{n}", weights_mib=240.0, kv_mib=20.0, compute_mib=5.0) for n in range(2))
    line = Measurement(layout=layout, label="", cards=cards)
    assert tightest(line, {}) == ("RPC1", 35.0)
    real = Measurement(layout=LAYOUT, label="", cards=cards)
    assert tightest(real, {"RPC0": 7.0}) is None
    assert tightest(real, {"RPC0": 7.0, "RPC1": 3.0}) == ("RPC1", 3.0)


def test_lines_of_one_split_say_what_else_differs() -> None:
    quantised = msgspec.structs.replace(LAYOUT, context=Context(n_ctx=8192, type_v="q8_0"))
    assert layout_names([LAYOUT]) == ["layer 1:1"]
    assert layout_names([LAYOUT, quantised]) == ["layer 1:1 ctx 4096 f16", "layer 1:1 ctx 8192 f16/q8_0"]


# ── forecast against measured ─────────────────────────────────────────────────────────────
@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_forecast_measured_and_error_of_a_load(size: tuple[int, int]) -> None:
    script = Script(tok_s=0)
    app = make_app(script, kit=ScriptKit(script, Suggesting(LAYOUT)))
    async with running(app, size) as pilot:
        await pilot.press("ctrl+l", "d")
        await until(pilot, lambda: isinstance(app.screen, AccountsScreen))
        text = str(app.screen.query_one("VerticalScroll Static", Static).render())
        lines = [line.split() for line in text.splitlines()]
        assert ["compute", "13.5", "12.0", "−1.5"] in lines
        assert ["weights", "48.0", "48.0", "0.0"] in lines
        assert ["other", "598.0", "610.0", "+12.0"] in lines
        assert ["foreign", "–", "345.0", "–"] in lines
        assert ["other", "598.0", "–", "–"] in lines
        assert app.screen.query_one(".dialog").region.bottom <= size[1]
        await pilot.press("escape")
        assert app.screen is app.main


async def test_without_a_forecast_there_is_nothing_to_compare() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("ctrl+l", "d")
        await until(pilot, lambda: "no forecast to compare" in status(app))
        assert app.screen is app.main
