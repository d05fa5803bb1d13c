"""An A/B while it runs: the session steps aside, samples arrive, and it comes back when this is left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from rich.cells import cell_len
from textual import on, work
from textual.content import Content
from textual.message import Message

from workbench.app import ab_draw
from workbench.app.ab_bench import Bench
from workbench.app.screens.run_detail import ResultScreen
from workbench.app.text import one_line
from workbench.domain.duration import in_words
from workbench.domain.layout import Layout
from workbench.domain.outcome import Outcome
from workbench.domain.prompts import PromptSet
from workbench.domain.run import Run
from workbench.domain.samples import Method
from workbench.domain.text import clean
from workbench.lab.ab import Experiment, Listener, PromptDoesNotFit
from workbench.lab.progress import (
    BlockDone,
    LoadBegan,
    LoadEnded,
    LoadMoved,
    RunBegan,
    RunBroke,
    RunEnded,
    RunEvent,
    SampleTaken,
)
from workbench.lab.session import Session
from workbench.store.models import ModelError
from workbench.store.runs import RunError

Make = Callable[[Listener], Experiment]


@dataclass(frozen=True)
class Plan:
    """What is to be measured: one layout, or two against each other."""

    layouts: Sequence[Layout]
    prompts: PromptSet
    method: Method
    blocks: int


@dataclass
class RunSpoke(Message):
    """The run told something."""

    event: RunEvent

    def can_replace(self, message: Message) -> bool:
        """Of a load's progress the newest is enough."""
        later = message.event if isinstance(message, RunSpoke) else None
        return isinstance(self.event, LoadMoved) and isinstance(later, LoadMoved)


@dataclass
class RunRefused(Message):
    """The run cannot begin."""

    why: str


class ABScreen(ResultScreen):
    """Runs a plan, or shows a run that is there and goes on with it."""

    def __init__(
        self,
        bench: Bench,
        session: Session,
        *,
        plan: Plan | None = None,
        run: Run | None = None,
        outcome: Outcome | None = None,
        folder: Path | None = None,
    ) -> None:
        super().__init__(run, outcome, folder)
        self._bench = bench
        self._session = session
        self._plan = plan
        self._experiment: Experiment | None = None
        self._busy = False
        self._stop = Event()
        self.parked = False
        self._doing = ""
        self._fraction: float | None = None
        self._left_s: float | None = None

    @property
    def running(self) -> bool:
        """See `ResultScreen`."""
        return self._busy

    def on_mount(self) -> None:
        """Begin what was planned."""
        plan = self._plan
        if plan is not None:
            self._begin(
                lambda listener: self._bench.begin(
                    plan.layouts, plan.prompts, listener, method=plan.method, blocks=plan.blocks
                )
            )
        super().on_mount()

    def _begin(self, make: Make) -> None:
        self._busy = True
        self._stop.clear()
        self._left_s, self._fraction = None, None
        self.message = "" if self.run is not None else (
            "The session steps aside: its cards are freed, and it comes back afterwards with the conversation."
        )
        self._doing = "the session steps aside"
        self._launch(make)
        self.draw()

    @work(thread=True)
    def _launch(self, make: Make) -> None:
        """Park the session, prepare the run, start it."""
        try:
            if not self.parked:
                self.parked = True
                self._session.park().result()
            if self._stop.is_set():
                self.post_message(RunRefused("Stopped before the first load."))
                return
            self._experiment = experiment = make(lambda event: self._hear(event))
        except (PromptDoesNotFit, RunError, ModelError) as error:
            self.post_message(RunRefused(str(error)))
            return
        self._bench.start(experiment)
        if self._stop.is_set():
            experiment.cancel()

    def _hear(self, event: RunEvent) -> None:
        self.post_message(RunSpoke(event))

    @on(RunRefused)
    def _refused(self, event: RunRefused) -> None:
        self._busy = False
        self.message = f"Not measured: {event.why}"
        self.draw()

    @on(RunSpoke)
    def _spoke(self, message: RunSpoke) -> None:
        event, experiment = message.event, self._experiment
        if experiment is None:
            return
        self.run, self.folder = experiment.run, experiment.folder
        match event:
            case RunBegan():
                self.message = ""
                self._doing = "begins"
            case LoadBegan(arm=arm, split=split):
                self._doing, self._fraction = f"loading {self._called(arm)}{split}", 0.0
            case LoadMoved(fraction=fraction):
                self._fraction = fraction
            case LoadEnded(load):
                who = f"{self._called(load.arm)}{load.split}"
                self._doing = f"{who} does not load" if load.error else f"measuring {who}"
                self._fraction = None
            case SampleTaken(left_s=left_s):
                self._left_s = left_s
            case BlockDone(outcome=outcome):
                self.outcome = outcome
            case RunEnded(outcome=outcome):
                self.outcome, self._busy = outcome, False
            case RunBroke(why):
                self._busy = False
                self.outcome = experiment.outcome
                self.message = f"The run broke off: {why}"
        if isinstance(event, LoadMoved):
            self.draw_stage()
        else:
            self.draw()

    def _called(self, arm: str) -> str:
        """`A, `; of a replay nothing, which has one layout."""
        return f"{arm}, " if self.run is not None and self.run.header.kind == "ab" else ""

    # ── what goes on ──────────────────────────────────────────────────────────────────────
    def stage(self) -> Content:
        """A bar over all samples, what is being done, and the time left."""
        if not self._busy:
            if self.run is None:
                return Content("")
            taken, planned = len(self.run.samples), len(self.run.header.plan)
            back = " · Esc brings the session back" if self.parked else ""
            said = f"{taken} of {planned} samples{back}"
            where = f" · {self.folder}" if self.folder is not None else ""
            fits = cell_len(said + where) <= self.app.size.width - 2
            return Content.styled(clean(said + where) if fits else said, "$text-muted")
        if self.run is None:
            return Content(f"{self._doing} …")
        taken, planned = len(self.run.samples), max(1, len(self.run.header.plan))
        width = max(10, min(40, self.app.size.width // 5))
        done = round(taken / planned * width)
        parts = [f"{taken} of {planned}"]
        if self._left_s is not None and not self._stop.is_set():
            parts.append(f"{in_words(self._left_s)} left")
        following = self.run.missing[:1]
        if following:
            noun = "block" if self.run.header.kind == "ab" else "load"
            parts.append(f"{noun} {following[0].block + 1} of {self.run.header.blocks}")
        loaded = "" if self._fraction is None else f" {self._fraction * 100:.0f} %"
        parts.append("stopping" if self._stop.is_set() else self._doing + loaded)
        bar = Content.styled("█" * done, "$text-primary") + Content.styled("░" * (width - done), "$text-muted")
        return bar + Content(" " + one_line(" · ".join(parts), max(10, self.app.size.width - width - 3)))

    # ── keys ──────────────────────────────────────────────────────────────────────────────
    def action_more_blocks(self) -> None:
        """Add the blocks that would settle it."""
        folder, outcome = self.folder, self.outcome
        if folder is not None and outcome is not None:
            number = ab_draw.added_blocks(outcome, self.metric)
            self._begin(lambda listener: self._bench.resume(folder, listener, more_blocks=number))

    def action_go_on(self) -> None:
        """Go on with what was cut short."""
        folder = self.folder
        if folder is not None:
            self._begin(lambda listener: self._bench.resume(folder, listener))

    def action_leave(self) -> None:
        """Stop what runs, keeping what is there; else leave."""
        if not self._busy:
            self.dismiss(None)
            return
        self._stop.set()
        if self._experiment is not None:
            self._experiment.cancel()
        self.draw()
