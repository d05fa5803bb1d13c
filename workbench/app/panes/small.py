"""The one sentence of a terminal in which nothing else has room."""

from textual.geometry import Size
from textual.widgets import Static

SMALLEST = (60, 20)


class TooSmall(Static):
    """Stands in every whole screen; the app's class `-too-small` shows it and hides all else."""

    def __init__(self) -> None:
        super().__init__(
            f"The terminal is too small: {SMALLEST[0]} columns and {SMALLEST[1]} lines are the least.",
            id="too-small",
            markup=False,
        )


def is_too_small(size: Size) -> bool:
    """Whether the sentence is all that can be shown."""
    return size.width < SMALLEST[0] or size.height < SMALLEST[1]
