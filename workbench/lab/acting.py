"""The engine whose call runs now, which a cancel goes to."""

import time
from collections.abc import Callable
from typing import TypeVar

from workbench.engines.engine import Engine, EngineError

T = TypeVar("T")
AGAIN_S = 0.02
"""A call that was cancelled before it had begun is cancelled again after this."""


class Acting:
    """Knows which engine acts; `cancel` comes from any thread. `cancelled` says whether it was of the last call."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._over = False
        self.cancelled = False

    def call(self, engine: Engine, call: Callable[[], T]) -> T:
        """What the engine's call returns. Raises EngineError once this has ended."""
        self._engine, self.cancelled = engine, False
        try:
            if self._over:
                raise EngineError("the engine is being closed")
            return call()
        finally:
            self._engine = None

    def cancel(self) -> bool:
        """Stop the call that runs, if one does; whether one did."""
        engine = self._engine
        if engine is not None:
            self.cancelled = True
            engine.cancel()
        return engine is not None

    def end(self) -> None:
        """Stop the call that runs, also one that is only just beginning, and let none follow."""
        self._over = True
        while self.cancel():
            time.sleep(AGAIN_S)
