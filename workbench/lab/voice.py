"""What a session says and writes down: to its listener, and to its journal."""

import threading
from collections.abc import Callable, Sequence

from workbench.domain.layout import Layout
from workbench.engines.engine import EngineError, LoadCancelled, LoadFailed
from workbench.lab import events
from workbench.store.journal import Journal, JournalError, Record

Listener = Callable[[events.SessionEvent], None]


class Voice:
    """One event at a time, from whatever thread; a journal that fails is said once and given up."""

    def __init__(self, listener: Listener, journal: Journal | None) -> None:
        self._listener = listener
        self._journal = journal
        self._telling = threading.Lock()
        self._told: Exception | None = None
        """The failure that was told last; it may pass by again on its way up."""

    def tell(self, event: events.SessionEvent) -> None:
        """Tell the listener."""
        with self._telling:
            self._listener(event)

    def note(self, record: Record) -> None:
        """Write into the journal."""
        if self._journal is None:
            return
        try:
            self._journal.append(record)
        except JournalError as error:
            self._journal.close()
            self._journal = None
            self.tell(events.Notice(str(error)))

    def complain(self, error: Exception, layout: Layout | None) -> None:
        """Tell of a failure, once; `layout` is what serves all the same, as far as is known of a server.

        A LookupError refuses what was asked for, and a cancelled load was asked for: these are no problems.
        """
        if error is self._told:
            return
        self._told = error
        known = layout is not None and (layout.served_by is None or isinstance(error, LoadFailed))
        serving = layout.label() if layout is not None and known else None
        if isinstance(error, LoadCancelled):
            self.tell(events.Notice("The load was cancelled."))
        elif type(error) is LookupError:
            self.tell(events.Notice(str(error)))
        elif isinstance(error, EngineError):
            self.tell(
                events.Problem(
                    message=error.reason,
                    card=error.card,
                    wanted_mib=error.wanted_mib,
                    free_mib=error.free_mib,
                    serving=serving,
                )
            )
        else:
            self.tell(events.Problem(message=str(error), serving=serving))

    def serves(self, served: events.LayoutLoaded, misplaced: Sequence[str]) -> None:
        """Tell that a layout serves, and what is odd about it."""
        self.tell(served)
        odd = [*misplaced, *served.loaded.warnings]
        if served.loaded.template_is_fallback:
            odd.append(f"The model has no chat template; {served.loaded.template} is used.")
        for sentence in odd:
            self.tell(events.Notice(sentence))

    def close(self) -> None:
        """Let go of the journal."""
        if self._journal is not None:
            self._journal.close()
