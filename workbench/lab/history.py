"""The layouts that served in a session, and what each did."""

import msgspec

from workbench.domain.layout import Layout
from workbench.domain.timing import Probe
from workbench.engines.engine import Loaded
from workbench.lab.events import Measurement


class History:
    """Lines in the order of their first load; `position` is the one that serves."""

    def __init__(self) -> None:
        self.lines: tuple[Measurement, ...] = ()
        self.position = 0

    @property
    def now(self) -> Measurement | None:
        """The line that serves; None before the first load."""
        return self.lines[self.position] if self.lines else None

    def layout_at(self, index: int) -> Layout:
        """The layout of a line. LookupError where there is none."""
        if not 0 <= index < len(self.lines):
            raise LookupError("there is no earlier layout" if index < 0 else "there is no later layout")
        return self.lines[index].layout

    def served(self, layout: Layout, loaded: Loaded) -> None:
        """Put the layout in, in its old place where it was gone back to."""
        measurement = Measurement(layout=layout, label=layout.label(), cards=loaded.cards)
        self.position = next((i for i, line in enumerate(self.lines) if line.layout == layout), len(self.lines))
        self._put(measurement)

    def probed(self, probe: Probe) -> Measurement:
        """Note the probe of the line that serves."""
        measurement = msgspec.structs.replace(self.lines[self.position], probe=probe)
        self._put(measurement)
        return measurement

    def _put(self, measurement: Measurement) -> None:
        at = self.position
        self.lines = (*self.lines[:at], measurement, *self.lines[at + 1 :])
