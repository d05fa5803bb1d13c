"""What the screen was like when it was left: one JSON file in the state folder."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from workbench.domain.decoding import decoded
from workbench.store.appending import read_plain
from workbench.store.writing import write_atomically

VERSION = 1
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""By version: what makes of a file of that version one of the next. Keys that are new need none."""


class ScreenState(msgspec.Struct, frozen=True, kw_only=True):
    """Left out is whatever the user has not chosen. `unsent` is what the prompt held.

    `compact` is whether cards take one line each, None by the room there is; `told` are the hints
    that were shown.
    """

    version: int = VERSION
    theme: str | None = None
    compact: bool | None = None
    meters_off: bool = False
    unsent: str = ""
    told: tuple[str, ...] = ()


_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def read_screen_state(path: Path) -> tuple[ScreenState, str | None]:
    """The state, and what to tell where it could not be used; such a file is kept beside, never lost."""
    try:
        data = read_plain(path)
    except FileNotFoundError:
        return ScreenState(), None
    except OSError as error:
        return ScreenState(), f"{path} cannot be read: {error.strerror}; the screen starts as it is at first"
    try:
        raw = decoded(_any, data)
        version = raw["version"]
        if type(version) is not int or version < 0:
            raise ValueError(version)
    except (msgspec.DecodeError, ValueError, KeyError, TypeError):
        return ScreenState(), _keep(path, "damaged", "is damaged")
    if version > VERSION:
        return ScreenState(), _keep(path, f"v{version}", f"was written by a newer workbench (version {version})")
    try:
        while version < VERSION:
            raw = UPGRADES[version](raw) if version in UPGRADES else raw
            version += 1
        return msgspec.convert(raw | {"version": VERSION}, ScreenState), None
    except (msgspec.ValidationError, KeyError, TypeError, ValueError):
        return ScreenState(), _keep(path, "damaged", "is damaged")


def write_screen_state(path: Path, state: ScreenState) -> str | None:
    """Write it for this user alone; what to tell where it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, msgspec.json.encode(state), overwrite=True, mode=0o600)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}; the screen will start as it is at first"
    return None


def _keep(path: Path, end: str, why: str) -> str:
    """Put it beside under a name that is free."""
    number, beside = 1, path.with_name(f"{path.stem}.{end}{path.suffix}")
    while beside.exists():
        number += 1
        beside = path.with_name(f"{path.stem}.{end}-{number}{path.suffix}")
    with contextlib.suppress(OSError):
        path.rename(beside)
        return f"{path} {why}; it is kept as {beside.name}, and the screen starts as it is at first"
    return f"{path} {why}; the screen starts as it is at first"
