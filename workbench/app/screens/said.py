"""F8: what was said so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from workbench.app.screens.dialog import Dialog
from workbench.domain.text import clean


@dataclass(frozen=True)
class Said:
    """A message, when it was shown, and whether it was a problem."""

    at: datetime
    message: str
    problem: bool


class SaidScreen(Dialog[None]):
    """The messages of this session, the newest first."""

    def __init__(self, said: Sequence[Said]) -> None:
        super().__init__()
        self._said = said

    def compose(self) -> ComposeResult:
        """One text."""
        lines = [
            Content.styled(f"{said.at:%H:%M:%S} ", "$text-muted")
            + (Content.styled("✗ ", "bold $text-error") if said.problem else Content("  "))
            + Content(clean(said.message))
            for said in reversed(self._said)
        ]
        with Vertical(classes="dialog") as box:
            box.border_title = "Messages"
            box.border_subtitle = "↑ ↓ scroll · Esc closes"
            with VerticalScroll():
                yield Static(Content("\n").join(lines) if lines else Content("nothing was said yet"), markup=False)
