"""Text from outside, made fit to be shown: what a model says, names of files and processes, a server's words.

It can neither steer the terminal nor turn or blur what stands beside it. Letters of all scripts
stay, with the joiners and marks that they need.
"""

import re

LONGEST = 2000
"""A message of one line is cut beyond so many characters."""
_STEERING = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, all but newline and tab
    "\u202a-\u202e\u2066-\u2069"  # overrides of the direction
    "\xad\u115f\u1160\u180e\u200b\u2060-\u2064\u206a-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"  # unseen, of doubtful width
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_GONE = re.compile(f"[{_STEERING}]")
_IN_JSON = re.compile(f"[{_STEERING}\u2028\u2029]")
_LINES = re.compile("\r\n|[\u2028\u2029]")
_HALF = re.compile("[\ud800-\udfff]")
_MARK = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff"
    "\ufe00-\ufe0f\ufe20-\ufe2f"
)
_TOWER = re.compile(f"([{_MARK}]{{4}})[{_MARK}]+")
_LOOSE = re.compile(f"^[{_MARK}\u200c\u200d]+", re.MULTILINE)
"""Marks without a letter would go onto whatever stands to the left."""


def clean(text: str) -> str:
    """The text without what could steer a terminal; newlines and tabs stay, half a character becomes `�`."""
    if text.isprintable() and text.isascii():
        return text
    text = tame(text)
    return text if text.isascii() else _LOOSE.sub("", _TOWER.sub(r"\1", text))


def tame(text: str) -> str:
    """The same for a piece of a text, whose first marks may belong to the piece before."""
    return _HALF.sub("\ufffd", _GONE.sub("", _LINES.sub("\n", text)))


def flat(text: str) -> str:
    """The same on one line: what divides lines and words becomes one space."""
    return " ".join(clean(text).split())


def visible(text: str) -> str:
    """A message on one line, in which what cannot be shown stands as its escape, cut where it has no end."""
    text = text[: LONGEST + 1]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def escaped_json(json: str) -> str:
    """The same JSON, with all that a terminal could take for more than text written as `\\u…`."""
    return _IN_JSON.sub(_unit, json)


def _unit(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
