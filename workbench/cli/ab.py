"""`workbench ab` and `workbench replay`: a run watched to its end, and its result."""

import shlex
import sys
from pathlib import Path

import click

from workbench.cli.failures import CommandFailed, say
from workbench.cli.outcome import outcome_json, outcome_text
from workbench.cli.streams import steered
from workbench.domain.comparison import Effect
from workbench.domain.duration import in_words
from workbench.domain.outcome import Outcome, called
from workbench.domain.run import RunHeader
from workbench.domain.samples import LoadRecord, Method
from workbench.domain.text import flat
from workbench.domain.wording import IN, NAMES, tok_s, verdict
from workbench.lab.ab import Experiment, PromptDoesNotFit, meter_reader
from workbench.lab.kit import RealKit
from workbench.lab.progress import BlockDone, LoadBegan, LoadEnded, RunBegan, RunEnded, RunEvent, SampleTaken
from workbench.store.documents import DocumentError, read_layout, read_prompt_set
from workbench.store.places import find_layout, find_prompt_set, places
from workbench.store.runs import RunError, find_run


def run_layouts(
    layouts: tuple[str, ...],
    prompts: str,
    *,
    resident: bool,
    blocks: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure one layout or two, given by name or file, and print what came out."""
    read = tuple(read_layout(find_layout(name)) for name in layouts)
    set_path = find_prompt_set(prompts)
    prompt_set = read_prompt_set(set_path)
    kit, watcher = RealKit(spare=False), Watcher()
    method: Method = "resident" if resident else "fresh"
    try:
        experiment = Experiment.begin(
            kit, read, prompt_set, watcher, meter_reader(kit), method=method, blocks=blocks, folder=out
        )
    except PromptDoesNotFit as error:
        raise DocumentError.at(set_path, error.key, error.message) from error
    follow(experiment, watcher, as_json=as_json)


def resume_run(run: str, *, more_blocks: int = 0, as_json: bool) -> None:
    """Go on with a run, given by id or folder, and print what came out."""
    kit, watcher = RealKit(spare=False), Watcher()
    experiment = Experiment.resume(kit, find_run(run), watcher, meter_reader(kit), more_blocks=more_blocks)
    follow(experiment, watcher, as_json=as_json)


def follow(experiment: Experiment, watcher: "Watcher", *, as_json: bool) -> None:
    """Run to the end; Ctrl-C prints the result so far and ends with 130. Raises CommandFailed."""
    watcher.header = experiment.run.header
    experiment.start()
    try:
        try:
            outcome = experiment.wait()
        except KeyboardInterrupt:
            experiment.cancel()
            outcome = experiment.wait()
    except RunError as error:
        raise CommandFailed(str(error)) from error
    finally:
        watcher.close()
    click.echo(outcome_json(outcome, experiment.folder) if as_json else outcome_text(outcome))
    if experiment.cancelled:
        folder = experiment.folder
        run = folder.name if folder.parent == places().runs else str(folder)
        say(f"cancelled; `workbench {experiment.run.header.kind} --resume {shlex.quote(run)}` goes on")
        raise KeyboardInterrupt
    say(f"every sample is in {experiment.folder}")
    _complain(outcome)


def _complain(outcome: Outcome) -> None:
    failed = [arm for arm in outcome.arms if arm.failure is not None]
    if failed:
        said = (f"{called(outcome.header, arm.arm)} did not load: {arm.failure}" for arm in failed)
        raise CommandFailed("; ".join(said))
    if not any(arm.samples for arm in outcome.arms):
        raise CommandFailed("no sample counts: every one was left out")


class Watcher:
    """Tells a run's progress on stderr: a bar with the time left on a terminal, else a line a block."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.header: RunHeader | None = None
        """Of the run that is watched, from before its start."""
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}", markup=False),
                TextColumn("{task.description}", markup=False),
                console=Console(file=steered(sys.stderr)),
                transient=True,
            )
            self._task = self._bar.add_task("", total=None, left="")

    def __call__(self, event: RunEvent) -> None:
        """From the run's thread."""
        match event:
            case RunBegan():
                if event.done:
                    say(f"{event.done} of {event.total} samples are there")
                if self._bar is not None:
                    self._bar.start()
                    self._bar.update(self._task, total=event.total, completed=event.done)
            case LoadBegan():
                self._show(description=f"{self._where(event)}: loading")
            case LoadEnded(load):
                what = "measuring" if load.error is None else "does not load"
                self._show(description=f"{self._where(load)}: {what}")
                if load.error is not None:
                    who = load.split if self._alone else f"{load.arm} ({load.split})"
                    say(f"{who} does not load: {load.error}")
            case SampleTaken():
                left = "" if event.left_s is None else f"about {in_words(event.left_s)} left"
                self._show(completed=event.done, left=left)
                sample = event.sample
                if sample.left_out is not None:
                    where = "" if self._alone else f" on {sample.planned.arm}"
                    say(f"{sample.planned.prompt}{where} left out: {sample.left_out}")
            case BlockDone(block, outcome):
                if self._bar is None:
                    say(block_line(block, outcome))
            case RunEnded():
                self.close()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @property
    def _alone(self) -> bool:
        """Whether one layout is replayed, which has loads and no blocks or arms."""
        return self.header is not None and self.header.kind == "replay"

    def _where(self, load: LoadBegan | LoadRecord) -> str:
        of = "" if self.header is None else f" of {self.header.blocks}"
        if self._alone:
            return f"load {load.block + 1}{of}, {load.split}"
        return f"block {load.block + 1}{of}, {load.arm} {load.split}"

    def _show(self, *, description: str = "", **fields: object) -> None:
        if self._bar is not None:
            said = {"description": flat(description)} if description else {}
            self._bar.update(self._task, **said, **fields)  # type: ignore[arg-type]


def block_line(block: int, outcome: Outcome) -> str:
    """What is known after a block; of a replay after a load, by that load alone."""
    if outcome.header.kind == "replay":
        (arm,) = outcome.arms
        decode = arm.by_load["decode"]
        said = "did not load" if arm.failure is not None else f"{tok_s(decode[-1] if decode else None)} {IN['decode']}"
        return f"load {block + 1} of {outcome.header.blocks}: {said}"
    done = f"block {block + 1} of {outcome.header.blocks}"
    if failed := [arm.arm for arm in outcome.arms if arm.failure is not None]:
        return f"{done}: {' and '.join(failed)} did not load"
    effect: Effect | None = outcome.effect("decode")
    return done if effect is None else f"{done}: {NAMES['decode']}, B {verdict(effect)}"


def check_usage(layouts: tuple[str | None, ...], prompts: str | None, resume: str | None) -> None:
    """Either a run to go on with, or all that a new one needs. Raises click.UsageError."""
    given = [layout for layout in layouts if layout is not None]
    if resume is not None:
        if given or prompts is not None:
            raise click.UsageError("--resume goes on with a run as it was planned; leave layouts and --prompts out")
    elif len(given) < len(layouts):
        raise click.UsageError("name two layouts, A and B" if len(layouts) == 2 else "name a layout")
    elif prompts is None:
        raise click.UsageError("name a prompt set: --prompts SET")
