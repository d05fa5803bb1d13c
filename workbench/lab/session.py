"""One live engine with its layout and conversation."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from workbench.domain.conversation import Conversation, Sampling, Turn
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split
from workbench.engines.engine import Loaded
from workbench.lab.events import Measurement, SessionEvent


class Session:
    """Load, chat, re-split, go back. Each call queues a job and returns its future at once.

    The listener is called from the session's threads, one event at a time, in order.
    """

    layout: Layout | None
    loaded: Loaded | None
    conversation: Conversation
    history: tuple[Measurement, ...]

    def __init__(self, listener: Callable[[SessionEvent], None]) -> None:
        raise NotImplementedError

    def load(self, layout: Layout) -> Future[Loaded]: ...
    def send(self, prompt: str, sampling: Sampling | None = None) -> Future[Turn]: ...
    def resend(self, index: int, prompt: str) -> Future[Turn]: ...
    def resplit(self, split: Split) -> Future[Loaded]: ...
    def set_context(self, context: Context) -> Future[Loaded]: ...
    def go_back(self) -> Future[Loaded]: ...
    def cancel(self) -> None: ...
    def clear(self) -> None: ...
    def drop_oldest(self, count: int = 1) -> None: ...
    def save_as(self, name: str) -> Path: ...
    def close(self) -> None: ...
