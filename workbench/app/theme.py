"""Colours: the terminal's own sixteen, so that light and dark terminals both stay themselves."""

import functools
import os
from collections.abc import Callable

from pygments.token import Token
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import NoColor
from textual.highlight import HighlightTheme, TokenType
from textual.theme import Theme

_GREY = "ansi_bright_black"
_REVERSE = Style(reverse=True)

_VARIABLES = {
    "text-muted": _GREY,
    "text-disabled": _GREY,
    "foreground-muted": _GREY,
    "border": "ansi_blue",
    "border-blurred": _GREY,
    "scrollbar": _GREY,
    "scrollbar-hover": "ansi_blue",
    "scrollbar-active": "ansi_blue",
    "scrollbar-background": "ansi_default",
    "scrollbar-background-hover": "ansi_default",
    "scrollbar-background-active": "ansi_default",
    "scrollbar-corner-color": "ansi_default",
    "block-cursor-foreground": "ansi_bright_white",
    "block-cursor-background": "ansi_blue",
    "block-cursor-text-style": "bold",
    "block-cursor-blurred-foreground": "ansi_default",
    "block-cursor-blurred-background": "ansi_default",
    "block-hover-background": "ansi_default",
    "markdown-h1-color": "ansi_blue",
    "markdown-h1-text-style": "bold underline",
    "markdown-h2-color": "ansi_blue",
    "markdown-h2-text-style": "bold",
    "markdown-h3-color": "ansi_default",
    "markdown-h3-text-style": "bold",
    "input-cursor-text-style": "reverse",
    "ansi-background": _GREY,
}


def _theme(name: str, dark: bool) -> Theme:
    plain = "ansi_default"
    return Theme(
        name=name,
        ansi=True,
        dark=dark,
        primary="ansi_blue",
        secondary="ansi_cyan",
        accent="ansi_magenta",
        warning="ansi_yellow" if dark else "ansi_magenta",
        error="ansi_red",
        success="ansi_green",
        foreground=plain,
        background=plain,
        surface=plain,
        panel=plain,
        boost=plain,
        variables=_VARIABLES,
    )


THEMES = (_theme("terminal-dark", True), _theme("terminal-light", False))


class NoColours(NoColor):
    """Takes all colours away; the row that only the `cursor`'s background marks is reversed instead.

    `cursor` tells that background as themes write it.
    """

    def __init__(self, cursor: Callable[[], str]) -> None:
        super().__init__()
        self._cursor = cursor

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same text without colours."""
        cursor = _as_drawn(self._cursor())
        marked = [
            Segment(text, style + _REVERSE, control) if style is not None and style.bgcolor == cursor
            else Segment(text, style, control)
            for text, style, control in segments
        ]  # fmt: skip
        return super().apply(marked, background)


@functools.lru_cache
def _as_drawn(colour: str) -> RichColor:
    return Color.parse(colour).rich_color


def default_theme() -> str:
    """The theme for this terminal: what the user set, else by the background that COLORFGBG tells."""
    asked = os.environ.get("TEXTUAL_THEME")
    if asked:
        return asked
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return "terminal-light" if background in ("7", "15") else "terminal-dark"


class CodeColours(HighlightTheme):
    """Code in the terminal's colours, legible on light and dark."""

    STYLES: dict[TokenType, str] = {  # noqa: RUF012
        Token.Comment: "italic ansi_bright_black",
        Token.Keyword: "bold ansi_blue",
        Token.Operator.Word: "bold ansi_blue",
        Token.Literal.Number: "ansi_magenta",
        Token.Literal.String: "ansi_green",
        Token.Name.Builtin: "ansi_cyan",
        Token.Name.Class: "bold",
        Token.Name.Decorator: "ansi_cyan",
        Token.Name.Function: "bold",
        Token.Name.Tag: "ansi_blue",
        Token.Generic.Deleted: "ansi_red",
        Token.Generic.Inserted: "ansi_green",
        Token.Generic.Heading: "bold",
    }
