"""The layout picker."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from workbench.app.keymap import keymap_of
from workbench.app.outside import LayoutEntry
from workbench.app.screens.dialog import Dialog
from workbench.app.text import column, one_line, shorter
from workbench.domain.layout import Layout
from workbench.domain.text import flat


def describe(entry: LayoutEntry, width: int, where: str = "") -> Content:
    """Name, split and model of a layout, or `where` it lies instead of the model; or what is wrong with it."""
    if entry.layout is None:
        return broken_line(entry.path, entry.error)
    layout = entry.layout
    model = one_line(Path(layout.model).name, max(10, width - 22 - 20 - 6))
    line = Content.styled(f"  {column(layout.name, 22)} ", "bold") + Content(f"{column(layout.label(), 18)} ")
    return line + Content.styled(one_line(where, max(10, width - 22 - 20 - 6)) if where else model, "$text-muted")


def broken_line(path: Path, error: str) -> Content:
    """A document that cannot be used, and why."""
    return Content.styled(f"✗ {column(path.name, 20)} ", "$text-error") + Content.styled(flat(error), "$text-muted")


def files_of_namesakes(entries: Sequence[LayoutEntry]) -> list[str]:
    """For each entry its file, where another has its name; else nothing."""
    names = Counter(entry.layout.name for entry in entries if entry.layout is not None)
    return [
        shorter(entry.path) if entry.layout is not None and names[entry.layout.name] > 1 else "" for entry in entries
    ]


class LayoutsScreen(Dialog[Layout]):
    """Lists `./layouts` and the user's own; documents with errors are listed with them."""

    def __init__(self, list_layouts: Callable[[], Sequence[LayoutEntry]], running: str | None) -> None:
        super().__init__()
        self._list_layouts = list_layouts
        self._name_now = running
        self._entries: Sequence[LayoutEntry] = ()

    def compose(self) -> ComposeResult:
        """The list, and what is wrong with the highlighted document."""
        with Vertical(classes="dialog") as box:
            box.border_title = "Layouts"
            box.border_subtitle = "Enter opens · Esc closes"
            yield OptionList(id="entries", markup=False)
            yield Static(id="about", classes="muted", markup=False)

    def on_mount(self) -> None:
        """Read the folders."""
        self.query_one(OptionList).loading = True
        self._read()

    @work(thread=True)
    def _read(self) -> None:
        entries = self._list_layouts()
        self.app.call_from_thread(self._show, entries)

    def _show(self, entries: Sequence[LayoutEntry]) -> None:
        self._entries = entries
        options = self.query_one(OptionList)
        options.loading = False
        width = options.content_size.width or 70
        wheres = files_of_namesakes(entries)
        options.add_options(
            [Option(describe(entry, width, where)) for entry, where in zip(entries, wheres, strict=True)]
        )
        names = [entry.layout.name if entry.layout else "" for entry in entries]
        options.highlighted = names.index(self._name_now) if self._name_now in names else 0 if entries else None
        options.focus()
        if not entries:
            none = "No layout yet: {save_as} on the main screen saves what runs as one."
            self.query_one("#about", Static).update(keymap_of(self.app).words(none))

    @on(OptionList.OptionHighlighted)
    def _about(self, event: OptionList.OptionHighlighted) -> None:
        entry = self._entries[event.option_index]
        self.query_one("#about", Static).update(flat(entry.error or shorter(entry.path)))

    @on(OptionList.OptionSelected)
    def _open(self, event: OptionList.OptionSelected) -> None:
        entry = self._entries[event.option_index]
        if entry.layout is not None:
            self.dismiss(entry.layout)
