"""A/Bs on the screen: real experiments over simulated engines, the real session over scripted ones."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Digits, OptionList, Static

from tests.app.ab_stage import ENTRIES, SINGLE, SPREAD, RatedKit, make_bench, over, result, write_sets
from tests.app.stage import LAYOUT, ask, make_app, measured, running, until
from workbench.app.ab_plot import CurvePlot, RatioPlot
from workbench.app.app import WorkbenchApp
from workbench.app.outside import Outside
from workbench.app.panes.views import Views
from workbench.app.screens.ab_run import ABScreen
from workbench.app.screens.ab_setup import ListScreen, SetupScreen
from workbench.app.screens.runs import ComparedScreen, RunsScreen
from workbench.domain.curve import Point, curve
from workbench.domain.duration import roughly
from workbench.domain.samples import Arm
from workbench.engines.engine import LoadFailed
from workbench.engines.scripted import Script
from workbench.store.places import places
from workbench.store.runs import list_runs, read_run

Before = Callable[[Pilot[None]], Awaitable[None]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with two prompt sets."""
    monkeypatch.chdir(tmp_path)
    write_sets(tmp_path)
    return tmp_path


def stage(kit: RatedKit, script: Script | None = None) -> WorkbenchApp:
    outside = Outside(list_layouts=lambda: ENTRIES, bench=make_bench(kit), hint="Ask.")
    return make_app(script or Script(tok_s=0), outside)


def text(app: WorkbenchApp, selector: str) -> str:
    return str(app.screen.query_one(selector, Static).render())


async def set_up(pilot: Pilot[None], app: WorkbenchApp) -> SetupScreen:
    await until(pilot, lambda: not app.hearing.loads)
    await pilot.press("f3")
    await until(pilot, lambda: isinstance(app.screen, SetupScreen) and app.screen.plan is not None)
    assert isinstance(app.screen, SetupScreen)
    return app.screen


async def start(pilot: Pilot[None], app: WorkbenchApp, *, blocks: int = 2) -> None:
    """Single against spread, quick, on the way."""
    screen = await set_up(pilot, app)
    await pilot.press("right", "down", "right", "down", "down", *(["left"] * (4 - blocks)))
    assert screen.plan is not None
    assert ([each.name for each in screen.plan.layouts], screen.plan.blocks) == (["single", "spread"], blocks)
    await pilot.press("enter")


async def leave(pilot: Pilot[None], app: WorkbenchApp) -> None:
    await pilot.press("escape")
    await until(pilot, lambda: app.screen is app.main)


async def back(pilot: Pilot[None], app: WorkbenchApp) -> None:
    """The session serves again."""
    await until(pilot, lambda: app.session._serving is not None)


# ── what to measure ───────────────────────────────────────────────────────────────────────
async def test_the_running_split_and_the_one_before_are_preset() -> None:
    app = stage(RatedKit())
    async with running(app) as pilot:
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: measured(app) == 2)
        after = app.session.layout
        screen = await set_up(pilot, app)
        assert screen.plan is not None
        assert list(screen.plan.layouts) == [LAYOUT, after]
        assert (screen.plan.prompts.name, screen.plan.method, screen.plan.blocks) == ("quick", "fresh", 4)
        assert "ran before" in text(app, "#setup-rows")
        await pilot.press("enter")
        done = await over(pilot, app)
        assert done.run is not None
        assert [arm.layout for arm in done.run.header.arms] == [LAYOUT, after]
        # They have one name: what tells them apart stands in the run's id and in the tables.
        assert done.run.header.id.count("-layer-") == 2
        assert f"A: {LAYOUT.name} (layer" in text(app, "#details")


async def test_after_going_back_the_pair_is_the_same_the_other_way() -> None:
    app = stage(RatedKit())
    async with running(app) as pilot:
        await pilot.press("f6", "left", "enter")
        await until(pilot, lambda: measured(app) == 2)
        moved = app.session.layout
        await pilot.press("f7")
        await until(pilot, lambda: app.session.layout == LAYOUT)
        screen = await set_up(pilot, app)
        assert screen.plan is not None
        assert list(screen.plan.layouts) == [moved, LAYOUT]


async def test_lines_are_changed_and_listed_and_the_time_follows() -> None:
    app = stage(RatedKit(), Script(tok_s=60))
    async with running(app) as pilot:
        screen = await set_up(pilot, app)
        before = text(app, "#setup-about")
        assert "Takes about" in before
        assert "comes back afterwards" in before
        await pilot.press("down", "down", "down", *(["right"] * 8))
        assert screen.plan is not None
        assert screen.plan.blocks == 12
        assert text(app, "#setup-about") != before
        await pilot.press("down", "right")
        assert screen.plan.method == "resident"
        assert "indicative" in text(app, "#setup-rows")
        await pilot.press("up", "up", "l")
        await until(pilot, lambda: isinstance(app.screen, ListScreen))
        await pilot.press("up", "enter")
        await until(pilot, lambda: app.screen is screen)
        assert screen.plan.prompts.name == "deep"
        await pilot.press("up", "right", "right")
        assert len(screen.plan.layouts) == 1
        assert "A alone" in text(app, "#setup-rows")
        await pilot.press("escape")
        assert app.screen is app.main


async def test_a_prompt_set_that_cannot_be_used_is_listed_with_the_reason(folder: Path) -> None:
    (folder / "prompts" / "torn.yaml").write_text("name: torn\nprompts: [{id: a, txt: Go on.}]\n")
    app = stage(RatedKit())
    async with running(app) as pilot:
        screen = await set_up(pilot, app)
        await pilot.press("down", "down")
        assert "✗ 1 more cannot be used: l says why" in text(app, "#setup-about")
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, ListScreen))
        last = app.screen.query_one(OptionList).options[-1]
        assert str(last.prompt).startswith("✗ torn.yaml")
        assert "prompts[0].txt: is no key of `prompts[0]`, did you mean `text`?" in str(last.prompt)
        await pilot.press("end", "enter")
        await until(pilot, lambda: app.screen is screen)
        assert screen.plan is not None
        for path in (folder / "prompts").iterdir():
            path.write_text("name: torn")
        await pilot.press("escape", "f3")
        await until(pilot, lambda: "prompts: is missing" in text(app, "#setup-rows"))


async def test_a_prompt_that_does_not_fit_keeps_it_from_starting(folder: Path) -> None:
    (folder / "prompts" / "quick.yaml").write_text("name: quick\nprompts: [{id: long, depth: 9000, text: Go on.}]\n")
    app = stage(RatedKit())
    async with running(app) as pilot:
        screen = await set_up(pilot, app)
        assert "needs" in text(app, "#setup-about")
        await pilot.press("enter")
        assert app.screen is screen


async def test_without_a_prompt_set_it_says_where_they_are_looked_for(folder: Path) -> None:
    for file in (folder / "prompts").iterdir():
        file.unlink()
    app = stage(RatedKit())
    async with running(app) as pilot:
        await pilot.press("f3")
        await until(pilot, lambda: "./prompts" in text(app, "#setup-rows"))
        await pilot.press("right", "l", "enter", "escape")
        assert app.screen is app.main


# ── from the first load to the verdict ────────────────────────────────────────────────────
@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_an_ab_from_start_to_verdict_and_the_session_comes_back(size: tuple[int, int]) -> None:
    kit = RatedKit({"spread": 0.8})
    kit.differs = {"spread"}
    app = stage(kit)
    async with running(app, size) as pilot:
        await ask(pilot, app, "one")
        said = app.session.conversation
        kit.gate.close()
        await start(pilot, app)
        await until(pilot, lambda: kit.gate.asked > 0)
        assert app.session._serving is None
        assert "stands aside" in text(app, "#words")
        assert result(app).running
        kit.gate.closes_at = 30
        kit.gate.open()
        await until(pilot, lambda: kit.gate.asked == 30 and result(app).outcome is not None)
        await until(pilot, lambda: "block 2 of 2" in text(app, "#stage") and "left" in text(app, "#stage"))
        speeds = text(app, "#speeds").splitlines()
        assert float(speeds[3].split()[3]) > 50.0
        kit.gate.open()
        screen = await over(pilot, app)
        assert screen.run is not None
        assert len(screen.run.samples) == 16
        assert text(app, "#words").startswith("B is ")
        assert "slower than A in decode" in text(app, "#words")
        assert screen.query_one("#big", Digits).value.startswith("-")
        assert "u loads the faster one, single" in text(app, "#words")
        await leave(pilot, app)
        await back(pilot, app)
        assert app.session.conversation == said
        assert kit.living == []
        await ask(pilot, app, "two")
        assert len(app.session.conversation.turns) == 2


async def test_views_metrics_and_prompts_are_reached_by_keys() -> None:
    kit = RatedKit({"spread": 0.8})
    kit.differs = {"spread"}
    app = stage(kit)
    async with running(app, (80, 24)) as pilot:
        await start(pilot, app)
        screen = await over(pilot, app)
        views = screen.query_one(Views)
        seen = []
        for _ in range(5):
            seen.append(views.chosen)
            shown = [pane.id for pane in screen.query("#view-panes > *") if pane.display]
            assert shown == [f"view-{views.chosen}"]
            await pilot.press("right")
        assert seen == ["plot", "blocks", "outputs", "details", "plot"]
        assert "ABBA" in text(app, "#blocks")
        await pilot.press("right_square_bracket")
        assert views.chosen == "outputs"
        assert text(app, "#outputs-head").startswith("tides  prompt 2 of 2")
        assert "4 of 4 pairs differ" in text(app, "#outputs-head")
        assert text(app, "#output-a").startswith("A  Rivers carve the land as they run ▸to the sea")
        assert text(app, "#output-b").partition("▸")[2].startswith("down to")
        assert "kept in" in text(app, "#details")
        for metric in ("to the first token", "in prefill", "in decode"):
            await pilot.press("m")
            assert metric in text(app, "#words").splitlines()[0]


async def test_the_plot_is_plain_characters_and_shows_the_interval_closing_in() -> None:
    app = stage(RatedKit({"spread": 0.8}))
    async with running(app, (80, 24)) as pilot:
        await start(pilot, app, blocks=4)
        screen = await over(pilot, app)
        await pilot.pause()
        plot = screen.query_one(RatioPlot)
        drawn = str(plot.render())
        assert drawn.isascii()
        rows = [line for line in drawn.splitlines() if line.startswith("block")]
        assert [row.count("x") for row in rows] == [1, 1, 1, 1]
        widths = [row.count("-") for row in rows]
        assert widths[0] == 0
        assert widths[1] > widths[3] > 0


async def test_blocks_that_would_settle_it_are_added_by_a_key() -> None:
    app = stage(RatedKit({"spread": 0.97}, noise=3))
    async with running(app) as pilot:
        await start(pilot, app)
        screen = await over(pilot, app)
        assert screen.outcome is not None
        effect = screen.outcome.effect("decode")
        assert effect is not None
        assert effect.verdict == "can't tell apart"
        assert effect.more_blocks is not None
        assert "Two blocks do not tell how many more would settle it: b adds 2" in text(app, "#words")
        await pilot.press("b")
        await until(pilot, lambda: screen.run and screen.run.header.added and not screen.running)
        assert screen.run is not None
        assert screen.folder is not None
        assert screen.run.header.blocks == 4
        assert screen.run.header.added == (2,)
        assert read_run(screen.folder).missing == ()
        assert any("after a look" in caution for caution in screen.outcome.cautions)
        assert "after a look" in text(app, "#details")


async def test_escape_keeps_what_is_there_and_a_key_goes_on() -> None:
    kit = RatedKit({"spread": 0.8})
    kit.gate.closes_at = 6
    app = stage(kit)
    async with running(app) as pilot:
        await ask(pilot, app, "one")
        await start(pilot, app)
        await until(pilot, lambda: kit.gate.asked == 6)
        await pilot.press("escape")
        screen = await over(pilot, app)
        assert screen.run is not None
        taken = len(screen.run.samples)
        assert 0 < taken < 16
        assert f"{taken} of 16 samples are there: g goes on" in text(app, "#words")
        assert kit.living == []
        assert app.session._serving is None
        kit.gate.closes_at = 0
        kit.gate.open()
        await pilot.press("g")
        await until(pilot, lambda: not screen.running)
        assert len(screen.run.samples) == 16
        await leave(pilot, app)
        await back(pilot, app)
        assert len(app.session.conversation.turns) == 1


async def test_an_arm_that_does_not_load_is_a_row() -> None:
    kit = RatedKit()
    kit.fails = {"spread": LoadFailed("out of memory", card="CUDA1", wanted_mib=1990.0, free_mib=640.0)}
    app = stage(kit)
    async with running(app) as pilot:
        await start(pilot, app)
        screen = await over(pilot, app)
        assert screen.run is not None
        assert len(screen.run.samples) == 8
        words = text(app, "#words")
        assert "B (spread) did not load" in words
        assert "CUDA1: out of memory" in words
        assert "640 MiB free" in words
        assert "does not load: out of memory" in text(app, "#blocks")
        await leave(pilot, app)
        await back(pilot, app)


async def test_a_run_that_breaks_off_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, record: object) -> None:
        raise RunError("no room; make some")

    from workbench.store.runs import RunError, RunLog

    monkeypatch.setattr(RunLog, "append", full)
    app = stage(RatedKit())
    async with running(app) as pilot:
        await start(pilot, app)
        await over(pilot, app)
        assert "no room; make some" in text(app, "#words")
        await leave(pilot, app)
        await back(pilot, app)


async def test_a_run_that_cannot_begin_says_why_and_the_session_comes_back(own_home: Path) -> None:
    app = stage(RatedKit())
    async with running(app) as pilot:
        places().data.mkdir(parents=True, exist_ok=True)
        places().runs.write_text("a file where the folder of runs should be")
        await start(pilot, app)
        await over(pilot, app)
        assert "Not measured" in text(app, "#words")
        await leave(pilot, app)
        await back(pilot, app)


async def test_the_faster_layout_is_loaded_by_a_key() -> None:
    app = stage(RatedKit({"spread": 0.8}))
    async with running(app) as pilot:
        await ask(pilot, app, "one")
        await start(pilot, app)
        await over(pilot, app)
        await pilot.press("u")
        await until(pilot, lambda: app.session.layout == SINGLE)
        assert len(app.session.conversation.turns) == 1


async def test_quitting_in_the_middle_ends_every_engine() -> None:
    kit = RatedKit()
    kit.gate.closes_at = 5
    app = stage(kit)
    async with running(app) as pilot:
        await start(pilot, app)
        await until(pilot, lambda: kit.gate.asked == 5)
        assert kit.living
        await pilot.press("ctrl+q")
        await until(pilot, lambda: app._exit)
    assert kit.living == []


# ── past runs ─────────────────────────────────────────────────────────────────────────────
async def list_open(pilot: Pilot[None], app: WorkbenchApp, count: int) -> OptionList:
    await pilot.press("f5")
    await until(pilot, lambda: isinstance(app.screen, RunsScreen))
    options = app.screen.query_one(OptionList)
    await until(pilot, lambda: len(runs_of(app)) == count and all(past.outcome or past.error for past in runs_of(app)))
    await pilot.pause()
    return options


async def test_past_runs_are_listed_opened_exported_and_measured_again(folder: Path) -> None:
    app = stage(RatedKit({"spread": 0.8}))
    async with running(app) as pilot:
        await pilot.press("f5")
        await until(pilot, lambda: "No run yet" in text(app, "#about") if isinstance(app.screen, RunsScreen) else False)
        await pilot.press("escape")
        await start(pilot, app)
        await over(pilot, app)
        await leave(pilot, app)
        await back(pilot, app)
        options = await list_open(pilot, app, 1)
        line = str(options.get_option_at_index(0).prompt)
        assert "slower than A in decode" in line
        assert "single (none on card 0)" in line
        await pilot.press("x")
        (report,) = folder.glob("*.md")
        assert "written:" in text(app, "#about")
        assert report.read_text().startswith("### spread (layer 23:8) is ")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ABScreen))
        assert "slower than A" in text(app, "#words")
        assert not result(app).parked
        await pilot.press("x")
        assert "written:" in text(app, "#words")
        assert len(list(folder.glob("*.md"))) == 2
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, SetupScreen) and app.screen.plan is not None)
        assert isinstance(app.screen, SetupScreen)
        assert app.screen.plan is not None
        assert list(app.screen.plan.layouts) == [SINGLE, SPREAD]
        assert app.screen.plan.blocks == 2
        await pilot.press("escape")
        assert app.session._serving is not None


async def test_two_runs_are_compared(own_home: Path) -> None:
    app = stage(RatedKit({"spread": 0.8}))
    async with running(app) as pilot:
        await start(pilot, app)
        first = await over(pilot, app)
        assert first.folder is not None
        await leave(pilot, app)
        await back(pilot, app)
        other = first.folder.parent / "19990101-other"
        other.mkdir()
        for file in first.folder.iterdir():
            (other / file.name).write_text(file.read_text().replace('"here"', '"there"'))
        await list_open(pilot, app, 2)
        await until(pilot, lambda: all(past.run for past in runs_of(app)))
        await pilot.press("c")
        assert "choose the other" in text(app, "#about")
        await pilot.press("down", "c")
        await until(pilot, lambda: isinstance(app.screen, ComparedScreen))
        said = str(app.screen.query_one("VerticalScroll Static", Static).render())
        assert "there" in said
        assert "1.000" in said
        await pilot.press("escape", "escape")
        assert app.screen is app.main


def runs_of(app: WorkbenchApp) -> Any:
    assert isinstance(app.screen, RunsScreen)
    return app.screen._runs


async def test_a_run_that_cannot_be_read_is_listed_with_the_reason(own_home: Path) -> None:
    broken = places().runs / "broken"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text(json.dumps({"version": 99}))
    app = stage(RatedKit())
    async with running(app) as pilot:
        options = await list_open(pilot, app, 1)
        assert "newer workbench" in str(options.get_option_at_index(0).prompt).replace("\n", " ")
        await pilot.press("enter")
        assert "newer workbench" in text(app, "#about")
        await pilot.press("c", "x", "r", "escape")
        assert app.screen is app.main


def two_points(arm: Arm) -> tuple[Point, Point]:
    """The first where the other arm's is, the second apart."""
    speed = 90.0 if arm == "A" else 60.0
    return (
        Point(prompt="near", arm=arm, tokens=64, value=100.0 + (arm == "B") * 0.01),
        Point(prompt="far", arm=arm, tokens=512, value=speed),
    )


async def test_a_set_with_depths_has_a_curve() -> None:
    app = stage(RatedKit({"spread": 0.8}))
    async with running(app, (160, 48)) as pilot:
        await set_up(pilot, app)
        await pilot.press("right", "down", "right", "down", "left", "down", "left", "left", "enter")
        screen = await over(pilot, app)
        assert screen.run is not None
        assert screen.run.header.prompts.name == "deep"
        await pilot.pause()
        plot = screen.query_one(CurvePlot)
        drawn = str(plot.render())
        assert drawn.isascii()
        assert (drawn.count("A"), drawn.count("B")) == (3, 3)
        longest = max(point.tokens for point in curve(screen.run, "decode"))
        assert str(longest) in drawn.splitlines()[-1].split()
        plot.show([point for arm in ("A", "B") for point in two_points(arm)])
        drawn = str(plot.render())
        assert [drawn.count(mark) for mark in "AB*"] == [1, 1, 1]


async def test_a_replay_of_one_layout() -> None:
    app = stage(RatedKit())
    async with running(app) as pilot:
        await set_up(pilot, app)
        await pilot.press("right", "down", "left", "left", "down", "down", "left", "left", "enter")
        screen = await over(pilot, app)
        assert screen.run is not None
        assert screen.run.header.kind == "replay"
        assert len(screen.run.samples) == 4
        assert "tok/s in decode" in text(app, "#words")
        await leave(pilot, app)
        await list_open(pilot, app, 1)
    assert len(list_runs()) == 1


def test_guesses_are_rounded() -> None:
    assert [roughly(s) for s in (2, 31, 70, 4000, 7200)] == ["5 s", "30 s", "1 min", "1 h 7 min", "2 h"]


# ── pictures ──────────────────────────────────────────────────────────────────────────────
async def setting_up(pilot: Pilot[None]) -> None:
    app = pilot.app
    assert isinstance(app, WorkbenchApp)
    await until(pilot, lambda: measured(app) == 1)
    await pilot.press("f6", "left", "enter")
    await until(pilot, lambda: measured(app) == 2)
    await set_up(pilot, app)
    await pilot.pause()


async def verdict(pilot: Pilot[None]) -> None:
    app = pilot.app
    assert isinstance(app, WorkbenchApp)
    await until(pilot, lambda: measured(app) == 1)
    await start(pilot, app, blocks=3)
    screen = await over(pilot, app)
    assert screen.run is not None
    # Dates, folders and load times are of this minute.
    header = msgspec.structs.replace(screen.run.header, id="run", created=0.0)
    screen.run = msgspec.structs.replace(screen.run, header=header)
    screen.folder = Path("runs/run")
    screen.draw()
    await pilot.pause()
    await pilot.pause()


@pytest.mark.parametrize("size", [(80, 24), (160, 48)], ids=["80x24", "160x48"])
@pytest.mark.parametrize("before", [setting_up, verdict])
def test_picture(snap_compare: Callable[..., bool], size: tuple[int, int], before: Before) -> None:
    kit = RatedKit({"spread": 0.8})
    kit.differs = {"spread"}
    app = stage(kit)
    try:
        assert snap_compare(app, terminal_size=size, run_before=before)
    finally:
        app.session.close()


async def test_while_a_layout_loads_nothing_is_offered_that_does_not_run_yet() -> None:
    app = make_app(Script(load_s=30, cards=("CUDA0", "CUDA1")), Outside(bench=make_bench(RatedKit())), first=LAYOUT)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.hearing.loads)
        await pilot.press("f3")
        await until(pilot, lambda: any("once it is there" in said.message for said in app.said))
        assert not isinstance(app.screen, SetupScreen)
        await pilot.press("escape")
        await until(pilot, lambda: not app.hearing.loads)
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(app.screen, SetupScreen))
    app.session.close()
