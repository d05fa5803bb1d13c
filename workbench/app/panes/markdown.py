"""Markdown of model text: nothing hidden, nothing to click, cheap while it grows."""

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.markdown import Markdown as RichMarkdown
from textual.containers import Vertical
from textual.content import Content
from textual.highlight import highlight
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence, MarkdownStream

from workbench.app.panes.steady import Steady
from workbench.app.text import one_line
from workbench.app.theme import CodeColours
from workbench.domain.text import flat


def _parser() -> MarkdownIt:
    """Tables and strikethrough, but no HTML: tags in model text are text."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})


_PARSER = _parser()
MOST_OF_LINK = 200
PIECE = 2500
"""A piece of a growing reply is closed, at the next block, beyond so many characters."""


class Fence(MarkdownFence):
    """A code block. Gets its colours once it grows no more: they are worked out for all its lines."""

    def __init__(self, markdown: Markdown, token: Token, code: str) -> None:
        super().__init__(markdown, token, code)
        if not getattr(markdown, "growing", False):
            self.colour()

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """The code without colours."""
        return Content(code)

    def colour(self) -> None:
        """Colour the code."""
        self._highlighted_code = highlight(self.code, language=self.lexer or "text", theme=CodeColours)
        self.set_content(self._highlighted_code)

    def notify_style_update(self) -> None:
        """Colours are the terminal's own: another theme changes nothing here."""
        MarkdownBlock.notify_style_update(self)


class ReplyMarkdown(Steady, Markdown):
    """The Markdown of a reply. Grows by `write`; `finish` draws it as the whole text is parsed."""

    BLOCKS = {**Markdown.BLOCKS, "fence": Fence, "code_block": Fence}  # noqa: RUF012

    def __init__(self, text: str = "", *, growing: bool = False) -> None:
        super().__init__(text or None, parser_factory=lambda: _PARSER, open_links=False)
        self.growing = growing
        self._stream: MarkdownStream | None = None

    async def write(self, more: str) -> None:
        """Add text at the end."""
        if self._stream is None:
            self._stream = Markdown.get_stream(self)
        await self._stream.write(more)

    async def finish(self, text: str) -> None:
        """The text is whole. What was drawn piece by piece is kept where it comes to the same."""
        self.growing = False
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None
        if text == self.source and self._is_as_parsed(text):
            for fence in self.query(Fence):
                fence.colour()
        else:
            await self.update(text)

    def _is_as_parsed(self, text: str) -> bool:
        """Whether the blocks are those of the whole text; tables are always drawn anew."""
        drawn = [(block.name, block.source_range[0]) for block in self.query_children(MarkdownBlock)]
        tokens = [token for token in _PARSER.parse(text) if token.level == 0 and token.nesting >= 0]
        parsed = [(token.type, token.map[0] if token.map else -1) for token in tokens]
        return drawn == parsed and all(name != "table_open" for name, _ in parsed)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Show where a link leads; opening is the user's business."""
        event.stop()
        where = flat(event.href)
        self.app.copy_to_clipboard(where)
        self.notify(f"copied, not opened: {one_line(where, MOST_OF_LINK)}", markup=False)


class Answer(Vertical):
    """A reply as it grows: a row of Markdown pieces, of which only the last one changes.

    What a change costs follows the length of the last piece, not that of the reply.
    """

    def __init__(self) -> None:
        super().__init__(classes="answer")
        self._before = ""
        self._rest = ""
        self._piece: ReplyMarkdown | None = None

    @property
    def text(self) -> str:
        """All that was written."""
        return self._before + self._rest

    async def write(self, more: str) -> None:
        """Add text at the end."""
        if self._piece is None:
            self._piece = ReplyMarkdown(growing=True)
            await self.mount(self._piece)
        self._rest += more
        await self._piece.write(more)
        if len(self._rest) > PIECE and (cut := last_block(self._rest)):
            done, rest = self._rest[:cut], self._rest[cut:]
            await self._piece.finish(done)
            self._before, self._rest, self._piece = self._before + done, "", None
            await self.write(rest)

    async def finish(self, text: str) -> None:
        """The whole text: where it is what was written, only the last piece is drawn anew."""
        if text != self.text:
            await self.remove_children()
            self._before, self._rest, self._piece = "", text, None
        if self._piece is None:
            self._piece = ReplyMarkdown(text)
            await self.mount(self._piece)
        else:
            self._rest = text[len(self._before) :]
            await self._piece.finish(self._rest)


def last_block(text: str) -> int:
    """Where the last block of a Markdown text begins, in characters; 0 if there is but one."""
    starts = [token.map[0] for token in _PARSER.parse(text) if token.level == 0 and token.map]
    return sum(len(line) + 1 for line in text.split("\n")[: starts[-1]]) if starts else 0


class StillMarkdown(RichMarkdown):
    """Markdown that never changes any more, drawn as one piece."""

    def __init__(self, text: str) -> None:
        super().__init__(text, code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(text)
