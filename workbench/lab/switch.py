"""From one layout to another: beside, in turn, or with a new context only."""

import time
from collections.abc import Callable

import msgspec

from workbench.domain.forecast import CardAccount
from workbench.domain.layout import Layout
from workbench.engines.engine import (
    Engine,
    EngineDied,
    EngineError,
    LoadCancelled,
    Loaded,
    LoadProgress,
    SavedState,
    StateRefused,
)
from workbench.lab import events
from workbench.lab.aside import Aside, size_of_state
from workbench.lab.kit import Kit
from workbench.lab.rooms import Running

MEANWHILE = 1024
"""So many tokens may a reply add while another engine loads; more of them take longer to hand over."""


class Serving(msgspec.Struct, frozen=True):
    """An engine with what it serves."""

    engine: Engine
    layout: Layout
    loaded: Loaded
    accounts: tuple[CardAccount, ...] = ()

    @property
    def running(self) -> Running:
        """For forecasts."""
        return Running(self.layout, self.loaded)


class Switch:
    """One change of layout. `cancel` may be called from any thread; the rest from one at a time."""

    def __init__(
        self,
        kit: Kit,
        layout: Layout,
        why: str,
        tell: Callable[[events.SessionEvent], None],
        on_death: Callable[[Engine, EngineDied], None],
    ) -> None:
        self.layout = layout
        self.why = why
        self.cancelled = False
        self.state: SavedState | None = None
        """The conversation's state while it is between two engines, until `forget`."""
        self._aside: Aside | None = None
        self._expecting: tuple[Engine, ...] = ()
        self._kit = kit
        self._tell = tell
        self._on_death = on_death
        self._loading: Engine | None = None

    def strategy(self, serving: Serving | None) -> events.Strategy:
        """How this change can go. Asks the forecast, which takes a moment."""
        if serving is None:
            return "first"
        if self.keeps_weights(serving):
            return "context"
        return "beside" if self._kit.stand_beside(serving.layout, serving.loaded, self.layout) else "in turn"

    def keeps_weights(self, serving: Serving) -> bool:
        """Whether only context settings change; a server loads anew for them, or refuses them when it is opened."""
        before, after = serving.layout, self.layout
        if after.served_by is not None:
            return False
        same = msgspec.structs.replace(after, context=before.context, name=before.name) == before
        return same and before.context != after.context

    # ── beside ───────────────────────────────────────────────────────────────────────────
    def load_beside(self, serving: Serving, carried: int) -> Serving:
        """Load while the old engine answers. Raises what opening and loading raise."""
        self._tell(events.LoadStarted(self.layout, self.why, "beside"))
        engine = self._open(serving.loaded if carried else None, beside=len(serving.loaded.card_processes))
        if carried:
            self._make_room(serving, carried + MEANWHILE, serving.engine, engine)
        try:
            return self._load(engine)
        except BaseException:
            self.forget()
            raise

    def hand_over(self, serving: Serving, following: Serving, carried: int) -> float:
        """Give the conversation's state to the new engine and end the old one; seconds without an answer."""
        begun = time.monotonic()
        if carried:
            self.put_aside(serving, carried)
        self._restore(following.engine, self.state)
        silent_s = time.monotonic() - begun
        serving.engine.close()
        return silent_s

    # ── in turn ──────────────────────────────────────────────────────────────────────────
    def in_turn(self, serving: Serving, carried: int, ended: Callable[[], None]) -> tuple[Serving, float]:
        """End the old engine, load, take the state over; the new one and seconds without an answer.

        `ended` is called when the old engine is gone: whatever is raised afterwards leaves nothing
        serving, and `state` then holds the conversation for the way back.
        """
        self._tell(events.LoadStarted(self.layout, self.why, "in turn"))
        engine = self._open(serving.loaded if carried else None)
        if carried:
            self._make_room(serving, carried, engine)
        begun = time.monotonic()
        if carried:
            self.put_aside(serving, carried)
        serving.engine.close()
        ended()
        return self._load_with(engine, self.state), time.monotonic() - begun

    # ── first ────────────────────────────────────────────────────────────────────────────
    def first(self, state: SavedState | None = None, like: Loaded | None = None) -> tuple[Serving, float]:
        """Load where nothing serves; `like` pins flash attention to what `state` was made with."""
        self._tell(events.LoadStarted(self.layout, self.why, "first"))
        begun = time.monotonic()
        engine = self._open(like if state else None)
        return self._load_with(engine, state), time.monotonic() - begun

    # ── context only ─────────────────────────────────────────────────────────────────────
    def new_context(self, serving: Serving, carried: int) -> tuple[Serving, float]:
        """Keep the weights. What it raises leaves the engine of no more use."""
        self._tell(events.LoadStarted(self.layout, self.why, "context"))
        if carried:
            self._make_room(serving, carried)
        begun = time.monotonic()
        if carried:
            self.put_aside(serving, carried)
        context = _pinned(self.layout, serving.loaded if self.state else None).context
        loaded = serving.engine.new_context(context)
        self._restore(serving.engine, self.state)
        return Serving(serving.engine, self.layout, loaded), time.monotonic() - begun

    def put_aside(self, serving: Serving, carried: int) -> None:
        """Keep the conversation's state, of so many tokens, in `state`; where it cannot be kept, that is said."""
        try:
            if self._aside is None:
                self._aside = self._kit.aside(size_of_state(serving.loaded, carried))
            self.state = serving.engine.save_state(self._aside.path)
        except (EngineError, OSError) as error:
            reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            self._tell(events.Notice(f"The conversation will be evaluated again: {reason}."))

    def forget(self) -> None:
        """Let go of what is left of the state."""
        aside, self._aside, self.state = self._aside, None, None
        if aside is not None:
            for engine in self._expecting:
                engine.expect_state(aside.path, 0)
            aside.close()

    def cancel(self) -> None:
        """Stop loading; the load raises LoadCancelled."""
        self.cancelled = True
        loading = self._loading
        if loading is not None:
            loading.cancel()

    def _open(self, like: Loaded | None, beside: int = 0) -> Engine:
        opened: list[Engine] = []

        def died(error: EngineDied) -> None:
            if opened:
                self._on_death(opened[0], error)

        engine = self._kit.open_engine(_pinned(self.layout, like), died, beside)
        opened.append(engine)
        return engine

    def _load(self, engine: Engine) -> Serving:
        self._loading = engine
        loaded: Loaded | None = None
        foresight = self._kit.foresight
        try:
            if self.cancelled:
                raise LoadCancelled("the load was cancelled")
            foresight.before_load(self.layout)
            try:
                loaded = engine.load(self._progress)
            finally:
                accounts = foresight.after_load(self.layout, loaded)
        except BaseException:
            engine.close()
            raise
        finally:
            self._loading = None
        return Serving(engine, self.layout, loaded, accounts)

    def _load_with(self, engine: Engine, state: SavedState | None) -> Serving:
        following = self._load(engine)
        try:
            self._restore(engine, state)
        except BaseException:
            engine.close()
            raise
        return following

    def _progress(self, progress: LoadProgress) -> None:
        if self.cancelled and self._loading is not None:
            self._loading.cancel()
        self._tell(events.LoadMoved(progress.fraction, progress.stage))

    def _make_room(self, serving: Serving, carried: int, *engines: Engine) -> None:
        """While the old engine answers: memory that is there already, also for `engines`, takes a state sooner."""
        size = size_of_state(serving.loaded, carried)
        try:
            self._aside = self._kit.aside(size)
        except OSError:
            return  # it is tried again when it is needed, and said then
        if self._aside.in_memory:
            self._expecting = engines
            for engine in engines:
                engine.expect_state(self._aside.path, size)

    def _restore(self, engine: Engine, state: SavedState | None) -> None:
        if state is None:
            return
        try:
            engine.restore_state(state)
        except StateRefused as error:
            self._tell(events.Notice(f"The conversation will be evaluated again: {error.reason}."))


def _pinned(layout: Layout, like: Loaded | None) -> Layout:
    """The same with flash attention as `like` has it: a state fits no other setting."""
    if like is None or like.flash_attn is None or layout.context.flash_attn != "auto":
        return layout
    return msgspec.structs.replace(layout, context=msgspec.structs.replace(layout.context, flash_attn=like.flash_attn))
