"""What all dialogs share: a frame, Esc closes, and the way in and out."""

from typing import ClassVar, TypeVar

from textual.screen import ModalScreen

from workbench.app.keymap import Where, bindings

Result = TypeVar("Result")


class Dialog(ModalScreen[Result | None]):
    """A framed box over the screen; Esc closes it without a result."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tight"), (84, "-roomy")]  # noqa: RUF012
    """Where only a column or two would be in sight beside the box it takes the whole width."""
    BINDINGS = bindings("dialog")
    where: ClassVar[Where] = "dialog"

    def action_close(self) -> None:
        """Close without a result."""
        self.dismiss(None)

    def action_help(self) -> None:
        """What this is, and its keys."""
        from workbench.app.screens.help import HelpScreen

        self.app.push_screen(HelpScreen(self.where))
