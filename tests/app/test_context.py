"""Context settings as a draft, by keys: over scripted engines, forecasts made up or real."""

from collections.abc import Callable

import msgspec
from textual.pilot import Pilot
from textual.widgets import Static

from tests.app.stage import LAYOUT, make_app, measured, running, until
from tests.app.test_forecast import BUNDLED
from workbench.app.app import WorkbenchApp
from workbench.app.outside import Outside
from workbench.app.screens.context import ContextScreen
from workbench.app.wording import forecast_lines
from workbench.domain.forecast import CardForecast, Forecast
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split
from workbench.engines.scripted import Script
from workbench.lab.forecast import Answer, DraftForecasts, Forecasts
from workbench.lab.rooms import Running


class MadeUp:
    """Answers each draft at once, without limits until told to."""

    def __init__(self, listener: Callable[[Layout, Answer], None]) -> None:
        self.listener = listener
        self.asked: list[Layout] = []
        self.most: int | None = None

    def ask(self, layout: Layout, running: Running | None = None) -> None:
        self.asked.append(layout)
        self.answer()

    def answer(self) -> None:
        layout = self.asked[-1]
        rows = [
            CardForecast(name=name, weights_mib=50, kv_mib=layout.context.n_ctx / 100, compute_mib=10, other_mib=12,
                         free_mib=300, loads=3)
            for name in ("CUDA0", "CUDA1", "host")
        ]  # fmt: skip
        self.listener(
            layout,
            Forecast(source="llama.cpp", split=layout.split, cards=(rows[0], rows[1]), host=rows[2],
                     n_ctx=layout.context.n_ctx, max_n_ctx=self.most),
        )  # fmt: skip

    def drop(self) -> None:
        pass

    def close(self) -> None:
        pass


class Stage:
    """The app with made-up forecasts."""

    def __init__(self) -> None:
        self.drafts: list[MadeUp] = []
        self.app = make_app(Script(tok_s=0), Outside(start_forecasts=self._start))

    def _start(self, listener: Callable[[Layout, Answer], None]) -> MadeUp:
        self.drafts.append(MadeUp(listener))
        return self.drafts[0]


def text(app: WorkbenchApp, selector: str) -> str:
    return str(app.screen.query_one(selector, Static).render())


async def open_context(pilot: Pilot[None], app: WorkbenchApp) -> ContextScreen:
    app.main.go_to(app.main.split)
    await pilot.press("c")
    await until(pilot, lambda: isinstance(app.screen, ContextScreen) and app.screen.is_mounted)
    assert isinstance(app.screen, ContextScreen)
    return app.screen


async def test_settings_are_a_draft_with_its_forecast_until_enter() -> None:
    stage = Stage()
    app = stage.app
    async with running(app, (80, 24)) as pilot:
        screen = await open_context(pilot, app)
        assert "this runs already" in text(app, "#foretold")
        await pilot.press("right", "down", "right", "right", "down", "down", "right")
        await until(pilot, lambda: screen.draft == Context(n_ctx=8192, type_k="q8_0", flash_attn=True))
        await until(pilot, lambda: "✓ fits" in text(app, "#foretold"))
        assert stage.drafts[0].asked[-1].context == screen.draft
        assert "now 4096" in text(app, "#settings")
        assert screen.query_one(".dialog").region.bottom <= 24
        assert app.session.layout == LAYOUT
        await pilot.press("enter")
        await until(pilot, lambda: measured(app) == 2)
        assert app.session.layout == msgspec.structs.replace(LAYOUT, context=screen.draft)
        assert "ctx 8192" in app.main.header.left


async def test_the_split_being_edited_is_loaded_with_it_and_esc_leaves_both_as_they_were() -> None:
    stage = Stage()
    app = stage.app
    async with running(app) as pilot:
        await pilot.press("f6", "left")
        await open_context(pilot, app)
        await pilot.press("8", "0", "0", "backspace", "escape")
        await until(pilot, lambda: stage.drafts[0].asked[-1].context == LAYOUT.context)
        assert app.main.split.changed
        screen = await open_context(pilot, app)
        await pilot.press("2", "0", "4", "8")
        assert screen.asked.split == Split(layers=(15, 16))
        await pilot.press("enter")
        await until(pilot, lambda: measured(app) == 2)
        assert app.session.layout is not None
        assert app.session.layout.split == Split(layers=(15, 16))
        assert app.session.layout.context.n_ctx == 2048


async def test_the_largest_context_that_fits_is_one_key_away_once_it_is_known() -> None:
    stage = Stage()
    app = stage.app
    async with running(app) as pilot:
        screen = await open_context(pilot, app)
        await pilot.press("m")
        assert "working out" in text(app, "#foretold")
        stage.drafts[0].most = 10_000
        stage.drafts[0].answer()
        await until(pilot, lambda: screen.draft.n_ctx == 9984)
        assert "trained with 8192" in text(app, "#foretold")


async def test_what_breaks_a_rule_says_so_and_is_not_loaded() -> None:
    stage = Stage()
    app = stage.app
    async with running(app) as pilot:
        screen = await open_context(pilot, app)
        await pilot.press("down", "down", "right", "right", "down", "left")
        assert screen.draft == Context(n_ctx=4096, type_v="q8_0", flash_attn=False)
        assert "type_v q8_0 needs flash attention" in text(app, "#foretold")
        await pilot.press("enter")
        assert app.screen is screen
        assert all(layout.context.flash_attn is not False for layout in stage.drafts[0].asked)


async def test_a_real_forecast_finds_the_largest_context_of_the_bundled_model() -> None:
    forecasts = Forecasts(lambda _layout: ())
    outside = Outside(start_forecasts=lambda listener: DraftForecasts(forecasts, listener))
    app = make_app(Script(cards=("RPC0", "RPC1")), outside, first=BUNDLED)
    async with running(app) as pilot:
        screen = await open_context(pilot, app)
        await pilot.press("m")
        await until(pilot, lambda: screen.draft.n_ctx > 4096)
        await until(pilot, lambda: "✓ fits" in text(app, "#foretold"))
    forecasts.close()


def test_what_past_loads_taught_stands_with_the_forecast() -> None:
    told: list[Answer] = []
    drafts = MadeUp(lambda _layout, answer: told.append(answer))
    drafts.ask(LAYOUT)
    assert "other, from 3 loads here: +12 MiB" in forecast_lines(told[0])
