"""The engine whose call runs now, which a cancel goes to."""

from collections.abc import Callable
from typing import TypeVar

from workbench.engines.engine import Engine

T = TypeVar("T")


class Acting:
    """Knows which engine acts; `cancel` comes from any thread."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def call(self, engine: Engine, call: Callable[[], T]) -> T:
        """What the engine's call returns."""
        self._engine = engine
        try:
            return call()
        finally:
            self._engine = None

    def cancel(self) -> bool:
        """Stop the call that runs, if one does; whether one did."""
        engine = self._engine
        if engine is not None:
            engine.cancel()
        return engine is not None
