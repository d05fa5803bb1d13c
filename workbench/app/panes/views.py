"""The views of a run: plots, blocks, outputs and details, one at a time or side by side."""

from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from workbench.app import ab_draw
from workbench.app.ab_plot import LEGEND, CurvePlot, RatioPlot
from workbench.app.keymap import keymap_of
from workbench.domain.comparison import Metric, course
from workbench.domain.curve import curve, has_lengths
from workbench.domain.outcome import Outcome
from workbench.domain.run import Run
from workbench.domain.wording import NAMES, UNITS

View = str
TITLES: dict[View, str] = {
    "plot": "Plot", "lengths": "By length", "blocks": "Blocks", "outputs": "Outputs", "details": "Details",
}  # fmt: skip
WIDE = (130, 36)
"""From this size on all views are side by side."""


def views_of(run: Run) -> tuple[View, ...]:
    """Which views a run has, in their order."""
    some = {"plot": run.header.kind == "ab", "lengths": has_lengths(run.header.prompts)}
    return tuple(view for view in TITLES if some.get(view, True))


class Views(Vertical):
    """All views of one run; the chosen one is marked, on a small screen alone."""

    def __init__(self) -> None:
        super().__init__(id="views")
        self.chosen: View = "plot"
        self.wide = False
        self._views: tuple[View, ...] = ()

    def compose(self) -> ComposeResult:
        """Tabs, then a pane a view."""
        yield Static(id="view-names", markup=False)
        with Vertical(id="view-panes"):
            with Vertical(id="view-plot", classes="pane"):
                yield RatioPlot()
                yield Static(Content.styled(LEGEND, "$text-muted"), id="ratio-legend", markup=False)
            with Vertical(id="view-lengths", classes="pane"):
                yield CurvePlot()
            with VerticalScroll(id="view-blocks", classes="pane", can_focus=False):
                yield Static(id="blocks", markup=False)
            with VerticalScroll(id="view-outputs", classes="pane", can_focus=False):
                yield Static(id="outputs-head", markup=False)
                with Horizontal(id="outputs"):
                    yield Static(id="output-a", markup=False)
                    yield Static(id="output-b", markup=False)
            with VerticalScroll(id="view-details", classes="pane", can_focus=False):
                yield Static(id="details", markup=False)

    def lay_out(self, wide: bool) -> None:
        """Side by side, or one at a time."""
        self.wide = wide
        self.set_class(wide, "-side-by-side")
        self._mark()

    def choose(self, by: int) -> None:
        """Another view."""
        if self._views:
            at = self._views.index(self.chosen)
            self.chosen = self._views[(at + by) % len(self._views)]
            self._mark()

    def scroll(self, by: int) -> None:
        """Scroll the chosen view."""
        self.query_one(f"#view-{self.chosen}").scroll_relative(y=by * 3, animate=False)

    def show(
        self, run: Run, outcome: Outcome | None, metric: Metric, prompt: int, folder: Path | None
    ) -> None:
        """Draw all of them."""
        views = views_of(run)
        if views != self._views:
            self._views = views
            self.chosen = self.chosen if self.chosen in views else views[0]
            self.set_class("lengths" in views, "-lengths")
            self._mark()
        effect = None if outcome is None else outcome.effect(metric)
        if "plot" in views:
            self.query_one(RatioPlot).show(
                () if effect is None else course(effect), effect.floor if effect else None, run.header.blocks
            )
            self.query_one("#view-plot").border_title = f"B/A {NAMES[metric]} speed by block"
        if "lengths" in views:
            self.query_one(CurvePlot).show(curve(run, metric))
            both = " · A, B, * both" if run.header.kind == "ab" else ""
            self.query_one("#view-lengths").border_title = f"{UNITS[metric]} by tokens in the context{both}"
        self.query_one("#blocks", Static).update(ab_draw.blocks(run, metric))
        a, b, _ = ab_draw.pair(run, run.header.prompts.prompts[prompt].id)
        self.query_one("#outputs-head", Static).update(ab_draw.outputs_head(run, outcome, prompt))
        for name, sample, other in (("a", a, b), ("b", b, a)):
            self.query_one(f"#output-{name}", Static).update(ab_draw.output(name.upper(), sample, other))
        self.query_one("#output-b").display = run.header.kind == "ab"
        self.query_one("#details", Static).update(ab_draw.details(run, outcome, folder))

    def _mark(self) -> None:
        pieces = []
        for view, title in TITLES.items():
            pane = self.query_one(f"#view-{view}")
            chosen = view == self.chosen
            pane.display = view in self._views and (self.wide or chosen)
            pane.set_class(chosen, "-chosen")
            if self.wide:
                pane.border_title = pane.border_title or title
            if view in self._views:
                text = f"[{title}]" if chosen else f" {title} "
                pieces.append(Content.styled(text, "bold $text-primary" if chosen else ""))
        names = self.query_one("#view-names", Static)
        names.display = not self.wide
        keys = keymap_of(self.app).words("  {result_previous_view} {result_next_view} changes")
        names.update(Content(" ").join(pieces) + Content.styled(keys, "$text-muted"))
