"""How far past loads on this machine were from their forecasts: JSON lines in the state folder."""

import contextlib
import os
import time
from pathlib import Path

import msgspec

from workbench.domain.decoding import decoded
from workbench.domain.split import SplitMode
from workbench.store.writing import write_atomically

KEEP = 400
"""Lines that stay when the file is cut."""
LONG = 2 * KEEP
RECENT = 9
"""Past loads of a card and mode that count."""


class LoadError(msgspec.Struct, frozen=True, kw_only=True):
    """One card of one load: what it took beyond the engine's figures as forecast, in MiB.

    `card` is a UUID, or what else tells the card; `at` is in seconds since 1970.
    """

    card: str
    mode: SplitMode
    error_mib: float
    at: float


_decoder = msgspec.json.Decoder(LoadError)


class LoadErrors:
    """The file; a line that cannot be read is passed over, and so is a folder that cannot be written."""

    def __init__(self, state: Path) -> None:
        self._path = state / "load-errors.jsonl"

    def add(self, errors_mib: dict[str, float], mode: SplitMode) -> None:
        """Note a load: the error of each card."""
        now = time.time()
        lines = b"".join(
            msgspec.json.encode(LoadError(card=card, mode=mode, error_mib=round(error, 2), at=now)) + b"\n"
            for card, error in errors_mib.items()
        )
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(handle, lines)
            finally:
                os.close(handle)
            self._cut()

    def of(self, card: str, mode: SplitMode) -> list[float]:
        """The errors of the last loads of this card in this mode, in MiB."""
        found = [error.error_mib for error in self._read() if error.card == card and error.mode == mode]
        return found[-RECENT:]

    def _read(self) -> list[LoadError]:
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        out = []
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):
                out.append(decoded(_decoder, line))
        return out

    def _cut(self) -> None:
        errors = self._read()
        if len(errors) > LONG:
            lines = b"".join(msgspec.json.encode(error) + b"\n" for error in errors[-KEEP:])
            write_atomically(self._path, lines, overwrite=True)
