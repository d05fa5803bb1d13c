"""One live engine with its layout and conversation."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import msgspec

from workbench.domain.conversation import Conversation, Sampling, Turn
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split
from workbench.domain.timing import Probe
from workbench.engines.engine import (
    Engine,
    EngineDied,
    EngineError,
    LoadCancelled,
    Loaded,
    LoadProgress,
    PromptTooLong,
    Request,
    SavedState,
    StateRefused,
)
from workbench.lab import events
from workbench.lab.jobs import Jobs, Right
from workbench.lab.kit import Kit
from workbench.store.journal import (
    ConversationSet,
    Journal,
    JournalError,
    LayoutServes,
    Record,
    SplitTried,
    TextArrived,
    TurnBegun,
    TurnEnded,
)
from workbench.store.places import places
from workbench.store.writing import file_name, save_layout

T = TypeVar("T")
Listener = Callable[[events.SessionEvent], None]


class Session:
    """Load, chat, re-split, go back. Each call queues a job and returns its future at once.

    The listener is called from the session's threads, one event at a time, in order. What a
    job raises arrives in its future and, as a Problem, at the listener.
    """

    def __init__(self, kit: Kit, listener: Listener, *, journal: Journal | None = None) -> None:
        self._kit = kit
        self._listener = listener
        self._journal = journal
        self._telling = threading.Lock()
        self._engine: Engine | None = None
        self._acting: Engine | None = None
        """The engine whose call runs now, which a cancel goes to."""
        self._previous: Layout | None = None
        self._preempted = False
        self.sampling = Sampling()
        self.layout: Layout | None = None
        self.loaded: Loaded | None = None
        self.conversation = Conversation()
        self.history: tuple[events.Measurement, ...] = ()
        self._jobs = Jobs(lambda job: self._tell(events.Busy(job)))

    # ── what a user does ─────────────────────────────────────────────────────────────────
    def load(self, layout: Layout) -> Future[Loaded]:
        """Load a layout; the one that serves comes back if it fails."""
        self._give_way()
        return self._jobs.submit(Right.LOAD, "load", lambda: self._switch(layout, "load"))

    def resplit(self, split: Split) -> Future[Loaded]:
        """Load the running layout with another split, keeping the conversation."""
        return self._change(lambda layout: msgspec.structs.replace(layout, split=split))

    def set_context(self, context: Context) -> Future[Loaded]:
        """Give the running layout other context settings, keeping weights and conversation."""
        return self._change(lambda layout: msgspec.structs.replace(layout, context=context))

    def go_back(self) -> Future[Loaded]:
        """Load the layout that served before this one. LookupError where there was none."""

        def back(_: Layout) -> Layout:
            if self._previous is None:
                raise LookupError("there is no earlier layout in this session")
            return self._previous

        return self._change(back)

    def send(self, prompt: str, sampling: Sampling | None = None) -> Future[Turn]:
        """Ask; the turn is what was said, whatever ended it."""
        self._give_way()
        return self._jobs.submit(Right.PROMPT, "prompt", lambda: self._ask(prompt, sampling or self.sampling))

    def resend(self, index: int, prompt: str) -> Future[Turn]:
        """Forget turn `index` and all later ones, and ask anew from there."""

        def again() -> Turn:
            self._set_conversation(self.conversation.upto(index))
            return self._ask(prompt, self.sampling)

        self._give_way()
        return self._jobs.submit(Right.PROMPT, "prompt", again)

    def clear(self) -> Future[None]:
        """Begin a new conversation."""
        return self._edit(lambda conversation: conversation.upto(0))

    def drop_oldest(self, count: int = 1) -> Future[None]:
        """Forget the oldest turns."""
        return self._edit(lambda conversation: conversation.without_oldest(count))

    def restore(self, conversation: Conversation) -> Future[None]:
        """Take up an earlier conversation; the next prompt evaluates all of it."""
        return self._edit(lambda _: conversation)

    def probe(self) -> Future[Probe | None]:
        """Measure the running split at fixed depth; a prompt goes first."""
        return self._jobs.submit(Right.PROBE, "probe", lambda: self._probe(None))

    def cancel(self) -> None:
        """Stop what runs; a reply keeps its text, a load goes back to the layout before it."""
        acting = self._acting
        if acting is not None:
            acting.cancel()

    def save_as(self, name: str, *, overwrite: bool = False) -> Path:
        """Save the running layout under a name, in ./layouts or else the user's folder.

        Raises DocumentError, also for a name that is taken, and LookupError without a layout.
        """
        if self.layout is None:
            raise LookupError("no layout is loaded")
        near, own = places().layouts
        path = (near if near.is_dir() else own) / file_name(name)
        layout = msgspec.structs.replace(self.layout, name=name)
        return save_layout(layout, path, overwrite=overwrite)

    def close(self) -> None:
        """End everything; memory is free when this returns."""
        self._jobs.drop("prompt")
        self._jobs.drop("probe")
        self.cancel()
        self._jobs.close()
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._journal is not None:
            self._journal.close()

    # ── loading ──────────────────────────────────────────────────────────────────────────
    def _change(self, change: Callable[[Layout], Layout]) -> Future[Loaded]:
        def work() -> Loaded:
            if self.layout is None:
                raise LookupError("no layout is loaded")
            return self._switch(change(self.layout), "resplit")

        self._give_way()
        return self._jobs.submit(Right.LOAD, "resplit", work)

    def _switch(self, layout: Layout, why: str) -> Loaded:
        """Make `layout` serve, or else the one that served before."""
        serving, engine, state = self.layout, self._engine, None
        try:
            if engine is not None and serving is not None and serving.model == layout.model:
                state = self._save_state(engine)
            if engine is not None and serving is not None and _only_context_differs(serving, layout):
                return self._change_context(engine, layout, state)
            self._tell(events.LoadStarted(layout, why))
            following = self._open(layout, state)
            self._retire()
            return self._bring_up(following, layout, state)
        except Exception as error:
            self._complain(error)
            if self._engine is None and serving is not None:
                self._bring_back(serving, "rollback", state)
            raise
        finally:
            if state is not None:
                Path(state.path).unlink(missing_ok=True)

    def _open(self, layout: Layout, state: SavedState | None) -> Engine:
        """An engine for `layout`, its flash attention pinned where a state is to be carried over."""
        opened: list[Engine] = []
        engine = self._kit.open_engine(
            self._pinned(layout) if state else layout, lambda error: self._died(opened, error)
        )
        opened.append(engine)
        return engine

    def _bring_up(self, engine: Engine, layout: Layout, state: SavedState | None, *, quietly: bool = False) -> Loaded:
        """Load, take the state over, serve. `quietly`: a layout comes back, which is no change."""
        try:
            load = functools.partial(engine.load, self._progress)
            loaded = load() if quietly else self._call(engine, load)
        except EngineError:
            engine.close()
            raise
        self._engine = engine
        self._restore_state(engine, state)
        self._serve(layout, loaded, quietly)
        return loaded

    def _change_context(self, engine: Engine, layout: Layout, state: SavedState | None) -> Loaded:
        self._tell(events.LoadStarted(layout, "context"))
        context = (self._pinned(layout) if state else layout).context
        try:
            loaded = self._call(engine, lambda: engine.new_context(context))
        except EngineError:
            self._retire()
            raise
        self._restore_state(engine, state)
        self._serve(layout, loaded, quietly=False)
        return loaded

    def _bring_back(self, layout: Layout, why: str, state: SavedState | None) -> None:
        """Load the last good layout anew; that it fails is said, not raised. No cancel stops it."""
        self._tell(events.LoadStarted(layout, why))
        try:
            self._bring_up(self._open(layout, state), layout, state, quietly=True)
        except Exception as error:
            self._complain(error)

    def _serve(self, layout: Layout, loaded: Loaded, quietly: bool) -> None:
        before = self.history[-1] if self.history and not quietly else None
        if self.layout is not None and self.layout != layout:
            self._previous = self.layout
        self.layout, self.loaded = layout, loaded
        if not quietly:
            measurement = events.Measurement(layout=layout, label=layout.split.label(), cards=loaded.cards)
            self.history = (*self.history, measurement)
            self._note(LayoutServes(layout))
        self._tell(events.LayoutLoaded(layout, loaded))
        if loaded.template_is_fallback:
            self._tell(events.Notice(f"The model has no chat template; {loaded.template} is used."))
        for warning in loaded.warnings:
            self._tell(events.Notice(warning))
        self._jobs.drop("probe")
        self._jobs.submit(Right.PROBE, "probe", lambda: self._probe(before))

    def _retire(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.close()

    def _progress(self, progress: LoadProgress) -> None:
        self._tell(events.LoadMoved(progress.fraction, progress.stage))

    # ── the conversation's state ─────────────────────────────────────────────────────────
    def _pinned(self, layout: Layout) -> Layout:
        """The same, with flash attention as it runs now: a state fits no other setting."""
        if self.loaded is None or layout.context.flash_attn != "auto":
            return layout
        context = msgspec.structs.replace(layout.context, flash_attn=self.loaded.flash_attn)
        return msgspec.structs.replace(layout, context=context)

    def _save_state(self, engine: Engine) -> SavedState | None:
        if not self.conversation.turns:
            return None
        path = self._kit.state_file()
        try:
            return self._call(engine, lambda: engine.save_state(path))
        except EngineError as error:
            path.unlink(missing_ok=True)
            self._tell(events.Notice(f"The conversation will be evaluated again: {error.reason}."))
            return None

    def _restore_state(self, engine: Engine, state: SavedState | None) -> None:
        if state is None:
            return
        try:
            self._call(engine, lambda: engine.restore_state(state))
        except StateRefused as error:
            self._tell(events.Notice(f"The conversation will be evaluated again: {error.reason}."))

    # ── prompts ──────────────────────────────────────────────────────────────────────────
    def _ask(self, prompt: str, sampling: Sampling) -> Turn:
        if self._engine is None and self.layout is not None:
            self._bring_back(self.layout, "respawn", None)
        engine = self._engine
        if engine is None or self.layout is None:
            self._tell(events.PromptReturned(prompt, "no model is loaded"))
            raise LookupError("no model is loaded")
        index, label = len(self.conversation.turns), self.layout.split.label()
        self._tell(events.TurnStarted(index, prompt))
        self._note(TurnBegun(index, prompt))
        request = Request(messages=self.conversation.messages(prompt), sampling=sampling)
        try:
            reply = self._call(engine, lambda: engine.chat(request, self._hear))
        except PromptTooLong as error:
            self._give_back(prompt, None)
            self._tell(events.ContextFull(error.n_ctx, error.prompt_tokens, prompt))
            raise
        except EngineDied as error:
            turn = Turn(prompt=prompt, reply=error.partial, stop_reason="died", split=label)
            self._finish(index, turn)
            self._lose(engine, error)
            return turn
        except EngineError as error:
            self._give_back(prompt, error.reason)
            self._complain(error)
            raise
        turn = Turn(prompt=prompt, reply=reply.text, stop_reason=reply.stop_reason, timing=reply.timing, split=label)
        if reply.stop_reason == "cancelled" and not reply.text:
            self._give_back(prompt, "cancelled before the first token")
        else:
            self._finish(index, turn)
        if reply.stop_reason == "context_full":
            assert self.loaded is not None
            self._tell(events.ContextFull(self.loaded.n_ctx, None, None))
        return turn

    def _hear(self, text: str) -> None:
        self._tell(events.TurnText(text))
        self._note(TextArrived(text))

    def _finish(self, index: int, turn: Turn) -> None:
        self.conversation = self.conversation.with_turn(turn)
        self._note(TurnEnded(index, turn))
        self._tell(events.TurnDone(index, turn))

    def _give_back(self, prompt: str, why: str | None) -> None:
        self._note(ConversationSet(self.conversation))
        if why is not None:
            self._tell(events.PromptReturned(prompt, why))

    def _edit(self, edit: Callable[[Conversation], Conversation]) -> Future[None]:
        return self._jobs.submit(Right.PROMPT, "edit", lambda: self._set_conversation(edit(self.conversation)))

    def _set_conversation(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self._note(ConversationSet(conversation))
        self._tell(events.ConversationChanged(conversation))

    # ── the probe ────────────────────────────────────────────────────────────────────────
    def _give_way(self) -> None:
        """A probe that runs makes room; it runs again afterwards."""
        if self._jobs.running == "probe" and self._acting is not None:
            self._preempted = True
            self._acting.cancel()

    def _probe(self, before: events.Measurement | None) -> Probe | None:
        engine = self._engine
        if engine is None or not self.history:
            return None
        self._preempted = False
        try:
            probe = self._call(engine, engine.probe)
        except EngineDied as error:
            self._lose(engine, error)
            return None
        except EngineError as error:
            self._tell(events.Notice(error.reason))
            return None
        if probe is None:
            if self._preempted:
                self._jobs.submit(Right.PROBE, "probe", lambda: self._probe(before))
            return None
        after = msgspec.structs.replace(self.history[-1], probe=probe)
        self.history = (*self.history[:-1], after)
        self._note(SplitTried(layout=after.layout, cards=after.cards, probe=probe))
        self._tell(events.ProbeDone(after))
        if before is not None and before.layout != after.layout:
            self._tell(events.Changed(before=before, after=after))
        return probe

    # ── trouble ──────────────────────────────────────────────────────────────────────────
    def _died(self, opened: list[Engine], error: EngineDied) -> None:
        """An engine ended; called from its own thread. A running call hears of it by itself."""
        self._jobs.submit(Right.LOAD, "restore", lambda: self._lose(opened[0], error) if opened else None)

    def _lose(self, engine: Engine, error: EngineDied) -> None:
        if self._engine is not engine:
            return
        self._complain(error)
        self._retire()
        if self.layout is not None:
            self._bring_back(self.layout, "respawn", None)

    def _complain(self, error: Exception) -> None:
        if isinstance(error, LoadCancelled):
            self._tell(events.Notice("The load was cancelled."))
            return
        serving = self.layout.split.label() if self._engine is not None and self.layout is not None else None
        if isinstance(error, EngineError):
            problem = events.Problem(
                message=error.reason,
                card=error.card,
                wanted_mib=error.wanted_mib,
                free_mib=error.free_mib,
                serving=serving,
            )
        else:
            problem = events.Problem(message=str(error), serving=serving)
        self._tell(problem)

    def _call(self, engine: Engine, call: Callable[[], T]) -> T:
        self._acting = engine
        try:
            return call()
        finally:
            self._acting = None

    def _note(self, record: Record) -> None:
        """Journal a record; a journal that fails is said once and given up, the session goes on."""
        if self._journal is None:
            return
        try:
            self._journal.append(record)
        except JournalError as error:
            self._journal = None
            self._tell(events.Notice(str(error)))

    def _tell(self, event: events.SessionEvent) -> None:
        with self._telling:
            self._listener(event)


def _only_context_differs(before: Layout, after: Layout) -> bool:
    same = msgspec.structs.replace(after, context=before.context, name=before.name) == before
    return same and before.context != after.context
