"""Save under a name: what runs as a layout, what was said as a file."""

from collections.abc import Callable
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from workbench.app.screens.dialog import Dialog
from workbench.store.documents import DocumentError


class SaveAsScreen(Dialog[Path]):
    """Asks for a name; an error of `save` is shown, and the name can be changed."""

    def __init__(self, title: str, suggestion: str, save: Callable[[str], Path]) -> None:
        super().__init__()
        self._title = title
        self._suggestion = suggestion
        self._save = save

    def compose(self) -> ComposeResult:
        """The name, and what was wrong with it."""
        with Vertical(classes="dialog") as box:
            box.border_title = self._title
            box.border_subtitle = "Enter saves · Esc closes"
            yield Static("name", classes="muted", markup=False)
            yield Input(self._suggestion, id="name", max_length=200)
            yield Static(id="wrong", markup=False)

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        name = event.value.strip()
        if not name:
            self.query_one("#wrong", Static).update("a name is needed")
            return
        try:
            path = self._save(name)
        except (DocumentError, LookupError) as error:
            self.query_one("#wrong", Static).update(f"not saved: {error}")
        else:
            self.dismiss(path)
