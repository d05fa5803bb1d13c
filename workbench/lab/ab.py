"""Replays and A/Bs as a whole: planned, run in a thread of their own, gone on with, and judged."""

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import time

import msgspec

from workbench.domain.comparison import LoadNoise, Metric, load_noise, pool
from workbench.domain.layout import Layout, on_one_server
from workbench.domain.outcome import Outcome, outcome
from workbench.domain.prompts import PromptSet
from workbench.domain.run import VERSION, Machine, Run, RunHeader, longer, told_apart
from workbench.domain.samples import DEFAULT_BLOCKS, SALTS, Method, fits, plan_ab, plan_replay, too_long
from workbench.lab.conditions import MeterReader
from workbench.lab.kit import Kit, RealKit
from workbench.lab.progress import BlockDone, RunBegan, RunBroke, RunEnded, RunEvent
from workbench.lab.provenance import Describe, describe
from workbench.lab.replay import WARM_UPS, Cancelled, ReaderFor, Runner
from workbench.store.places import places
from workbench.store.runs import RunError, RunLog, list_runs, new_run_id, read_run
from workbench.store.writing import file_name

RUNS_FOR_NOISE = 20
"""How many of the newest runs are asked what fresh loads differ by."""
CTX_STEP = 256
"""llama.cpp rounds n_ctx up to a multiple of this."""

Listener = Callable[[RunEvent], None]


class PromptDoesNotFit(Exception):
    """A prompt of the set cannot be measured with a layout; `key` is the prompt's in its document."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


class Experiment:
    """One run, new or gone on with. The listener is called from its thread, in order.

    Whoever has a session on the same cards parks it before `start` and brings it back after
    `RunEnded` or `RunBroke`, one of which is the last event.
    """

    def __init__(self, kit: Kit, log: RunLog, run: Run, listener: Listener, read: ReaderFor) -> None:
        self.folder = log.folder
        self._log = log
        self._listener = listener
        self._runner = Runner(kit, log, run, read, listener)
        self._known = known_noise(run.header.machine) if run.header.method == "resident" else None
        self._error: Exception | None = None
        self.cancelled = False
        self._thread = threading.Thread(target=self._run, name="experiment", daemon=True)

    @classmethod
    def begin(
        cls,
        kit: Kit,
        layouts: Sequence[Layout],
        prompts: PromptSet,
        listener: Listener,
        read: ReaderFor,
        *,
        method: Method = "fresh",
        blocks: int = DEFAULT_BLOCKS,
        folder: Path | None = None,
        describe: Describe = describe,
    ) -> "Experiment":
        """A new run of one layout (`blocks` loads) or of two. Raises PromptDoesNotFit, RunError."""
        for layout in layouts:
            check_lengths(prompts, layout)
        if (why := too_long(prompts, blocks, len(layouts))) is not None:
            raise RunError(why)
        one_server = on_one_server(layouts)
        if one_server and method == "resident":
            raise RunError("both layouts are on one server, which answers one at a time; leave --resident out")
        where = describe(layouts)
        offset = random.SystemRandom().randrange(SALTS)
        ab = len(layouts) == 2
        plan = plan_replay(prompts, blocks, offset)
        if ab:
            plan = plan_ab(prompts, blocks, method, offset, one_server=one_server)
        id_ = new_run_id(_file_name("-vs-".join(_file_name(name) for name in told_apart(layouts))))
        header = RunHeader(
            version=VERSION,
            id=id_,
            created=time(),
            kind="ab" if ab else "replay",
            method=method,
            blocks=blocks,
            warm_ups=WARM_UPS,
            arms=where.arms,
            prompts=prompts,
            machine=where.machine,
            build=where.build,
            plan=plan,
        )
        log = RunLog.create(folder or places().runs / id_, header)
        return cls(kit, log, Run(header=header), listener, read)

    @classmethod
    def resume(
        cls,
        kit: Kit,
        folder: Path,
        listener: Listener,
        read: ReaderFor,
        *,
        more_blocks: int = 0,
        describe: Describe = describe,
    ) -> "Experiment":
        """Go on with a run, on the machine and with the build it was begun on. Raises RunError.

        `more_blocks` are added to what was planned.
        """
        log, run = RunLog.reopen(folder)
        try:
            header = run.header
            now = describe([arm.layout for arm in header.arms])
            if _identity(now.machine) != _identity(header.machine):
                raise RunError(f"{folder} was begun on {header.machine.host}, with other cards than are here; "
                               "go on there, or begin a new run")
            if now.build.versions != header.build.versions:
                raise RunError(f"{folder} was begun with {_versions(header.build.versions)}, and this is "
                               f"{_versions(now.build.versions)}; begin a new run")
            for before, after in zip(header.arms, now.arms, strict=True):
                changed = sorted(dict(before.env.items() ^ after.env.items()))
                if changed:
                    raise RunError(f"{folder} was begun with other values of {', '.join(changed)} in the environment; "
                                   "set them back, or begin a new run")
            if more_blocks:
                why = too_long(header.prompts, header.blocks + more_blocks, len(header.arms))
                if why is not None:
                    raise RunError(why)
                run = msgspec.structs.replace(run, header=longer(header, more_blocks))
                log.update(run.header)
        except BaseException:
            log.close()
            raise
        return cls(kit, log, run, listener, read)

    @property
    def run(self) -> Run:
        """What was taken so far."""
        return self._runner.run

    @property
    def outcome(self) -> Outcome:
        """The result so far."""
        return outcome(self._runner.run, self._known)

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def cancel(self) -> None:
        """Stop; what was taken stays. `RunEnded` follows within a second or so."""
        self.cancelled = True
        self._runner.cancel()

    def join(self) -> None:
        """Wait for the end, whatever it is."""
        self._thread.join()

    def wait(self) -> Outcome:
        """The result, when it is over. Raises what ended it, such as RunError."""
        self.join()
        if self._error is not None:
            raise self._error
        return self.outcome

    def _run(self) -> None:
        run = self._runner.run
        self._listener(RunBegan(folder=self.folder, done=len(run.samples), total=len(run.header.plan)))
        try:
            self._runner.take(lambda block: self._listener(BlockDone(block, self.outcome)))
        except Cancelled:
            self.cancelled = True
        except Exception as error:
            self._error = error
            self._listener(RunBroke(str(error)))
            return
        finally:
            self._log.close()
        self._listener(RunEnded(outcome=self.outcome, folder=self.folder, cancelled=self.cancelled))


def meter_reader(kit: RealKit) -> ReaderFor:
    """Reads the meters of this machine's cards."""
    return lambda layout, loaded: MeterReader(loaded, () if loaded.card_processes else kit.cards(layout))


def known_noise(machine: Machine) -> dict[Metric, LoadNoise]:
    """How much fresh loads differ on this machine, by its latest A/Bs; empty where there is none."""
    found: list[dict[Metric, LoadNoise]] = []
    for folder, header in list_runs():
        if isinstance(header, RunError) or header.kind != "ab" or header.method != "fresh":
            continue
        if _identity(header.machine) != _identity(machine):
            continue
        try:
            found.append(load_noise(read_run(folder).samples))
        except RunError:
            continue
        if len(found) == RUNS_FOR_NOISE:
            break
    return pool(found)


def judge(folder: Path) -> Outcome:
    """The result of a run in the log. Raises RunError."""
    run = read_run(folder)
    return outcome(run, known_noise(run.header.machine) if run.header.method == "resident" else None)


def check_lengths(prompts: PromptSet, layout: Layout) -> None:
    """Whether each prompt of known length fits the layout's context. Raises PromptDoesNotFit."""
    n_ctx = -(-layout.n_ctx_asked // CTX_STEP) * CTX_STEP
    if not n_ctx:
        return  # the model's own, which the engine knows
    for at, prompt in enumerate(prompts.prompts):
        why = fits(prompt, prompts.defaults, n_ctx)
        if why is not None:
            raise PromptDoesNotFit(f"prompts[{at}]", f"`{prompt.id}` {why} in {layout.name}; raise n_ctx there, "
                                   "or make the prompt or its reply shorter")


def _file_name(name: str) -> str:
    return file_name(name).removesuffix(".yaml")


def _identity(machine: Machine) -> tuple[object, ...]:
    return machine.host, machine.cores, tuple(card.uuid or card.pci_bus_id for card in machine.cards)


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())
