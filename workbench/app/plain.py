"""The screen without line drawing: what is no ASCII is drawn with what looks most like it, cell for cell."""

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_LOOKS = dict(
    zip(
        "←→↑↓‹›«»▸▾▼▲×–—−…✗✓●•◦·°µ≈±’‘′“”▁▂▃▄▅▆▇█▓▒░▞▔\xa0",
        "<>^v<><>>vv^x---~!+**-.Cu~+'''\"\"_.-=+*%#%+:@- ",
        strict=True,
    )
)
_ACROSS = "─━═╌╍┄┅┈┉╴╶╸╺╼╾"
_DOWN = "│┃║╎╏┆┇┊┋╵╷╹╻╽╿"


class Plain(LineFilter):
    """Draws with ASCII. Letters stay if the terminal's `encoding` has them; each cell of others is a `?`."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._table = _Table(encoding)

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments, each as wide as it was."""
        return [
            segment if segment.control or segment.text.isascii() else self._plain(segment) for segment in segments
        ]

    def _plain(self, segment: Segment) -> Segment:
        # Several characters may share two cells.
        return Segment(set_cell_size(segment.text.translate(self._table), segment.cell_length), segment.style)


class _Table(dict[int, str]):
    """What stands for a character, by its code point."""

    def __init__(self, encoding: str) -> None:
        super().__init__({ord(char): looks for char, looks in _LOOKS.items()} | {ord("🔎"): "> "})
        self._encoding = encoding

    def __missing__(self, code: int) -> str:
        self[code] = found = self._find(chr(code))
        return found

    def _find(self, char: str) -> str:
        if "\u2500" <= char <= "\u257f":
            return "-" if char in _ACROSS else "|" if char in _DOWN else "+"
        if "\u2580" <= char <= "\u259f":
            return "|" if char in "▌▍▎▏▐▕" else "#"
        if "\u2800" <= char <= "\u28ff":  # a raster of up to eight dots
            return " .::++**#"[(ord(char) - 0x2800).bit_count()]
        if "\u2190" <= char <= "\u21ff" or "\u25a0" <= char <= "\u25ff":
            return "*"
        if char >= "\U0001f000":  # pictures
            return "?" * cell_len(char)
        try:
            char.encode(self._encoding)
        except UnicodeEncodeError:
            return "?" * cell_len(char)
        return char
