"""The forecast in the split editor: real forecasts of the bundled model, beside scripted engines."""

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from tests.app.stage import make_app
from workbench.app.app import WorkbenchApp
from workbench.app.outside import Outside
from workbench.app.panes.split import SplitPane
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split, Virtual
from workbench.engines.scripted import Script
from workbench.lab.forecast import DraftForecasts, Forecasts

BUNDLED = Layout(
    name="bundled",
    model="demo:smollm2",
    split=Split(layers=(16, 15), cards=Virtual(("600MiB", "250MiB"))),
    context=Context(n_ctx=4096),
)


async def until(pilot: Pilot[None], predicate: Callable[[], object]) -> None:
    for _ in range(1000):
        if predicate():
            return
        await pilot.pause(0.01)
    raise AssertionError("not within 10 s")


@pytest.fixture
def app() -> WorkbenchApp:
    forecasts = Forecasts(lambda _layout: ())
    outside = Outside(start_forecasts=lambda listener: DraftForecasts(forecasts, listener))
    return make_app(Script(cards=("RPC0", "RPC1")), outside, first=BUNDLED)


async def test_a_draft_is_forecast_as_it_changes_and_the_running_split_is_not(app: WorkbenchApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.main.split.current is not None)
        pane = app.main.query_one(SplitPane)
        pane.focus()
        await pilot.press("right")
        await until(pilot, lambda: not pane.stale and "n_ctx up to" in pane.forecast)
        assert "✓ fits" in pane.forecast
        assert "by llama.cpp" in pane.forecast
        first = pane.forecast
        await pilot.press("right")
        await until(pilot, lambda: not pane.stale and pane.forecast != first)
        await pilot.press("escape")
        await until(pilot, lambda: pane.forecast == "")
    app.session.close()


async def test_a_draft_that_does_not_fit_says_what_is_missing_and_where(app: WorkbenchApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.main.split.current is not None)
        pane = app.main.query_one(SplitPane)
        pane.focus()
        await pilot.press("down", *["right"] * 16)
        await until(pilot, lambda: not pane.stale and "misses by" in pane.forecast)
        assert "on card 1" in pane.forecast
    app.session.close()
