"""With what the screens measure: kits for runs, and the one run that is on."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from workbench.domain.layout import Layout
from workbench.domain.prompts import PromptSet
from workbench.domain.samples import Method
from workbench.lab.ab import Experiment, Listener, meter_reader
from workbench.lab.kit import Kit, RealKit
from workbench.lab.provenance import Describe, describe
from workbench.lab.replay import ReaderFor


def real() -> tuple[Kit, ReaderFor]:
    """Real engines and meters."""
    kit = RealKit(spare=False)
    return kit, meter_reader(kit)


class Bench:
    """Begins runs, and ends the one that is on when the screen ends. Calls block; make them in threads."""

    def __init__(
        self, make: Callable[[], tuple[Kit, ReaderFor]] = real, describe: Describe = describe
    ) -> None:
        self._make = make
        self._describe = describe
        self._lock = threading.Lock()
        self._made: tuple[Kit, ReaderFor] | None = None
        self._running: Experiment | None = None
        self._closed = False

    def begin(
        self, layouts: Sequence[Layout], prompts: PromptSet, listener: Listener, *, method: Method, blocks: int
    ) -> Experiment:
        """A new run, not started yet. Raises PromptDoesNotFit, RunError."""
        kit, read = self._tools()
        return Experiment.begin(
            kit, layouts, prompts, listener, read, method=method, blocks=blocks, describe=self._describe
        )

    def resume(self, folder: Path, listener: Listener, *, more_blocks: int = 0) -> Experiment:
        """A run to go on with, not started yet. Raises RunError."""
        kit, read = self._tools()
        return Experiment.resume(kit, folder, listener, read, more_blocks=more_blocks, describe=self._describe)

    def start(self, experiment: Experiment) -> None:
        """Start it, unless the screen has ended."""
        with self._lock:
            if not self._closed:
                self._running = experiment
                experiment.start()

    def close(self) -> None:
        """Stop the run that is on; every engine is gone when this returns."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
            made, self._made = self._made, None
        if running is not None:
            running.cancel()
            running.join()
        if made is not None:
            made[0].close()

    def _tools(self) -> tuple[Kit, ReaderFor]:
        with self._lock:
            self._made = self._made or self._make()
            return self._made
