"""One card in detail: all its figures, and ten minutes of them plotted."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.containers import Grid, Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static
from textual_plotext import PlotextPlot

from workbench.app.card_rows import GIB_FROM
from workbench.app.detail_text import describe
from workbench.app.keymap import Where, bindings, keymap_of
from workbench.app.screens.dialog import Dialog
from workbench.app.text import one_line
from workbench.meters.history import MINUTES
from workbench.meters.processes import pids_are_the_hosts

if TYPE_CHECKING:
    from workbench.app.panes.cards import CardsPane

COLOURS = ("blue", "magenta", "cyan")
_REDRAW_S = 1.0
_TALL = 34


@dataclass(frozen=True)
class Curve:
    """One plot: figures of the history with their names, what to divide them by, the axis' least top."""

    title: str
    figures: tuple[tuple[str, str], ...]
    per: float = 1.0
    least: float = 1.0


CURVES = (
    Curve("use %", (("utilisation", "use"), ("dram_percent", "bandwidth"), ("tensor_percent", "tensor")), least=100.0),
    Curve("memory MiB", (("used_mib", "used"),)),
    Curve("power W", (("power_w", "power"),), least=50.0),
    Curve("links MiB/s", (("pcie_mib_s", "PCIe"), ("nvlink_mib_s", "NVLink")), least=10.0),
)


def round_up(value: float) -> float:
    """A round number that is no less, for the top of an axis."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 4, 6, 8, 10) if step * unit >= value)


class CardDetailScreen(Dialog[None]):
    """Left and right go through the cards; Esc closes."""

    BINDINGS = bindings("card")
    where: ClassVar[Where] = "card"

    def __init__(self, pane: "CardsPane") -> None:
        super().__init__()
        self._pane = pane
        self._at = 0
        self._host_pids = pids_are_the_hosts()

    def compose(self) -> ComposeResult:
        """Figures on the left, plots on the right."""
        with Vertical(classes="dialog whole", id="card-detail") as box:
            box.border_subtitle = keymap_of(self.app).words(
                "{card_previous} {card_next} other cards · ↑ ↓ scroll · Esc closes"
            )
            with Horizontal():
                with VerticalScroll(id="card-figures"):
                    yield Static(id="card-text", markup=False)
                with Grid(id="card-plots"):
                    for number, _ in enumerate(CURVES):
                        plot = PlotextPlot(id=f"plot-{number}")
                        plot.theme = "pro"
                        yield plot

    def on_mount(self) -> None:
        """Draw, and again each second."""
        self.set_interval(_REDRAW_S, self.draw)
        self.query_one("#card-figures").focus()
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        """Four plots where they fit, else two."""
        self.set_class(self.size.height < _TALL, "-short")
        self.call_after_refresh(self.draw)

    def action_other(self, by: int) -> None:
        """Another card."""
        self._at += by
        self.draw()

    def draw(self) -> None:
        """Everything anew, of the card that is shown."""
        rows = self._pane.rows
        if not rows:
            return
        self._at %= len(rows)
        row = rows[self._at]
        card = next((card for card in self._pane.cards if card.name == row.name), None)
        box = self.query_one("#card-detail", Vertical)
        state = " · LOST" if row.sample.lost else " · asleep" if row.sample.asleep else ""
        box.border_title = Content(f"{one_line(row.name, 40)}  {self._at + 1}/{len(rows)}{state}")
        text = describe(row, card, self._pane.duty, host_pids=self._host_pids)
        self.query_one("#card-text", Static).update(text)
        for number, curve in enumerate(CURVES):
            top = curve.least
            if curve.title == "memory MiB" and row.total_mib:
                per = 1024.0 if row.total_mib >= GIB_FROM else 1.0
                curve = Curve("memory GiB" if per > 1 else curve.title, curve.figures, per)
                top = row.total_mib / per
            self._plot(self.query_one(f"#plot-{number}", PlotextPlot), curve, row.name, top)

    def _plot(self, widget: PlotextPlot, curve: Curve, card: str, top: float) -> None:
        plot = widget.plt
        plot.clear_data()
        plot.clear_figure()
        drawn = 0
        for (figure, name), colour in zip(curve.figures, COLOURS, strict=False):
            points = [(at / 60, value / curve.per) for at, value in self._since(card, figure) if value is not None]
            if not points:
                continue
            drawn += 1
            top = max(top, round_up(max(value for _, value in points)))
            times, values = zip(*points, strict=True)
            plot.plot(times, values, marker="braille", color=colour, label=name if len(curve.figures) > 1 else None)
        plot.title(curve.title if drawn else f"{curve.title}: nobody tells")
        plot.xlim(-MINUTES, 0)
        plot.ylim(0, top)
        plot.yticks([0, top / 2, top], [f"{value:>5.0f}" for value in (0, top / 2, top)])
        plot.xticks([-MINUTES, -MINUTES / 2, 0], [f"-{MINUTES} min", f"-{MINUTES // 2}", "now"])
        widget.refresh()

    def _since(self, card: str, figure: str) -> list[tuple[float, float | None]]:
        return self._pane.history.since(card, figure, MINUTES * 60)
