"""Text for people: columns and figures."""

from collections.abc import Sequence

UNKNOWN = "–"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side, two spaces apart; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def rate(tok_s: float | None) -> str:
    """Tokens per second: `57.0`."""
    return UNKNOWN if tok_s is None else f"{tok_s:.1f}"
