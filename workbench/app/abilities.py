"""What the terminal can do, as far as its surroundings tell, and what the user said about it.

`WORKBENCH_ASCII`, `WORKBENCH_SLOW` and `WORKBENCH_MOUSE`, each 0 or 1, have the last word.
"""

import codecs
from collections.abc import Mapping

SLOW_LINK = {
    "TEXTUAL_FPS": "15",
    "TEXTUAL_ANIMATIONS": "none",
    "TEXTUAL_SMOOTH_SCROLL": "0",
}
"""What Textual reads when it is imported, for a terminal at the far end of a connection."""
OLD = ("vt52", "vt100", "vt102", "vt220", "vt320", "vt420")
"""Terminals of one colour whose characters are few, which is what a serial console calls itself."""


def encoding(env: Mapping[str, str]) -> str:
    """What the terminal's bytes mean by the locale; ascii for C, POSIX and what nobody knows."""
    name = _locale(env)
    if not name:
        return "utf-8"
    try:
        return codecs.lookup(name.partition("@")[0].rpartition(".")[2]).name
    except LookupError:
        return "ascii"


def ascii_only(env: Mapping[str, str]) -> bool:
    """Whether frames, bars and arrows are to be drawn with letters, digits and their like."""
    said = _said(env, "WORKBENCH_ASCII")
    return said if said is not None else encoding(env) != "utf-8" or env.get("TERM") in ("linux", *OLD)


def slow(env: Mapping[str, str]) -> bool:
    """Whether the terminal is at the far end of a connection."""
    said = _said(env, "WORKBENCH_SLOW")
    return said if said is not None else "SSH_CONNECTION" in env or "SSH_TTY" in env


def mouse(env: Mapping[str, str]) -> bool:
    """Whether the mouse is workbench's; if not, it selects text as everywhere in the terminal."""
    return _said(env, "WORKBENCH_MOUSE") is not False


def textual_defaults(env: Mapping[str, str]) -> dict[str, str]:
    """The variables for Textual that fit this terminal; what the user has set goes before them."""
    found: dict[str, str] = {}
    if slow(env):
        found |= SLOW_LINK
        if env.get("COLORTERM") in ("truecolor", "24bit"):
            found["TEXTUAL_COLOR_SYSTEM"] = "256"
    if env.get("TERM") in OLD:
        found["NO_COLOR"] = "1"
    return found


def _said(env: Mapping[str, str], name: str) -> bool | None:
    return {"0": False, "1": True}.get(env.get(name, ""))


def _locale(env: Mapping[str, str]) -> str:
    """The locale of characters; "" if none is set. Python itself says C.UTF-8 where it was C."""
    own = env.get("LC_CTYPE")
    if not env.get("LC_ALL") and own == "C.UTF-8" and env.get("LANG") in ("C", "POSIX"):
        return env["LANG"]
    return env.get("LC_ALL") or own or env.get("LANG") or ""
