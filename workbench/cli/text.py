"""Text for people: columns and figures; and for programs: JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.cells import cell_len

from workbench.domain.text import escaped_json, flat

UNKNOWN = "–"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side, two spaces apart; the first row is the head."""
    cells = [[flat(cell) for cell in row] for row in rows]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(rows[0]))]
    return "\n".join(in_columns(row, widths) for row in cells)


def in_columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table whose columns are so many cells wide."""
    padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()


def json_text(value: Any, *, one_line: bool = False) -> str:
    """The value as JSON in which nothing but text stands unescaped."""
    encoded = msgspec.json.encode(value)
    return escaped_json((encoded if one_line else msgspec.json.format(encoded, indent=2)).decode())


def rate(tok_s: float | None) -> str:
    """Tokens per second: `57.0`."""
    return UNKNOWN if tok_s is None else f"{tok_s:.1f}"
