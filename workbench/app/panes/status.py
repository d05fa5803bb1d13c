"""The status lines: what a load does, what went wrong, what was said, what is suggested."""

from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Static

from workbench.app.keymap import keymap_of
from workbench.app.text import one_line

MOST = 600
"""A message is no longer than so many cells here; F8 has the whole of it."""


class Status(Static):
    """Progress, the last thing that went wrong, the last that was said, and a way on. Hidden without any.

    What went wrong stays in sight when something else is said after it, and the suggestion after it
    until it is dismissed or taken.
    """

    def __init__(self) -> None:
        super().__init__(id="status", markup=False)
        self.display = False
        self._progress: tuple[float | None, str] | None = None
        self._replying = False
        self._problem = ""
        self._notice = ""
        self._suggestion = ""

    def progress(self, fraction: float | None, what: str = "") -> None:
        """A load goes on; None ends it."""
        self._progress = None if fraction is None else (fraction, one_line(what, MOST))
        self._draw()

    def waiting(self, what: str) -> None:
        """What has loaded waits for its turn; there is no bar for how long that takes."""
        self._progress = None, one_line(what, MOST)
        self._draw()

    def replying(self, on: bool) -> None:
        """Whether a reply is being written, which Esc then stops first."""
        self._replying = on
        if self._progress is not None:
            self._draw()

    def say(self, message: str, *, problem: bool) -> None:
        """Show a message until it is dismissed or another of its kind comes."""
        if problem:
            self._problem, self._notice = one_line(message, MOST), ""
        else:
            self._notice = one_line(message, MOST)
        self._draw()

    def suggest(self, sentence: str) -> None:
        """Show a way on, with its key; "" takes it away."""
        self._suggestion = sentence
        self._draw()

    def dismiss(self) -> bool:
        """Take the messages away, the suggestion stays; whether there were any."""
        there = bool(self._problem or self._notice)
        self._problem = self._notice = ""
        self._draw()
        return there

    def forget(self, message: str) -> None:
        """Take a message away that is no problem, if it is still shown."""
        if self._notice == one_line(message, MOST):
            self._notice = ""
            self._draw()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The lines over the whole width; a grid asks for the width of the first column."""
        return super().get_content_height(container, viewport, self.app.size.width - self.gutter.width)

    def on_resize(self, _event: events.Resize) -> None:
        """The bar follows the width."""
        self._draw()

    def _draw(self) -> None:
        lines, keys = [], keymap_of(self.app)
        if self._problem:
            hint = keys.words("   {messages} all messages · Esc closes this")
            lines.append(Content.styled("✗ ", "bold $text-error") + Content(self._problem))
            lines[-1] = lines[-1] + Content.styled(hint, "$text-muted")
        if self._suggestion:
            lines.append(Content.styled("→ ", "bold $text-success") + Content(self._suggestion))
            lines[-1] = lines[-1] + Content.styled(keys.words(" · {take_suggestion} loads it"), "bold")
        if self._notice:
            lines.append(Content.styled("i ", "bold $text-primary") + Content(self._notice))
        if self._progress is not None:
            lines.append(self._bar(*self._progress))
        self.display = bool(lines)
        self.set_class(bool(self._problem), "-problem")
        self.update(Content("\n").join(lines))

    def _bar(self, fraction: float | None, what: str) -> Content:
        """On one line, or what is done on a line of its own where it does not fit."""
        esc = Content.styled("  Esc stops the reply first" if self._replying else "  Esc stops", "$text-muted")
        if fraction is None:
            return Content(what) + esc
        width = max(10, min(40, self.app.size.width // 4))
        done = round(min(max(fraction, 0.0), 1.0) * width)
        bar = (
            Content.styled("█" * done, "$text-primary")
            + Content.styled("░" * (width - done), "$text-muted")
            + Content(f" {fraction * 100:3.0f} %")
        )
        text = Content(f"  {what}")
        room = self.app.size.width - 2
        if bar.cell_length + text.cell_length + esc.cell_length <= room:
            return bar + text + esc
        return bar + esc + "\n" + text
