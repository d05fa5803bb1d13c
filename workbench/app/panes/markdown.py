"""Markdown of model text: nothing hidden, nothing to click, cheap while it grows."""

from markdown_it import MarkdownIt
from rich.markdown import Markdown as RichMarkdown
from textual.content import Content
from textual.highlight import highlight
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence, MarkdownStream

from workbench.app.theme import CodeColours


def _parser() -> MarkdownIt:
    """Tables and strikethrough, but no HTML: tags in model text are text."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})


_PARSER = _parser()


class Fence(MarkdownFence):
    """A code block in the terminal's colours."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Colour finished code; a long block that still grows is coloured at its end."""
        return highlight(code, language=language or "text", theme=CodeColours)


class GrowingFence(Fence):
    """A code block that still grows."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """No colours: they would be worked out anew for all lines at each addition."""
        return Content(code)


class ReplyMarkdown(Markdown):
    """The Markdown of a reply. Grows by `write`, until `finish` draws the whole anew."""

    BLOCKS = {**Markdown.BLOCKS, "fence": Fence, "code_block": Fence}  # noqa: RUF012

    def __init__(self, text: str = "", *, growing: bool = False) -> None:
        super().__init__(text or None, parser_factory=lambda: _PARSER, open_links=False)
        self.growing = growing
        self._stream: MarkdownStream | None = None

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        """Code is not coloured while it grows."""
        if self.growing and block_name in ("fence", "code_block"):
            return GrowingFence
        return super().get_block_class(block_name)

    async def write(self, more: str) -> None:
        """Add text at the end."""
        if self._stream is None:
            self._stream = Markdown.get_stream(self)
        await self._stream.write(more)

    async def finish(self, text: str) -> None:
        """Draw the whole text: a text parsed piece by piece is not always parsed the same."""
        self.growing = False
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None
        await self.update(text)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Show where a link leads; opening is the user's business."""
        event.stop()
        self.app.copy_to_clipboard(event.href)
        self.notify(f"copied, not opened: {event.href}", markup=False)


class StillMarkdown(RichMarkdown):
    """Markdown that never changes any more, drawn as one piece."""

    def __init__(self, text: str) -> None:
        super().__init__(text, code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(text)
