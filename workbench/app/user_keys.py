"""The user's own keys: `keymap.yaml` in the configuration folder."""

import re
from collections.abc import Iterator
from pathlib import Path

from textual.binding import Binding
from textual.widgets import TextArea

from workbench.app.keymap import ALONE, KEYS, Key, Keymap, Where, shown
from workbench.domain.faults import Fault, nearest
from workbench.store.config import UserKeys
from workbench.store.documents import DocumentError, is_there, read_document
from workbench.store.places import places

_WRITTEN = {
    "↑": "up", "↓": "down", "←": "left", "→": "right", "]": "right_square_bracket", "[": "left_square_bracket",
    "=": "equals_sign", "esc": "escape",
}  # fmt: skip
_USABLE = re.compile(r"[a-z0-9]|f[1-9]|f10|ctrl\+[a-z]|up|down|left|right")
_SAME = {"ctrl+i": "Tab", "ctrl+m": "Enter", "ctrl+j": "Enter", "ctrl+h": "Backspace"}
"""What a terminal sends for them too."""
RIGHT = "use a letter, a digit, an arrow, F1 to F10, or ctrl with a letter, such as ^b"
_TYPED: tuple[Where, ...] = ("app", "anywhere", "prompt")
_BY_NAME = {key.name: key for key in KEYS}


def read_keymap(path: Path) -> Keymap:
    """The registry with the user's keys; the defaults where there is no file. Raises DocumentError."""
    if not is_there(path):
        return Keymap()
    return Keymap(_own(read_document(path, UserKeys, check_keys)))


def own_keys() -> tuple[Keymap, str]:
    """The key map of this user; the defaults, and what is wrong, where it cannot be used."""
    try:
        return read_keymap(places().keymap), ""
    except DocumentError as error:
        return Keymap(), f"{error}. The default keys are used meanwhile."


def check_keys(document: UserKeys) -> list[Fault]:
    """Every action that is none, key that cannot be used, and key that is taken."""
    faults = [fault for name, given in document.keys.items() for fault in _check(name, given)]
    return faults or list(_clashes(_own(document)))


def _own(document: UserKeys) -> dict[str, str]:
    return {name: ",".join(_normal(key) for key in _listed(given)) for name, given in document.keys.items()}


def _listed(given: object) -> list[object]:
    return given if isinstance(given, list) else [given]


def _normal(key: object) -> str:
    """As Textual names it: `^b` becomes `ctrl+b`."""
    text = str(key).strip()
    low = text.lower()
    if re.fullmatch(r"\^[a-z]", low):
        return f"ctrl+{low[1]}"
    return _WRITTEN.get(low, low)


def _check(name: str, given: object) -> Iterator[Fault]:
    where = f"keys.{name}"
    action = _BY_NAME.get(name)
    if action is None:
        yield Fault(where, f"is no action{nearest(name, _BY_NAME) or '; `workbench keys` lists them'}")
        return
    if action.fixed:
        yield Fault(where, f"cannot have another key than {shown(action)}")
        return
    if given is None or given == []:
        yield Fault(where, f"has no key; {RIGHT}")
    for key in _listed(given):
        normal = _normal(key)
        if isinstance(key, bool | float | dict | list) or not (
            _USABLE.fullmatch(normal) or normal in action.keys.split(",")
        ):
            yield Fault(where, f"`{key}` is no key that every terminal sends; {RIGHT}")
        elif normal in _SAME and normal not in action.keys.split(","):
            yield Fault(where, f"terminals send {_SAME[normal]} for `{key}`; {RIGHT}")
        elif normal not in action.keys.split(",") and action.where in _TYPED and _is_typed(normal):
            yield Fault(where, f"`{key}` is typed into the prompt; use F1 to F10, or ctrl with a letter, such as ^b")


def _is_typed(key: str) -> bool:
    """Whether the prompt takes it as text, or to move in it."""
    return len(key) == 1 or key in _WRITTEN.values()


def _clashes(own: dict[str, str]) -> Iterator[Fault]:
    """Keys that two actions have where both can be taken, or that the prompt edits with."""
    keys = Keymap(own).keys
    for name, given in own.items():
        mine = _BY_NAME[name]
        for key in given.split(","):
            other = next((o for o in keys if o.name != name and key in o.keys.split(",") and _meet(mine, o, own)), None)
            if other is not None:
                yield Fault(f"keys.{name}", f"{_said(key)} is the key of {other.name} ({other.what}); give one another")
            elif mine.where in ("app", "anywhere") and key in _edits() and key not in mine.keys.split(","):
                yield Fault(f"keys.{name}", f"{_said(key)} edits the prompt ({_edits()[key]}); give another")


def _meet(mine: Key, other: Key, own: dict[str, str]) -> bool:
    """Whether both could be meant; a pane's key that hides one from everywhere is so by default only."""
    if mine.where == other.where or "app" in (mine.where, other.where):
        return True
    if mine.where in ALONE or other.where in ALONE:
        return "dialog" in (mine.where, other.where)
    return "anywhere" in (mine.where, other.where)


def _said(key: str) -> str:
    return shown(Key(key, "", ""))


def _edits() -> dict[str, str]:
    """The keys that the prompt edits with, and for what."""
    return {
        key: binding.description.lower()
        for binding in TextArea.BINDINGS
        if isinstance(binding, Binding)
        for key in binding.key.split(",")
    }
