"""The model picker: fills as headers are read."""

from collections.abc import Callable

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from workbench.app.outside import ModelEntry
from workbench.app.screens.dialog import Dialog
from workbench.app.text import column, one_line
from workbench.domain.card import format_mib
from workbench.domain.layout import Layout
from workbench.domain.text import flat
from workbench.engines.engine import ModelInfo


def describe(entry: ModelEntry, width: int) -> Content:
    """Name, size, quantisation, layers and trained context of a model; or why it cannot be read."""
    if entry.model is None:
        return Content.styled(f"✗ {one_line(entry.path.name, 30)} ", "$text-error") + Content.styled(
            flat(entry.error), "$text-muted"
        )
    model = entry.model
    room = max(12, width - 44)
    size = format_mib(model.size_mib) if model.size_mib else "–"
    figures = f"{size:>9} {one_line(model.quantisation, 8) or '–':>8} {model.n_layer or '–':>4} {_tokens(model):>8}"
    return Content.styled(f"  {column(model.name or entry.path.stem, room)} ", "bold") + Content(figures)


def _tokens(model: ModelInfo) -> str:
    if not model.n_ctx_train:
        return "–"
    return f"{model.n_ctx_train // 1024}k" if model.n_ctx_train % 1024 == 0 else str(model.n_ctx_train)


class ModelsScreen(Dialog[Layout]):
    """Lists the models of the configured folders, and of the servers that layouts name."""

    class Found(Message):
        """A model was found; None when all were."""

        def __init__(self, entry: ModelEntry | None) -> None:
            super().__init__()
            self.entry = entry

    def __init__(self, find_models: Callable[[Callable[[ModelEntry], None]], None]) -> None:
        super().__init__()
        self._find_models = find_models
        self._entries: list[ModelEntry] = []

    def compose(self) -> ComposeResult:
        """Column heads, the list, the path."""
        with Vertical(classes="dialog") as box:
            box.border_title = "Models"
            box.border_subtitle = "Enter loads · Esc closes"
            yield Static(id="heads", classes="muted", markup=False)
            yield OptionList(id="entries", markup=False)
            yield Static("looking …", id="about", classes="muted", markup=False)

    def on_mount(self) -> None:
        """Start looking."""
        self.query_one(OptionList).focus()
        self.call_after_refresh(self._heads)
        self._look()

    def _heads(self) -> None:
        room = max(12, self._width - 44)
        heads = f"  {'name':<{room}} {'size':>9} {'quant':>8} {'layers':>4} {'context':>7}"
        self.query_one("#heads", Static).update(heads)

    @property
    def _width(self) -> int:
        return self.query_one(OptionList).content_size.width or 70

    @work(thread=True)
    def _look(self) -> None:
        def found(entry: ModelEntry | None) -> None:
            self.post_message(self.Found(entry))

        self._find_models(found)
        found(None)

    @on(Found)
    def _found(self, event: "ModelsScreen.Found") -> None:
        options = self.query_one(OptionList)
        if event.entry is not None:
            self._entries.append(event.entry)
            options.add_option(Option(describe(event.entry, self._width)))
            if options.highlighted is None:
                options.highlighted = 0
        elif not self._entries:
            self.query_one("#about", Static).update("no model found: workbench FOLDER looks in a folder of yours")

    @on(OptionList.OptionHighlighted)
    def _about(self, event: OptionList.OptionHighlighted) -> None:
        entry = self._entries[event.option_index]
        where = "" if entry.server is None else f" on {entry.server.served_by}"
        self.query_one("#about", Static).update(flat(entry.error or f"{entry.path}{where}"))

    @on(OptionList.OptionSelected)
    def _open(self, event: OptionList.OptionSelected) -> None:
        entry = self._entries[event.option_index]
        layout = entry.opens()
        if layout is not None:
            self.dismiss(layout)
