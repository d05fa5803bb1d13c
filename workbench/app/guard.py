"""The last look at what goes to the terminal: whatever a widget draws, it is text."""

from rich.cells import set_cell_size
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from workbench.domain.text import tame

_DIVIDERS = str.maketrans("\n\t\u2028\u2029", "    ")


class Guard(LineFilter):
    """Takes out control characters, overrides of the direction and links, each segment as wide as it was."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments; most of them stay as they are."""
        return [segment if _is_text(segment) else _as_text(segment) for segment in segments]


def _is_text(segment: Segment) -> bool:
    return segment.text.isprintable() and (segment.style is None or segment.style.link is None)


def _as_text(segment: Segment) -> Segment:
    text, style, _ = segment
    if not text.isprintable():
        text = set_cell_size(tame(text.translate(_DIVIDERS)), segment.cell_length)
    return Segment(text, None if style is None else style.update_link(None))
