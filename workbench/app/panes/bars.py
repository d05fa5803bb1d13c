"""The lines that frame the screen: header, status, footer, and the tabs of a narrow one."""

from textual import events
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from workbench.app.card_rows import LEGEND
from workbench.app.keymap import Where, footer_keys, shown
from workbench.app.text import one_line


class Header(Static):
    """`workbench  MODEL QUANT · layer 3:1 · ctx 8192        2 × H200 · llama.cpp`."""

    left: reactive[str] = reactive("no model")
    right: reactive[str] = reactive("")

    def render(self) -> Content:
        """Both ends of one line; the right one gives way."""
        width = self.content_size.width
        name = "workbench  "
        left = one_line(self.left, max(10, width - len(name)))
        right = self.right if len(name) + len(left) + len(self.right) + 2 <= width else ""
        gap = " " * max(1, width - len(name) - len(left) - len(right))
        return Content.styled(name, "bold $text-primary") + Content(left + gap) + Content.styled(right, "$text-muted")


class Tabs(Static):
    """The two halves of a narrow screen, the visible one marked."""

    chat: reactive[bool] = reactive(True)

    def render(self) -> Content:
        """`[Chat]  Cards and split   F6 changes`."""
        pieces = []
        for name, on in (("Chat", self.chat), ("Cards and split", not self.chat)):
            pieces.append(Content.styled(f"[{name}]" if on else f" {name} ", "bold $text-primary" if on else ""))
        line = Content(" ").join(pieces) + Content.styled("  F6 changes", "$text-muted")
        gap = self.content_size.width - line.cell_length - len(LEGEND)
        return line if self.chat or gap < 2 else line + Content.styled(" " * gap + LEGEND, "$text-muted")

    def on_click(self) -> None:
        """Change."""
        self.app.simulate_key("f6")


class FootKeys(Static):
    """The keys that count now."""

    where: reactive[Where] = reactive("prompt")

    def render(self) -> Content:
        """As many as fit, the focused pane's own first."""
        room = self.content_size.width
        line = Content("")
        for key in footer_keys(self.where):
            piece = Content.styled(shown(key), "bold $text-primary") + Content(f" {key.footer}")
            gap = 2 if line.plain else 0
            if line.cell_length + gap + piece.cell_length > room:
                break
            line = line + Content(" " * gap) + piece
        return line


class Status(Static):
    """Progress, the last thing that went wrong, and the last that was said. Hidden without any.

    What went wrong stays in sight when something else is said after it.
    """

    def __init__(self) -> None:
        super().__init__(id="status", markup=False)
        self.display = False
        self._progress: tuple[float, str] | None = None
        self._problem = ""
        self._notice = ""

    def progress(self, fraction: float | None, what: str = "") -> None:
        """A load goes on; None ends it."""
        self._progress = None if fraction is None else (fraction, what)
        self._draw()

    def say(self, message: str, *, problem: bool) -> None:
        """Show a message until it is dismissed or another of its kind comes."""
        if problem:
            self._problem, self._notice = message, ""
        else:
            self._notice = message
        self._draw()

    def dismiss(self) -> bool:
        """Take the messages away; whether there were any."""
        there = bool(self._problem or self._notice)
        self._problem = self._notice = ""
        self._draw()
        return there

    def on_resize(self, _event: events.Resize) -> None:
        """The bar follows the width."""
        self._draw()

    def _draw(self) -> None:
        lines = []
        if self._problem:
            hint = "   F8 all messages · Esc closes this"
            lines.append(Content.styled("✗ ", "bold $text-error") + Content(self._problem))
            lines[-1] = lines[-1] + Content.styled(hint, "$text-muted")
        if self._notice:
            lines.append(Content.styled("i ", "bold $text-primary") + Content(self._notice))
        if self._progress is not None:
            lines.append(self._bar(*self._progress))
        self.display = bool(lines)
        self.set_class(bool(self._problem), "-problem")
        self.update(Content("\n").join(lines))

    def _bar(self, fraction: float, what: str) -> Content:
        width = max(10, min(40, self.app.size.width // 4))
        done = round(min(max(fraction, 0.0), 1.0) * width)
        text = one_line(what, max(10, self.app.size.width - width - 24))
        return (
            Content.styled("█" * done, "$text-primary")
            + Content.styled("░" * (width - done), "$text-muted")
            + Content(f" {fraction * 100:3.0f} %  {text}")
            + Content.styled("  Esc stops", "$text-muted")
        )
