"""The lines that frame the screen: header, footer, and the tabs of a narrow one."""

from rich.cells import cell_len
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from workbench.app.card_rows import LEGEND
from workbench.app.keymap import Where, keymap_of, shown
from workbench.app.text import one_line
from workbench.domain.text import flat

_LEAST_NAME = 10
"""So many cells of a model's name are left before what follows it is cut."""


def shortened(text: str, width: int) -> str:
    """`MODEL QUANT · layer 3:1 · ctx 8192` in so many cells: the model's name is cut first."""
    first, dot, rest = text.partition(" · ")
    room = width - cell_len(dot + rest)
    return one_line(first, room) + dot + rest if room >= _LEAST_NAME else one_line(text, width)


class Header(Static):
    """`workbench  MODEL QUANT · layer 3:1 · ctx 8192        2 × H200 · llama.cpp`, or a `warning` instead."""

    left: reactive[str] = reactive("no model")
    right: reactive[str] = reactive("")
    warning: reactive[str] = reactive("")

    def render(self) -> Content:
        """Both ends of one line; the right one gives way, a warning does not."""
        width = self.content_size.width
        name = "workbench  "
        if self.warning:
            said = f"✗ {self.warning}"
            left = shortened(self.left, max(10, width - len(name) - cell_len(said) - 2))
            gap = " " * max(1, width - len(name) - cell_len(left) - cell_len(said))
            return (
                Content.styled(name, "bold $text-primary") + Content(left + gap)
                + Content.styled(said, "bold $text-warning")
            )  # fmt: skip
        left = shortened(self.left, max(10, width - len(name)))
        right = flat(self.right)
        right = right if len(name) + cell_len(left) + cell_len(right) + 2 <= width else ""
        gap = " " * max(1, width - len(name) - cell_len(left) - cell_len(right))
        return Content.styled(name, "bold $text-primary") + Content(left + gap) + Content.styled(right, "$text-muted")


class Tabs(Static):
    """The two halves of a narrow screen, the visible one marked."""

    chat: reactive[bool] = reactive(True)

    def render(self) -> Content:
        """`[Chat]  Cards and split   F6 changes`."""
        pieces = []
        for name, on in (("Chat", self.chat), ("Cards and split", not self.chat)):
            pieces.append(Content.styled(f"[{name}]" if on else f" {name} ", "bold $text-primary" if on else ""))
        line = Content(" ").join(pieces) + Content.styled(keymap_of(self.app).words("  {split} changes"), "$text-muted")
        gap = self.content_size.width - line.cell_length - len(LEGEND)
        return line if self.chat or gap < 2 else line + Content.styled(" " * gap + LEGEND, "$text-muted")

    def on_click(self) -> None:
        """Change."""
        self.app.simulate_key(keymap_of(self.app).of("split")[0])


class FootKeys(Static):
    """The keys that count now."""

    where: reactive[Where] = reactive("prompt")
    offered: reactive[bool] = reactive(False)

    def render(self) -> Content:
        """As many as fit, the focused pane's own first, after what is offered."""
        room = self.content_size.width
        line = Content("")
        for key in keymap_of(self.app).footer(self.where, offered=self.offered):
            piece = Content.styled(shown(key), "bold $text-primary") + Content(f" {key.footer}")
            gap = 2 if line.plain else 0
            if line.cell_length + gap + piece.cell_length > room:
                break
            line = line + Content(" " * gap) + piece
        return line
