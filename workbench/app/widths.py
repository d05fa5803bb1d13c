"""Emoji of which terminals do not agree how wide they are, drawn so that every terminal agrees."""

import re

from rich.cells import split_graphemes
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_DOUBTFUL = re.compile("[\u200d\ufe0f\u20e3\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]")
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)


class SureWidths(LineFilter):
    """A joined, coloured or emphasised emoji is drawn as its first sign, a flag as its two letters.

    What is kept, copied and saved of a text is the text as it is.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments, each as wide as it was."""
        return [
            Segment(_sure(segment.text), segment.style)
            if not segment.control and not segment.text.isascii() and _DOUBTFUL.search(segment.text)
            else segment
            for segment in segments
        ]


def _sure(text: str) -> str:
    return "".join(_sign(text[start:end], width) for start, end, width in split_graphemes(text)[0])


def _sign(grapheme: str, width: int) -> str:
    """One sign as wide as is counted on; letters that are joined stay as they are written."""
    first = ord(grapheme[0])
    if not _DOUBTFUL.search(grapheme) or grapheme[0].isalpha():
        return grapheme
    if first in _FLAG_LETTERS:
        letters = [chr(ord("A") + ord(char) - _FLAG_LETTERS[0]) for char in grapheme if ord(char) in _FLAG_LETTERS]
        return "".join(letters).ljust(width)[:width]
    return grapheme[0] + " " * (width - split_graphemes(grapheme[0])[1])
