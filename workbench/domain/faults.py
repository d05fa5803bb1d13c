"""What is wrong with a document's value, and the words that say so."""

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class Fault(NamedTuple):
    """Something wrong with the value at `key` (`split.layers[1]`): what it is, and what would be right."""

    key: str
    message: str


def nearest(word: str, words: Iterable[str]) -> str:
    """`, did you mean X?` for the word nearest to a mistyped one; empty if none is near."""
    near = nearest_word(word, words)
    return "" if near is None else f", did you mean `{near}`?"


def nearest_word(word: str, words: Iterable[str]) -> str | None:
    """The word nearest to a mistyped one; None if none is near."""
    by_lower = {candidate.lower(): candidate for candidate in words}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def is_unprintable(text: str) -> bool:
    """Whether the text holds a control character, a line end, or bytes that are not UTF-8."""
    return any(ord(char) < 32 or 127 <= ord(char) < 160 or 0xD800 <= ord(char) < 0xE000 for char in text)
