"""What all dialogs share: a frame, Esc closes, and the way in and out."""

from typing import TypeVar

from textual.binding import Binding
from textual.screen import ModalScreen

Result = TypeVar("Result")


class Dialog(ModalScreen[Result | None]):
    """A framed box over the screen; Esc closes it without a result."""

    BINDINGS = [Binding("escape", "close", "close", show=False)]  # noqa: RUF012

    def action_close(self) -> None:
        """Close without a result."""
        self.dismiss(None)
