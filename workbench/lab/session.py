"""One live engine with its layout and conversation."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from workbench.domain.conversation import Conversation, Sampling, Turn, whole_characters
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
    ReplyBroken,
    Request,
    SavedState,
)
from workbench.lab import events
from workbench.lab.acting import Acting
from workbench.lab.history import History
from workbench.lab.jobs import Jobs, Right, done, failed, pass_on
from workbench.lab.kit import Kit
from workbench.lab.switch import Serving, Switch
from workbench.lab.voice import Listener, Voice
from workbench.lab.wishes import Wishes
from workbench.store import journal as notes


class Session:
    """Load, chat, re-split, go back. Each call queues a job and returns its future at once.

    The listener is called from the session's threads, one event at a time, in order. What a
    job raises arrives in its future and, as a Problem, at the listener.
    """

    def __init__(self, kit: Kit, listener: Listener, *, journal: notes.Journal | None = None) -> None:
        self._kit = kit
        self._voice = Voice(listener, journal)
        self._serving: Serving | None = None
        self._lost: Serving | None = None
        """What served last, to be brought back."""
        self._switching: Switch | None = None
        self.wishes = Wishes()
        self._decided = done()
        """Whether the last switch has found its place before the prompts that follow."""
        self._parked: Switch | None = None
        """Holds the state of the conversation while the session is parked."""
        self._closing = False
        self._acting = Acting()
        self._preempted = False
        self.sampling = Sampling()
        self.layout: Layout | None = None
        self.layout_before: Layout | None = None
        """What served before this layout, to compare it with."""
        self.loaded: Loaded | None = None
        self.conversation = Conversation()
        self._history = History()
        self._switches = ThreadPoolExecutor(1, thread_name_prefix="session-switch")
        self._jobs = Jobs(lambda job: self._voice.tell(events.Busy(job)))

    @property
    def history(self) -> tuple[events.Measurement, ...]:
        """Every layout that served, in the order of its first load, with what it did."""
        return self._history.lines

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
        """Load a line of the history again. LookupError where there is none: what loads goes on."""
        try:
            layout = self._history.layout_at(index)
        except LookupError as error:
            self._complain(error)
            return failed(error)
        return self._switch_to("resplit", lambda: layout)

    def go_back(self) -> Future[Loaded]:
        """Load the layout before this one in the history. LookupError where there was none."""
        return self.go_to(self._history.position - 1)

    def go_forward(self) -> Future[Loaded]:
        """Load the layout after this one in the history. LookupError where there is none."""
        return self.go_to(self._history.position + 1)

    def send(self, prompt: str, sampling: Sampling | None = None, images: tuple[str, ...] = ()) -> Future[Turn]:
        """Ask, with image files where the engine reads them; the turn is what was said, whatever ended it."""
        prompt = whole_characters(prompt)
        return self._queue(lambda: self._ask(prompt, sampling or self.sampling, images))

    def resend(self, index: int, prompt: str) -> Future[Turn]:
        """Forget turn `index` and all later ones, and ask anew from there."""
        prompt = whole_characters(prompt)

        def again() -> Turn:
            before = self.conversation
            images = before.turns[index].images if index < len(before.turns) else ()
            self._set_conversation(before.upto(index))
            try:
                return self._ask(prompt, self.sampling, images)
            finally:
                if len(self.conversation.turns) <= index:  # nothing came of it: nothing is forgotten
                    self._set_conversation(before)

        return self._queue(again)

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

    def park(self) -> Future[None]:
        """Free every card: the conversation's state is put aside, the engine and what stands by end."""
        return self._switches.submit(lambda: self._jobs.submit(Right.LOAD, "park", self._park).result())

    def unpark(self) -> Future[None]:
        """Bring back what was parked."""
        return self._switches.submit(lambda: self._jobs.submit(Right.LOAD, "unpark", self._unpark).result())

    def cancel(self) -> None:
        """Stop what runs; a reply keeps its text. Without a reply a load ends, and what served serves on."""
        switching = self._switching
        goes_on = switching is None or self._jobs.running == "prompt"
        if not (goes_on and self._acting.cancel()):
            self.wishes.drop()
            if switching is not None:
                switching.cancel()

    def close(self) -> None:
        """End everything; memory is free when this returns."""
        self._closing = True
        self.wishes.drop()
        self._jobs.drop("prompt")
        self._jobs.drop("probe")
        if self._switching is not None:
            self._switching.cancel()
        self._acting.end()
        self._switches.shutdown(cancel_futures=True)
        self._jobs.close()
        if self._serving is not None:
            self._serving.engine.close()
            self._serving = None
        if self._parked is not None:
            self._parked.forget()
        self._voice.close()

    # ── loading ──────────────────────────────────────────────────────────────────────────
    def _switch_to(self, why: str, change: Callable[[], Layout]) -> Future[Loaded]:
        """Queue a switch; those that are still loading or waiting make room for it."""
        number = self.wishes.ask()
        switching = self._switching
        if switching is not None:
            switching.cancel()
        self._give_way()
        decided = self._decided = Future()
        return self._switches.submit(self._switch, number, why, change, decided)

    def _changed(self, change: Callable[[Layout], Layout]) -> Future[Loaded]:
        def changed() -> Layout:
            if self.layout is None:
                raise LookupError("no layout is loaded")
            return change(self.layout)

        return self._switch_to("resplit", changed)

    def _switch(self, number: int, why: str, change: Callable[[], Layout], decided: Future[None]) -> Loaded:
        """Make a layout serve; in a thread of its own, so that the chat goes on where it can.

        `decided` is done when prompts may be queued: the old engine goes on, or the load is ahead.
        """
        switch = None
        try:
            self.wishes.check(number)
            serving = self._serving
            layout = self._kit.foresight.resolve(change(), serving.running if serving else None)
            switch = self._switching = Switch(self._kit, layout, why, self._voice.tell, self._died)
            self.wishes.check(number)
            strategy = switch.strategy(serving)
            if strategy == "beside" and serving is not None:
                decided.set_result(None)
                following = switch.load_beside(serving, self._carried(layout))
                if self._jobs.running == "prompt":
                    self._voice.tell(events.LoadWaits(layout))
                return self._jobs.submit(Right.LOAD, "handover", lambda: self._hand_over(switch, following)).result()
            loading = self._jobs.submit(Right.LOAD, why, lambda: self._replace(switch))
            decided.set_result(None)
            return loading.result()
        except Exception as error:
            overtaken = isinstance(error, LoadCancelled) and self.wishes.overtaken(number)
            if not overtaken:
                self._complain(error)
            if switch is not None:
                self._voice.tell(events.LoadEnded(switch.layout))
                self._suggest(switch.layout, error)
            raise
        finally:
            self._switching = None
            self.wishes.settle(number)
            if not decided.done():
                decided.set_result(None)

    def _carried(self, layout: Layout) -> int:
        """Of how many tokens, about, the conversation is whose state the layout's engine may take over; 0 for none."""
        return self.conversation.tokens if self.layout is not None and self.layout.model == layout.model else 0

    def _hand_over(self, switch: Switch, following: Serving) -> Loaded:
        silent_s = 0.0
        try:
            if self._serving is not None:
                silent_s = switch.hand_over(self._serving, following, self._carried(following.layout))
        except BaseException:
            following.engine.close()
            raise
        finally:
            switch.forget()
        return self._serve(following, silent_s, "beside")

    def _replace(self, switch: Switch) -> Loaded:
        serving = self._serving
        if serving is None:
            return self._serve(*switch.first(), "first")
        carried = self._carried(switch.layout)
        try:
            if switch.keeps_weights(serving):
                self._serving = None
                return self._serve(*switch.new_context(serving, carried), "context")
            return self._serve(*switch.in_turn(serving, carried, self._nothing_serves), "in turn")
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
        switch = Switch(self._kit, lost.layout, why, self._voice.tell, self._died)
        try:
            following, silent_s = switch.first(state, lost.loaded)
        except Exception as error:
            self._complain(error)
            self._voice.tell(events.LoadEnded(lost.layout))
        else:
            self._serve(following, silent_s, "first", comes_back=True)

    def _park(self) -> None:
        serving = self._serving
        if serving is None:
            return
        self._jobs.drop("probe")
        carried = self._carried(serving.layout)
        self._parked = Switch(self._kit, serving.layout, "unpark", self._voice.tell, self._died)
        if carried:
            self._parked.put_aside(serving, carried)
        self._serving = None
        serving.engine.close()
        self._kit.rest()

    def _unpark(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None:
            if self._serving is None and self._lost is not None:
                self._bring_back(self._lost, "unpark", parked.state)
            parked.forget()

    def _serve(
        self, following: Serving, silent_s: float, strategy: events.Strategy, *, comes_back: bool = False
    ) -> Loaded:
        layout, loaded = following.layout, following.loaded
        before = None if comes_back else self._history.now
        if before is not None and before.layout != layout:
            self.layout_before = before.layout
        self._serving, self._lost = following, following
        self.layout, self.loaded = layout, loaded
        if not comes_back:
            self._history.served(layout, loaded)
            self._voice.note(notes.LayoutServes(layout))
        served = events.LayoutLoaded(layout, loaded, strategy, silent_s, following.accounts)
        self._voice.serves(served, self._kit.foresight.misplaced(layout, loaded))
        self._jobs.drop("probe")
        if not comes_back:  # an engine that a probe brings down would come back and go down for ever
            self._jobs.submit(Right.PROBE, "probe", lambda: self._probe(before))
        return loaded

    # ── prompts ──────────────────────────────────────────────────────────────────────────
    def _queue(self, work: Callable[[], Turn]) -> Future[Turn]:
        """Queue a prompt, behind a switch that was asked for before it."""
        self._give_way()
        turn: Future[Turn] = Future()

        def submit(_: Future[None]) -> None:
            self._jobs.submit(Right.PROMPT, "prompt", work).add_done_callback(lambda ended: pass_on(ended, turn))

        self._decided.add_done_callback(submit)
        return turn

    def _ask(self, prompt: str, sampling: Sampling, images: tuple[str, ...]) -> Turn:
        if self._serving is None and self._lost is not None and self._parked is None:
            self._bring_back(self._lost, "respawn")
        if self._serving is None:
            why = "no model is loaded" if self._parked is None else "the session is parked while an A/B runs"
            self._voice.tell(events.PromptReturned(prompt, why))
            raise LookupError(why)
        index = len(self.conversation.turns)
        self._voice.tell(events.TurnStarted(index, prompt))
        self._voice.note(notes.TurnBegun(index, prompt))
        try:
            turn = self._answer(self._serving, prompt, sampling, images)
            lost = turn.stop_reason == "died" and not turn.reply and not self._acting.cancelled
            if lost and self._serving is not None:  # nothing was said yet: nothing is lost by asking once more
                turn = self._answer(self._serving, prompt, sampling, images)
        except PromptTooLong as error:
            self._give_back(prompt, None)
            self._voice.tell(events.ContextFull(error.n_ctx, error.prompt_tokens, prompt))
            raise
        except EngineError as error:
            self._give_back(prompt, error.reason)
            self._complain(error)
            raise
        if turn.stop_reason in ("cancelled", "died") and not turn.reply:
            self._give_back(prompt, f"{turn.stop_reason} before the first token")
            return turn
        self.conversation = self.conversation.with_turn(turn)
        self._voice.note(notes.TurnEnded(index, turn))
        self._voice.tell(events.TurnDone(index, turn))
        if turn.stop_reason == "context_full" and self.loaded is not None:
            self._voice.tell(events.ContextFull(self.loaded.n_ctx, None, None))
        return turn

    def _answer(self, serving: Serving, prompt: str, sampling: Sampling, images: tuple[str, ...]) -> Turn:
        """One reply. An engine that dies is brought back; a turn that breaks off is `died` with what was said."""
        turn = Turn(prompt=prompt, images=images, reply="", stop_reason="died", split=serving.layout.label())
        request = Request(messages=self.conversation.messages(prompt, images), sampling=sampling)
        try:
            reply = self._acting.call(serving.engine, lambda: serving.engine.chat(request, self._hear))
        except (EngineDied, ReplyBroken) as error:
            if isinstance(error, EngineDied):
                self._lose(serving.engine, error)
            else:
                self._complain(error)
            return msgspec.structs.replace(turn, reply=error.partial)
        if reply.caveat:
            self._voice.tell(events.Notice(f"This reply's figures: {reply.caveat}."))
        return msgspec.structs.replace(turn, reply=reply.text, stop_reason=reply.stop_reason, timing=reply.timing)

    def _hear(self, text: str) -> None:
        self._voice.tell(events.TurnText(text))
        self._voice.note(notes.TextArrived(text))

    def _give_back(self, prompt: str, why: str | None) -> None:
        self._voice.note(notes.ConversationSet(self.conversation))
        if why is not None:
            self._voice.tell(events.PromptReturned(prompt, why))

    def _edit(self, edit: Callable[[Conversation], Conversation]) -> Future[None]:
        return self._jobs.submit(Right.PROMPT, "edit", lambda: self._set_conversation(edit(self.conversation)))

    def _set_conversation(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self._voice.note(notes.ConversationSet(conversation))
        self._voice.tell(events.ConversationChanged(conversation))

    # ── the probe ────────────────────────────────────────────────────────────────────────
    def _give_way(self) -> None:
        """A probe that runs makes room; it runs again afterwards."""
        if self._jobs.running == "probe":
            self._preempted = True
            self._acting.cancel()

    def _probe(self, before: events.Measurement | None) -> Probe | None:
        serving = self._serving
        if serving is None:
            return None
        self._preempted = False
        try:
            probe = self._acting.call(serving.engine, serving.engine.probe)
        except EngineDied as error:
            self._lose(serving.engine, error)
            return None
        except EngineError as error:
            self._voice.tell(events.Notice(error.reason))
            return None
        if probe is None:
            if self._preempted:
                self._jobs.submit(Right.PROBE, "probe", lambda: self._probe(before))
            return None
        after = self._history.probed(probe)
        self._voice.note(notes.SplitTried(layout=after.layout, cards=after.cards, probe=probe))
        self._voice.tell(events.ProbeDone(after))
        if before is not None and before.layout != after.layout:
            self._voice.tell(events.Changed(before=before, after=after))
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
            self._switches.submit(self._suggest, serving.layout, error)

    def _suggest(self, layout: Layout, error: Exception) -> None:
        """Where memory ended, find what fits; in the switches' thread, since it takes a while."""
        running = self._serving.running if self._serving else None
        found = None if self._closing else self._kit.foresight.after(error, layout, running)
        if found is not None:
            self._voice.tell(events.Suggestion(*found))

    def _complain(self, error: Exception) -> None:
        self._voice.complain(error, self._serving.layout if self._serving is not None else None)
