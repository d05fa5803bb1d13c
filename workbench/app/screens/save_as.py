"""Save under a name: what runs as a layout, what was said as a file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from workbench.app.keymap import Where, bindings, keymap_of
from workbench.app.screens.dialog import Dialog
from workbench.app.text import shorter
from workbench.domain.text import flat
from workbench.store.documents import DocumentError


class Save(Protocol):
    """Saves under a name. Raises DocumentError, also for a name that is taken unless it may overwrite."""

    def __call__(self, name: str, *, overwrite: bool) -> Path:
        """The file."""


def as_given(name: str) -> Path:
    """The file that a name is the path of."""
    return Path(os.path.expanduser(name)).absolute()


class SaveAsScreen(Dialog[Path]):
    """Asks for a name and tells where it goes; an error of `save` is shown, and the name can be changed."""

    BINDINGS = bindings("saving")
    where: ClassVar[Where] = "saving"

    def __init__(self, title: str, suggestion: str, save: Save, path_of: Callable[[str], Path] = as_given) -> None:
        super().__init__()
        self._title = title
        self._suggestion = suggestion
        self._save = save
        self._path_of = path_of

    def compose(self) -> ComposeResult:
        """The name, where it goes, and what was wrong with it."""
        with Vertical(classes="dialog") as box:
            box.border_title = self._title
            box.border_subtitle = keymap_of(self.app).words("Enter saves · {saving_overwrite} overwrites · Esc closes")
            yield Static("name", classes="muted", markup=False)
            yield Input(self._suggestion, id="name", max_length=200)
            yield Static(id="goes", classes="muted", markup=False)
            yield Static(id="wrong", markup=False)

    @on(Input.Changed)
    def _tell_where(self, event: Input.Changed) -> None:
        name = event.value.strip()
        path = self._path_of(name) if name else None
        taken = path is not None and os.path.lexists(path)
        there = keymap_of(self.app).words(" is there already; {saving_overwrite} overwrites it") if taken else ""
        self.query_one("#goes", Static).update("" if path is None else f"→ {flat(shorter(path))}{there}")
        self.query_one("#wrong", Static).update("")

    @on(Input.Submitted)
    def _submit(self) -> None:
        self._save_it(overwrite=False)

    def action_overwrite(self) -> None:
        """Save, whatever is there."""
        self._save_it(overwrite=True)

    def _save_it(self, *, overwrite: bool) -> None:
        name = self.query_one(Input).value.strip()
        if not name:
            self.query_one("#wrong", Static).update("a name is needed")
            return
        try:
            path = self._save(name, overwrite=overwrite)
        except (DocumentError, LookupError) as error:
            self.query_one("#wrong", Static).update(f"not saved: {error}")
        else:
            self.dismiss(path)
