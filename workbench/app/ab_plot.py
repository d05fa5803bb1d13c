"""Plots of a run, of plain characters only: the ratio by block, and the speed by length."""

import math
from collections.abc import Sequence

from textual.app import RenderResult
from textual_plotext import PlotextPlot

from workbench.domain.comparison import Step, factor
from workbench.domain.curve import Point
from workbench.domain.samples import Arm

LEGEND = "x block   o mean so far   |---| its 95 % interval   : equal   . noise floor"
_GREY, _BLUE, _CYAN, _MAGENTA = 8, 4, 6, 5
_LETTER = {"A": _CYAN, "B": _MAGENTA}
Arms = dict[Arm, str]


class _Plot(PlotextPlot):
    """Keeps the terminal's own colours."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.theme = "clear"

    def render(self) -> RenderResult:
        """Filled for its size."""
        if self.size.width < 20 or self.size.height < 3:
            return ""
        self.plt.clear_figure()
        self.plt.plotsize(self.size.width, self.size.height)
        self.plt.xaxes(False, False)
        self.plt.yaxes(False, False)
        self.fill()
        return super().render()

    def fill(self) -> None:
        """Draw what is shown."""


class RatioPlot(_Plot):
    """A line a block: its own ratio, and the interval of the mean so far, which closes in downwards."""

    def __init__(self) -> None:
        super().__init__(id="ratio-plot")
        self._steps: Sequence[Step] = ()
        self._floor: float | None = None
        self._blocks = 0

    def show(self, steps: Sequence[Step], floor: float | None, blocks: int) -> None:
        """The course so far of a run of so many blocks; the floor is a log ratio."""
        self._steps, self._floor, self._blocks = steps, floor, blocks
        self.refresh()

    def fill(self) -> None:
        """See `_Plot`."""
        plt, lines = self.plt, self.size.height - 1
        apart = max(1, min(3, (lines - 1) // max(1, self._blocks - 1))) if self._blocks > 1 else 1
        fit = (lines - 1) // apart + 1
        first = max(0, self._blocks - fit) if self._steps and self._steps[-1].block >= fit else 0
        rows = {block: lines - (block - first) * apart for block in range(first, min(self._blocks, first + fit))}
        low, high = self._range()
        plt.xlim(low, high)
        plt.ylim(1, lines)
        ticks = _ticks(low, high)
        plt.xticks(ticks, [f"{tick:.{_digits(ticks)}f}" for tick in ticks])
        plt.yticks(list(rows.values()), [f"block {block + 1}" for block in rows])
        if self._floor is not None:
            for edge in (factor(-self._floor), factor(self._floor)):
                if low <= edge <= high:
                    plt.plot([edge, edge], [1, lines], marker=".", color=_GREY)
        known = [(step, rows[step.block]) for step in self._steps if step.block in rows]
        for step, row in known:
            self._draw_interval(step, row, low, high)
        plt.plot([1, 1], [1, lines], marker=":", color=_GREY)
        for step, row in known:
            plt.scatter([step.ratio], [row], marker="x", color="default")
            if step.low is not None:
                plt.scatter([step.mean], [row], marker="o", color=_BLUE)

    def _draw_interval(self, step: Step, row: int, low: float, high: float) -> None:
        if step.low is None or step.high is None:
            return
        rim = (high - low) * 0.015
        left, right = max(low + rim, step.low), min(high - rim, step.high)
        self.plt.plot([left, right], [row, row], marker="-", color=_BLUE)
        for edge, end, mark in ((left, step.low, "<"), (right, step.high, ">")):
            self.plt.scatter([edge], [row], marker="|" if edge == end else mark, color=_BLUE)

    def _range(self) -> tuple[float, float]:
        """From the least to the greatest of what matters: every block, the last interval, equality."""
        if not self._steps:
            return 0.9, 1.1
        values = [1.0, *(step.ratio for step in self._steps)]
        if self._floor is not None:
            values += [factor(-self._floor), factor(self._floor)]
        if self._steps[-1].low is not None and self._steps[-1].high is not None:
            # An interval of two blocks may be huge: what is beyond a little more than the blocks is cut off.
            reach = max(0.02, max(values) - min(values))
            values += [
                max(self._steps[-1].low, min(values) - reach),
                min(self._steps[-1].high, max(values) + reach),
            ]
        room = max(0.01, (max(values) - min(values)) * 0.08)
        return min(values) - room, max(values) + room


class CurvePlot(_Plot):
    """Speed against the tokens in the context, a letter an arm, a `*` where both are at one place."""

    def __init__(self) -> None:
        super().__init__(id="curve-plot")
        self._points: Sequence[Point] = ()

    def show(self, points: Sequence[Point]) -> None:
        """These points."""
        self._points = points
        self.refresh()

    def fill(self) -> None:
        """See `_Plot`."""
        plt = self.plt
        if not self._points:
            return
        most = max(point.value for point in self._points)
        farthest = max(point.tokens for point in self._points)
        plt.ylim(0, most * 1.05)
        plt.xlim(0, farthest * 1.03)
        ticks = _ticks(0, most)
        plt.yticks(ticks, [f"{tick:.{_digits(ticks)}f}" for tick in ticks])
        columns = max(2, self.size.width - 1 - max(len(f"{tick:.{_digits(ticks)}f}") for tick in ticks))
        along = self._along(farthest * 1.03 / columns)
        plt.xticks(along, [f"{tick:.0f}" for tick in along])
        for arm, colour in _LETTER.items():
            points = [point for point in self._points if point.arm == arm]
            if points:
                across, up = [point.tokens for point in points], [point.value for point in points]
                plt.plot(across, up, marker=".", color=colour)
                plt.scatter(across, up, marker=arm, color=colour)
        cells: dict[tuple[int, int], Point] = {}
        for point in self._points:
            column = math.floor(0.5 + (columns - 1) * point.tokens / (farthest * 1.03))
            row = math.floor(0.5 + (self.size.height - 2) * point.value / (most * 1.05))
            other = cells.setdefault((column, row), point)
            if other.arm != point.arm:
                plt.scatter([point.tokens], [point.value], marker="*", color="default")

    def _along(self, column: float) -> list[float]:
        """The points' own tokens, the last before others, as far as there is room; `column` is tokens a column."""
        kept: list[float] = []
        for tokens in sorted({point.tokens for point in self._points}, reverse=True):
            if not kept or (kept[-1] - tokens) / column > len(f"{kept[-1]:.0f}") + 1:
                kept.append(tokens)
        return kept[::-1]


def _ticks(low: float, high: float) -> list[float]:
    """At most about five round numbers between."""
    span = max(high - low, 1e-9)
    step = 10 ** math.floor(math.log10(span / 4))
    step *= next((each for each in (1, 2, 5, 10) if span / (step * each) <= 6), 10)
    return [at * step for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _digits(ticks: Sequence[float]) -> int:
    """Decimals that tell the ticks apart."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    return max(0, -math.floor(math.log10(step) + 1e-9))
