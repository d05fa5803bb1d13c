"""What the screen remembers from one start to the next, and the hints that a newcomer gets once."""

from pathlib import Path
from typing import Any

import msgspec

from workbench.store.screen_state import ScreenState, read_screen_state, write_screen_state

HINT_S = 15.0
"""A hint goes away by itself; F8 has it."""
HINTS = {
    "reply": "{command_palette} searches all that can be done, {help} tells the keys of this pane.",
    "split": "A draft: nothing changes until {split_apply}, and Esc takes it back.",
    "change": "One load each is no verdict: {compare} measures both splits in an A/B.",
}
"""By what has just happened for the first time; keys by the names of their actions."""


class Memory:
    """The state at `path`, written at each change; without a path nothing is kept and no hint is due.

    `trouble` says what became of a file that could not be used.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.state, self.trouble = (ScreenState(), None) if path is None else read_screen_state(path)

    def keep(self, **choice: Any) -> str | None:
        """Remember a choice; what to tell where it cannot be kept."""
        changed = msgspec.structs.replace(self.state, **choice)
        if changed == self.state:
            return None
        self.state = changed
        return None if self._path is None else write_screen_state(self._path, changed)

    def due(self, hint: str) -> bool:
        """Whether this hint was never shown."""
        return self._path is not None and hint not in self.state.told

    def shown(self, hint: str) -> None:
        """It was shown, and will not be again."""
        self.keep(told=(*self.state.told, hint))
