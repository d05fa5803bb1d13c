"""Text in the cells of the screen, and which of a reply is thinking."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len, set_cell_size

from workbench.domain.text import flat

_TAG = re.compile(r"<(/?)think(?:ing)?>\n*")
_TAGS = ("<think>", "</think>", "<thinking>", "</thinking>")


def one_line(text: str, width: int) -> str:
    """The start of a text on one line of at most `width` cells."""
    text = flat(text)
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def column(text: str, width: int) -> str:
    """The same, filled up with blanks to the width."""
    text = one_line(text, width)
    return text + " " * (width - cell_len(text))


def shorter(path: Path) -> str:
    """A path with the home folder as `~`."""
    home = os.path.expanduser("~")
    text = str(path)
    return f"~{text[len(home):]}" if text.startswith(f"{home}/") else text


def parts(reply: str, *, finished: bool) -> list[tuple[bool, str]]:
    """A reply as (is thinking, text) parts, in order, empty ones left out.

    A `</think>` without its beginning ends thinking that began with the reply: some templates
    open it in the prompt. While the reply is not `finished`, a tag that may still be
    incomplete at its end is held back.
    """
    if not finished:
        reply = _without_partial_tag(reply)
    out: list[tuple[bool, str]] = []
    thinking, at = False, 0
    for tag in _TAG.finditer(reply):
        closes = bool(tag[1])
        if closes and not thinking and out and not out[-1][0]:
            continue
        out.append((thinking or closes, reply[at : tag.start()]))
        thinking, at = not closes, tag.end()
    out.append((thinking, reply[at:]))
    return [(is_thinking, text) for is_thinking, text in out if text.strip()]


def _without_partial_tag(text: str) -> str:
    start = text.rfind("<", max(0, len(text) - max(map(len, _TAGS))))
    if start >= 0 and any(tag.startswith(text[start:]) for tag in _TAGS):
        return text[:start]
    return text


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The last `width` percentages as bars of eighths; a space where nothing is known."""
    bars = "▁▂▃▄▅▆▇█"
    tail = list(values)[-width:]
    text = "".join(" " if value is None else bars[min(7, max(0, int(value / 100 * 8)))] for value in tail)
    return text.rjust(width)
