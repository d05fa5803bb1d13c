"""Where a conversation's state is while it goes from one engine to another."""

import contextlib
import os
import tempfile
from pathlib import Path

import psutil

from workbench.domain.memory import CardMemory
from workbench.engines.engine import Loaded
from workbench.store.places import places, private_folder

NAME = "workbench-state"
SHARE_OF_FREE = 0.5
"""Of the host's free memory; more goes to the runtime folder."""
MARGIN = 1.02


class Aside:
    """A file without a name, which engines reach through this process and which ends with it.

    It is in memory where there is room for `size` bytes, which are set aside at once: that takes
    as long as copying them, and is better done while an engine still answers. Raises OSError.
    """

    def __init__(self, size: int = 0) -> None:
        self.in_memory = size <= SHARE_OF_FREE * psutil.virtual_memory().available
        self._fd = os.memfd_create(NAME) if self.in_memory else _on_disk()
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._fd}")
        if size:
            with contextlib.suppress(OSError):  # whoever writes will say so
                os.posix_fallocate(self._fd, 0, size)

    def close(self) -> None:
        """Let go of what is in it."""
        os.close(self._fd)


def size_of_state(loaded: Loaded, tokens: int) -> int:
    """About how many bytes the state of so many tokens takes, rather more; 0 if unknown."""
    memories: tuple[CardMemory, ...] = (*loaded.cards, loaded.host)
    whole = sum(memory.kv_mib for memory in memories) * 2**20
    return int(whole * min(1.0, tokens / loaded.n_ctx) * MARGIN) if loaded.n_ctx else 0


def _on_disk() -> int:
    fd, name = tempfile.mkstemp(prefix="state-", dir=private_folder(places().runtime))
    os.unlink(name)
    return fd
