"""One live engine with its layout and conversation."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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
    PromptTooLong,
    Request,
    SavedState,
)
from workbench.lab import events
from workbench.lab.jobs import Jobs, Right
from workbench.lab.kit import Kit
from workbench.lab.switch import Serving, Switch
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
        self._serving: Serving | None = None
        self._lost: Serving | None = None
        """What served last, to be brought back."""
        self._switching: Switch | None = None
        self._closing = False
        self._told: Exception | None = None
        """The failure that the listener heard of last; it may pass by again on its way up."""
        self._acting: Engine | None = None
        """The engine whose reply or probe runs now, which a cancel goes to."""
        self._preempted = False
        self.sampling = Sampling()
        self.layout: Layout | None = None
        self.loaded: Loaded | None = None
        self.conversation = Conversation()
        self.history: tuple[events.Measurement, ...] = ()
        """Every layout that served, in the order of its first load."""
        self.position = 0
        """The line of the history that serves."""
        self._switches = ThreadPoolExecutor(1, thread_name_prefix="session-switch")
        self._jobs = Jobs(lambda job: self._tell(events.Busy(job)))

    # ── what a user does ─────────────────────────────────────────────────────────────────
    def load(self, layout: Layout) -> Future[Loaded]:
        """Load a layout; the one that serves goes on serving, or comes back, if it fails."""
        return self._switch_to("load", lambda: layout)

    def resplit(self, split: Split) -> Future[Loaded]:
        """Give the running layout another split, keeping the conversation."""
        return self._changed(lambda layout: msgspec.structs.replace(layout, split=split))

    def set_context(self, context: Context) -> Future[Loaded]:
        """Give the running layout other context settings, keeping weights and conversation."""
        return self._changed(lambda layout: msgspec.structs.replace(layout, context=context))

    def go_to(self, index: int) -> Future[Loaded]:
        """Load a line of the history again. LookupError where there is none."""

        def line() -> Layout:
            if not 0 <= index < len(self.history):
                raise LookupError("there is no earlier layout" if index < 0 else "there is no later layout")
            return self.history[index].layout

        return self._switch_to("resplit", line)

    def go_back(self) -> Future[Loaded]:
        """Load the layout before this one in the history. LookupError where there was none."""
        return self.go_to(self.position - 1)

    def go_forward(self) -> Future[Loaded]:
        """Load the layout after this one in the history. LookupError where there is none."""
        return self.go_to(self.position + 1)

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
        """Stop what runs; a reply keeps its text. Without a reply a load ends, and what served serves on."""
        acting, switching = self._acting, self._switching
        if acting is not None:
            acting.cancel()
        elif switching is not None:
            switching.cancel()

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
        self._closing = True
        self._jobs.drop("prompt")
        self._jobs.drop("probe")
        if self._switching is not None:
            self._switching.cancel()
        if self._acting is not None:
            self._acting.cancel()
        self._switches.shutdown(cancel_futures=True)
        self._jobs.close()
        if self._serving is not None:
            self._serving.engine.close()
            self._serving = None
        if self._journal is not None:
            self._journal.close()

    # ── loading ──────────────────────────────────────────────────────────────────────────
    def _switch_to(self, why: str, change: Callable[[], Layout]) -> Future[Loaded]:
        """Queue a switch; one that is still loading makes room for it."""
        switching = self._switching
        if switching is not None:
            switching.cancel()
        self._give_way()
        return self._switches.submit(self._switch, why, change)

    def _changed(self, change: Callable[[Layout], Layout]) -> Future[Loaded]:
        return self._switch_to("resplit", lambda: change(self._layout()))

    def _layout(self) -> Layout:
        if self.layout is None:
            raise LookupError("no layout is loaded")
        return self.layout

    def _switch(self, why: str, change: Callable[[], Layout]) -> Loaded:
        """Make a layout serve; in a thread of its own, so that the chat goes on where it can."""
        switch = None
        try:
            layout = change()
            switch = self._switching = Switch(self._kit, layout, why, self._tell, self._died)
            serving = self._serving
            strategy = switch.strategy(serving)
            if strategy == "beside" and serving is not None:
                following = switch.load_beside(serving, self._carries(layout))
                return self._jobs.submit(Right.LOAD, "handover", lambda: self._hand_over(switch, following)).result()
            return self._jobs.submit(Right.LOAD, why, lambda: self._replace(switch)).result()
        except Exception as error:
            self._complain(error)
            if switch is not None:
                self._tell(events.LoadEnded(switch.layout))
            raise
        finally:
            self._switching = None

    def _carries(self, layout: Layout) -> bool:
        """Whether there is a conversation whose state the layout's engine may take over."""
        return bool(self.conversation.turns) and self.layout is not None and self.layout.model == layout.model

    def _hand_over(self, switch: Switch, following: Serving) -> Loaded:
        silent_s = 0.0
        try:
            if self._serving is not None:
                silent_s = switch.hand_over(self._serving, following, self._carries(following.layout))
        except EngineError:
            following.engine.close()
            raise
        return self._serve(following, "beside", silent_s)

    def _replace(self, switch: Switch) -> Loaded:
        serving = self._serving
        if serving is None:
            following, silent_s = switch.first()
            return self._serve(following, "first", silent_s)
        carries = self._carries(switch.layout)
        try:
            if switch.keeps_weights(serving):
                self._serving = None
                following, silent_s = switch.new_context(serving, carries)
                return self._serve(following, "context", silent_s)
            following, silent_s = switch.in_turn(serving, carries, self._nothing_serves)
            return self._serve(following, "in turn", silent_s)
        except EngineError as error:
            if self._serving is None:
                self._complain(error)
                serving.engine.close()
                self._bring_back(serving, "rollback", switch.state)
            raise
        finally:
            switch.forget()

    def _nothing_serves(self) -> None:
        self._serving = None

    def _bring_back(self, lost: Serving, why: str, state: SavedState | None = None) -> None:
        """Load the last good layout anew; that it fails is said, not raised. No cancel stops it."""
        switch = Switch(self._kit, lost.layout, why, self._tell, self._died)
        try:
            following, silent_s = switch.first(state, lost.loaded)
        except Exception as error:
            self._complain(error)
            self._tell(events.LoadEnded(lost.layout))
        else:
            self._serve(following, "first", silent_s, comes_back=True)

    def _serve(
        self, following: Serving, strategy: events.Strategy, silent_s: float, *, comes_back: bool = False
    ) -> Loaded:
        layout, loaded = following.layout, following.loaded
        before = self.history[self.position] if self.history and not comes_back else None
        self._serving, self._lost = following, following
        self.layout, self.loaded = layout, loaded
        if not comes_back:
            self._remember(layout, loaded)
            self._note(LayoutServes(layout))
        self._tell(events.LayoutLoaded(layout, loaded, strategy, silent_s))
        if loaded.template_is_fallback:
            self._tell(events.Notice(f"The model has no chat template; {loaded.template} is used."))
        for warning in loaded.warnings:
            self._tell(events.Notice(warning))
        self._jobs.drop("probe")
        self._jobs.submit(Right.PROBE, "probe", lambda: self._probe(before))
        return loaded

    def _remember(self, layout: Layout, loaded: Loaded) -> None:
        """Put the layout into the history, in its old place where it was gone back to."""
        measurement = events.Measurement(layout=layout, label=layout.split.label(), cards=loaded.cards)
        at = next((i for i, tried in enumerate(self.history) if tried.layout == layout), len(self.history))
        self.history = (*self.history[:at], measurement, *self.history[at + 1 :])
        self.position = at

    # ── prompts ──────────────────────────────────────────────────────────────────────────
    def _ask(self, prompt: str, sampling: Sampling) -> Turn:
        if self._serving is None and self._lost is not None:
            self._bring_back(self._lost, "respawn")
        if self._serving is None:
            self._tell(events.PromptReturned(prompt, "no model is loaded"))
            raise LookupError("no model is loaded")
        index = len(self.conversation.turns)
        self._tell(events.TurnStarted(index, prompt))
        self._note(TurnBegun(index, prompt))
        try:
            turn = self._answer(self._serving, prompt, sampling)
            if turn.stop_reason == "died" and not turn.reply and self._serving is not None:
                # Nothing was said yet, so nothing is lost by asking once more.
                turn = self._answer(self._serving, prompt, sampling)
        except PromptTooLong as error:
            self._give_back(prompt, None)
            self._tell(events.ContextFull(error.n_ctx, error.prompt_tokens, prompt))
            raise
        except EngineError as error:
            self._give_back(prompt, error.reason)
            self._complain(error)
            raise
        if turn.stop_reason in ("cancelled", "died") and not turn.reply:
            self._give_back(prompt, f"{turn.stop_reason} before the first token")
            return turn
        self.conversation = self.conversation.with_turn(turn)
        self._note(TurnEnded(index, turn))
        self._tell(events.TurnDone(index, turn))
        if turn.stop_reason == "context_full" and self.loaded is not None:
            self._tell(events.ContextFull(self.loaded.n_ctx, None, None))
        return turn

    def _answer(self, serving: Serving, prompt: str, sampling: Sampling) -> Turn:
        """One reply. An engine that dies is brought back; its turn ends as `died` with what was said."""
        label = serving.layout.split.label()
        request = Request(messages=self.conversation.messages(prompt), sampling=sampling)
        try:
            reply = self._call(serving.engine, lambda: serving.engine.chat(request, self._hear))
        except EngineDied as error:
            self._lose(serving.engine, error)
            return Turn(prompt=prompt, reply=error.partial, stop_reason="died", split=label)
        return Turn(prompt=prompt, reply=reply.text, stop_reason=reply.stop_reason, timing=reply.timing, split=label)

    def _hear(self, text: str) -> None:
        self._tell(events.TurnText(text))
        self._note(TextArrived(text))

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
        serving = self._serving
        if serving is None or not self.history:
            return None
        self._preempted = False
        try:
            probe = self._call(serving.engine, serving.engine.probe)
        except EngineDied as error:
            self._lose(serving.engine, error)
            return None
        except EngineError as error:
            self._tell(events.Notice(error.reason))
            return None
        if probe is None:
            if self._preempted:
                self._jobs.submit(Right.PROBE, "probe", lambda: self._probe(before))
            return None
        at = self.position
        after = msgspec.structs.replace(self.history[at], probe=probe)
        self.history = (*self.history[:at], after, *self.history[at + 1 :])
        self._note(SplitTried(layout=after.layout, cards=after.cards, probe=probe))
        self._tell(events.ProbeDone(after))
        if before is not None and before.layout != after.layout:
            self._tell(events.Changed(before=before, after=after))
        return probe

    # ── trouble ──────────────────────────────────────────────────────────────────────────
    def _died(self, engine: Engine, error: EngineDied) -> None:
        """An engine ended; called from its own thread. A running call hears of it by itself."""
        self._jobs.submit(Right.LOAD, "restore", lambda: self._lose(engine, error))

    def _lose(self, engine: Engine, error: EngineDied) -> None:
        serving = self._serving
        if serving is None or serving.engine is not engine:
            return
        self._serving = None
        self._complain(error)
        engine.close()
        if not self._closing:
            self._bring_back(serving, "respawn")

    def _complain(self, error: Exception) -> None:
        if error is self._told:
            return
        self._told = error
        if isinstance(error, LoadCancelled):
            self._tell(events.Notice("The load was cancelled."))
            return
        serving = self._serving.layout.split.label() if self._serving is not None else None
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
