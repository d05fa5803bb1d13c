"""A plan of samples, taken one by one: load, warm up, ask, write down."""

import hashlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeVar

import msgspec

from workbench.domain.conversation import Sampling
from workbench.domain.layout import Layout
from workbench.domain.prompts import Prompt, PromptSet
from workbench.domain.run import Resolved, Run
from workbench.domain.samples import SALTS, Arm, LoadRecord, Planned, Sample, fixed_sampling, spoiled, unique
from workbench.engines.engine import (
    Engine,
    EngineDied,
    EngineError,
    Filler,
    LoadCancelled,
    Loaded,
    LoadProgress,
    PromptTooLong,
    Reply,
    Request,
)
from workbench.lab.acting import Acting
from workbench.lab.conditions import Reader
from workbench.lab.kit import Kit
from workbench.lab.progress import LoadBegan, LoadEnded, LoadMoved, RunEvent, SampleTaken
from workbench.lab.provenance import identify
from workbench.lab.servers import unload
from workbench.store.models import ModelError
from workbench.store.runs import RunError, RunLog

T = TypeVar("T")
WARM_UPS = 2
WARM_UP_TOKENS = 16
MOST_DEATHS = 3
"""An arm whose engine died this often, while it was loaded or later, is given up."""

ReaderFor = Callable[[Layout, Loaded], Reader]
Tell = Callable[[RunEvent], None]


class Cancelled(Exception):
    """The run was cancelled; the sample in flight is dropped."""


class _Serving:
    """One load: its engine, its number in the run, and what watches its cards."""

    def __init__(self, engine: Engine, number: int, reader: Reader) -> None:
        self.engine = engine
        self.number = number
        self.reader = reader

    def close(self) -> None:
        self.reader.close()
        self.engine.close()


class _Lost(Exception):
    """The engine died; the sample is written down."""


class Runner:
    """Takes every sample of a run that is missing, and tells and logs each. `run` is the run so far.

    `take` blocks until all is done; `cancel` comes from any thread.
    """

    def __init__(self, kit: Kit, log: RunLog, run: Run, read: ReaderFor, tell: Tell) -> None:
        self.run = run
        self._kit = kit
        self._log = log
        self._read = read
        self._tell = tell
        self._prompts = {prompt.id: prompt for prompt in run.header.prompts.prompts}
        self._failed: set[Arm] = set()
        self._deaths: Counter[Arm] = Counter()
        self._cancelled = threading.Event()
        self._acting = Acting()
        self._begun = time.monotonic()
        self._before = len(run.samples)

    def take(self, on_block: Callable[[int], None]) -> None:
        """Take what is missing; `on_block` hears of each block that is over. Raises Cancelled, RunError."""
        self._begun = time.monotonic()
        missing = self.run.missing
        if self.run.header.method == "resident":
            self._take_resident(missing, on_block)
            return
        if missing:
            # What a server still holds of an earlier use would take memory from the other arm's first load.
            unload((arm.layout for arm in self.run.header.arms), self._call)
        for block, of_block in itertools.groupby(missing, lambda planned: planned.block):
            for _, of_load in itertools.groupby(of_block, lambda planned: planned.slot):
                self._take_load(list(of_load))
            on_block(block)

    def cancel(self) -> None:
        """Stop; the running call ends within a second or so."""
        self._cancelled.set()
        self._acting.cancel()

    # ── order ────────────────────────────────────────────────────────────────────────────
    def _take_load(self, wanted: list[Planned]) -> None:
        """All samples of one fresh load; of several, if its engine dies."""
        while wanted and wanted[0].arm not in self._failed:
            serving = self._open(wanted[0])
            if serving is None:
                return
            try:
                while wanted:
                    self._sample(serving, wanted.pop(0))
            except _Lost:
                continue
            finally:
                serving.close()

    def _take_resident(self, wanted: Iterable[Planned], on_block: Callable[[int], None]) -> None:
        serving: dict[Arm, _Serving] = {}
        try:
            for block, of_block in itertools.groupby(wanted, lambda planned: planned.block):
                for planned in of_block:
                    self._sample_resident(serving, planned)
                on_block(block)
        finally:
            for each in serving.values():
                each.close()

    def _sample_resident(self, serving: dict[Arm, _Serving], planned: Planned) -> None:
        for arm in ("A", "B"):
            # Both are there before the first sample: with one alone nothing would be shared.
            if arm not in serving and arm not in self._failed and any(each.arm == arm for each in self.run.missing):
                opened = self._open(msgspec.structs.replace(planned, arm=arm))
                if opened is not None:
                    serving[arm] = opened
        if planned.arm not in serving:
            return
        try:
            self._sample(serving[planned.arm], planned)
        except _Lost:
            serving.pop(planned.arm).close()

    # ── loads ────────────────────────────────────────────────────────────────────────────
    def _open(self, planned: Planned) -> _Serving | None:
        """Load an arm and warm it up; None if it does not load, which is written down and final."""
        arm = planned.arm
        layout = self.run.header.arm(arm).layout
        record = LoadRecord(
            load=self._next_load(),
            arm=arm,
            block=planned.block,
            slot=planned.slot,
            at=time.time(),
            split=layout.label(),
        )
        self._tell(LoadBegan(arm=arm, split=record.split, block=planned.block))
        try:
            engine = self._kit.open_engine(layout, lambda error: None)
        except (EngineError, ModelError) as error:
            self._give_up(record, error)
            return None
        reader: Reader | None = None
        try:
            loaded = self._call(engine, lambda: engine.load(self._progress))
            self._resolve(arm, loaded)
            self._warm_up(engine)
            reader = self._read(layout, loaded)
        except EngineError as error:
            engine.close()
            if isinstance(error, LoadCancelled) or self._cancelled.is_set():
                raise Cancelled from error
            if isinstance(error, EngineDied) and not self._is_one_too_many(arm):
                self._write_failure(record, error)
                return self._open(planned)
            self._give_up(record, error)
            return None
        except BaseException:
            engine.close()
            raise
        self._write_load(
            msgspec.structs.replace(
                record,
                load_s=loaded.load_s,
                n_ctx=loaded.n_ctx,
                flash_attn=loaded.flash_attn,
                cards=loaded.cards,
                host=loaded.host,
                warnings=loaded.warnings,
            )
        )
        return _Serving(engine, record.load, reader)

    def _give_up(self, record: LoadRecord, error: EngineError | ModelError) -> None:
        self._failed.add(record.arm)
        self._write_failure(record, error)

    def _write_failure(self, record: LoadRecord, error: EngineError | ModelError) -> None:
        reason = error.reason if isinstance(error, EngineError) else error.message
        sizes = (error.card, error.wanted_mib, error.free_mib) if isinstance(error, EngineError) else (None,) * 3
        card, wanted, free = sizes
        self._write_load(
            msgspec.structs.replace(record, error=reason, card=card, wanted_mib=wanted, free_mib=free)
        )

    def _next_load(self) -> int:
        """A number that no load of the run has, also where a line of the log was damaged."""
        taken = {each.load for each in self.run.loads} | {each.load for each in self.run.samples}
        return 1 + max(taken, default=0)

    def _write_load(self, record: LoadRecord) -> None:
        self._log.append(record)
        self.run = msgspec.structs.replace(self.run, loads=(*self.run.loads, record))
        self._tell(LoadEnded(record))

    def _resolve(self, arm: Arm, loaded: Loaded) -> None:
        """Write down what the layout came to, the first time; later it must be the same model."""
        header, model = self.run.header, loaded.model
        known = header.arm(arm).resolved
        try:
            file = identify(loaded)
        except OSError as error:
            raise RunError(f"{model.path} cannot be read: {error.strerror}") from None
        if known is not None:
            if known.model != file:
                raise RunError(f"{model.path} is not the model that this run began with; begin a new run")
            return
        resolved = Resolved(
            n_ctx=loaded.n_ctx,
            flash_attn=loaded.flash_attn,
            template=loaded.template,
            model=file,
            cards=loaded.cards,
            host=loaded.host,
            model_name=model.name,
            arch=model.arch,
            quantisation=model.quantisation,
            n_layer=model.n_layer,
            n_params=model.n_params,
            server=loaded.served.name if loaded.served else "",
        )
        self.run = msgspec.structs.replace(self.run, header=header.resolved(arm, resolved))
        self._log.update(self.run.header)

    def _warm_up(self, engine: Engine) -> None:
        """Ask the longest prompt and the first, and forget the answers. Raises EngineError if it answers neither."""
        prompts, refused = self.run.header.prompts, list[EngineError]()
        for number, prompt in zip(range(WARM_UPS), (_longest(prompts), prompts.prompts[0]), strict=True):
            request = request_for(prompt, prompts.defaults, SALTS + number)
            short = min(request.sampling.max_tokens, WARM_UP_TOKENS)
            sampling = msgspec.structs.replace(request.sampling, max_tokens=short)
            assert request.filler is not None
            filler = msgspec.structs.replace(request.filler, depth=0)
            try:
                self._ask(engine, msgspec.structs.replace(request, sampling=sampling, filler=filler))
            except PromptTooLong:
                continue
            except EngineDied:
                raise
            except EngineError as error:  # it may be this prompt alone
                refused.append(error)
        if len(refused) == WARM_UPS:
            raise refused[0]

    def _progress(self, progress: LoadProgress) -> None:
        self._tell(LoadMoved(progress.fraction, progress.stage))

    # ── samples ──────────────────────────────────────────────────────────────────────────
    def _sample(self, serving: _Serving, planned: Planned) -> None:
        header = self.run.header
        request = request_for(self._prompts[planned.prompt], header.prompts.defaults, planned.salt)
        sample = Sample(
            planned=planned, load=serving.number, at=time.time(), split=header.arm(planned.arm).layout.label()
        )
        serving.reader.begin()
        try:
            reply = self._ask(serving.engine, request)
        except EngineDied as error:
            self._write_sample(msgspec.structs.replace(sample, left_out=f"the engine died: {error.reason}"))
            self._count_death(planned, error)
        except EngineError as error:
            self._write_sample(msgspec.structs.replace(sample, left_out=error.reason))
            return
        conditions = serving.reader.end()
        left_out = reply.caveat or spoiled(conditions)
        if reply.stop_reason == "context_full":
            left_out = "the reply does not fit n_ctx"
        self._write_sample(
            msgspec.structs.replace(
                sample,
                timing=reply.timing,
                stop_reason=reply.stop_reason,
                text=reply.text,
                text_sha256=hashlib.sha256(reply.text.encode()).hexdigest(),
                tokens=reply.tokens,
                conditions=conditions,
                left_out=left_out,
            )
        )

    def _count_death(self, planned: Planned, error: EngineDied) -> NoReturn:
        if self._is_one_too_many(planned.arm):
            record = LoadRecord(
                load=self._next_load(),
                arm=planned.arm,
                block=planned.block,
                slot=planned.slot,
                at=time.time(),
                split=self.run.header.arm(planned.arm).layout.label(),
            )
            self._give_up(record, error)
        raise _Lost from error

    def _is_one_too_many(self, arm: Arm) -> bool:
        """Count the death of an arm's engine; whether the arm is to be given up for it."""
        self._deaths[arm] += 1
        return self._deaths[arm] >= MOST_DEATHS

    def _ask(self, engine: Engine, request: Request) -> Reply:
        def hear(_: str) -> None:
            if self._cancelled.is_set():
                engine.cancel()  # a cancel that came before the call had begun

        try:
            reply = self._call(engine, lambda: engine.chat(request, hear))
        except EngineDied as error:
            if self._cancelled.is_set():
                raise Cancelled from error  # it did not stop of itself
            raise
        if reply.stop_reason == "cancelled":
            raise Cancelled
        return reply

    def _write_sample(self, sample: Sample) -> None:
        self._log.append(sample)
        self.run = msgspec.structs.replace(self.run, samples=(*self.run.samples, sample))
        done, total = len(self.run.samples), len(self.run.header.plan)
        each_s = (time.monotonic() - self._begun) / (done - self._before)
        self._tell(SampleTaken(sample=sample, done=done, total=total, left_s=each_s * (total - done)))

    def _call(self, engine: Engine, call: Callable[[], T]) -> T:
        def unless_cancelled() -> T:
            if self._cancelled.is_set():
                raise Cancelled
            return call()

        return self._acting.call(engine, unless_cancelled)


def request_for(prompt: Prompt, defaults: Sampling, salt: int) -> Request:
    """A prompt as it is measured: unique, on an empty context or at its depth, greedy, of fixed length."""
    made = 0 if prompt.synthetic is None else prompt.synthetic.prompt_tokens
    return Request(
        messages=unique(prompt.conversation(), salt),
        sampling=fixed_sampling(prompt, defaults),
        filler=Filler(depth=prompt.depth, prompt_tokens=made, salt=salt),
    )


def _longest(prompts: PromptSet) -> Prompt:
    def length(prompt: Prompt) -> int:
        made = 0 if prompt.synthetic is None else prompt.synthetic.prompt_tokens * 4
        return made + sum(len(message.content) for message in prompt.conversation())

    return max(prompts.prompts, key=length)
