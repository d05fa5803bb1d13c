"""From the session's threads to the app: in order, and no message a token."""

from collections.abc import Callable
from threading import Lock

from workbench.lab.events import SessionEvent, TurnText


class Inbox:
    """Takes events on any thread; `wake` is called when something other than text has come.

    Text waits until it is fetched: whoever draws it sets the pace.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._lock = Lock()
        self._events: list[SessionEvent] = []
        self._texts: list[str] = []
        self._woken = False

    def __call__(self, event: SessionEvent) -> None:
        """Take one event."""
        with self._lock:
            if isinstance(event, TurnText):
                self._texts.append(event.text)
                return
            self._join()
            self._events.append(event)
            wake, self._woken = not self._woken, True
        if wake:
            self._wake()

    def fetch(self) -> tuple[SessionEvent, ...]:
        """All that has come since the last time."""
        with self._lock:
            self._join()
            events, self._events, self._woken = tuple(self._events), [], False
        return events

    def _join(self) -> None:
        if self._texts:
            self._events.append(TurnText("".join(self._texts)))
            self._texts = []
