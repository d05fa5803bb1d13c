"""The app: session events go to the panes, what the panes ask for goes to the session."""

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import RenderableType
from textual import on, work
from textual.app import SystemCommand
from textual.events import Resize
from textual.filter import Monochrome
from textual.screen import Screen

from workbench.app.abilities import ascii_only, encoding
from workbench.app.actions import Actions
from workbench.app.guard import Guard
from workbench.app.hearing import Hearing
from workbench.app.inbox import Inbox
from workbench.app.keymap import Keymap, bindings
from workbench.app.memory import HINT_S, HINTS, Memory
from workbench.app.messages import (
    Accounted,
    CardsFound,
    DraftChanged,
    Forecasted,
    Metered,
    NoticeShown,
    PromptSubmitted,
    Remember,
    ScreenReady,
    SessionSpoke,
    SplitApplied,
)
from workbench.app.outside import Meters, Outside
from workbench.app.palette import commands
from workbench.app.panes.small import is_too_small
from workbench.app.plain import Plain
from workbench.app.screens.context import ContextScreen
from workbench.app.screens.context_full import ContextFullScreen, WayOn, take
from workbench.app.screens.main import MainScreen
from workbench.app.screens.said import Said
from workbench.app.terminal import Terminal
from workbench.app.theme import THEMES, NoColours, default_theme
from workbench.app.widths import SureWidths
from workbench.domain.conversation import Conversation
from workbench.domain.duty import Duty
from workbench.domain.layout import Layout
from workbench.lab import events
from workbench.lab.forecast import Answer
from workbench.lab.rooms import Running
from workbench.lab.session import Session
from workbench.meters.sample import Snapshot

DRAW_EVERY_S = 0.1
"""How often the text of a reply is drawn."""


class WorkbenchApp(Actions, inherit_bindings=False):
    """Routes; the panes draw and the session works."""

    BINDINGS = bindings("app")

    CSS_PATH = "theme.tcss"
    TITLE = "workbench"
    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        make_session: Callable[[Callable[[events.SessionEvent], None]], Session],
        outside: Outside,
        *,
        first: Layout | None = None,
        conversation: Conversation | None = None,
        pick_model: bool = False,
        keymap: Keymap | None = None,
        memory: Memory | None = None,
        troubles: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._filters.insert(0, Guard())
        self.keymap_in_use = keymap or Keymap()
        self.set_keymap(self.keymap_in_use.own)
        for theme in THEMES:
            self.register_theme(theme)
        self.memory = memory or Memory()
        self._troubles = troubles
        self.theme = self._first_theme()
        # Textual makes black and white of the terminal's own colours, which then are black on black.
        plain = NoColours(lambda: self.theme_variables["block-cursor-background"])
        self._filters = [plain if isinstance(filter, Monochrome) else filter for filter in self._filters]
        self._filters.append(SureWidths())
        if ascii_only(os.environ):
            self._filters.append(Plain(encoding(os.environ)))
        self._inbox = Inbox(self._wake)
        self._meters: Meters | None = None
        self.session = make_session(self._listen)
        self.outside = outside
        self._first = first
        self._conversation = conversation
        self._pick_model = pick_model
        self.said: list[Said] = []

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        """Draw; not for a link that stands still, which is drawn all anew once it takes something again."""
        if not (isinstance(self._driver, Terminal) and self._driver.behind):
            super()._display(screen, renderable)

    def get_default_screen(self) -> Screen[None]:
        """The one screen; dialogs lie over it."""
        return MainScreen(self.keymap_in_use.words(self.outside.hint))

    def on_mount(self) -> None:
        """Hear the session."""
        drawing = self.set_interval(DRAW_EVERY_S, self._wake, pause=True)
        self.hearing = Hearing(self.main, self.session, self.outside, drawing, self._say, self._context_full)

        self.theme_changed_signal.subscribe(self, lambda theme: self._keep(theme=theme.name))

    def _first_theme(self) -> str:
        """What the environment says, else what was chosen last, else what fits the terminal."""
        chosen = self.memory.state.theme
        if os.environ.get("TEXTUAL_THEME") or chosen not in self.available_themes:
            return default_theme()
        return str(chosen)

    @on(ScreenReady)
    def _begin(self) -> None:
        for trouble in self._troubles:
            self.say(trouble, problem=True)
        self.main.restore(self.memory.state)
        self.outside.when_ready()
        self._meters = self.outside.start_meters(self._take_snapshot, self._take_duty)
        self.main.cards.wire(self._meters, self.outside)
        self.drafts = self.outside.start_forecasts(self._take_forecast)
        self._find_cards()
        if self._conversation is not None and self._conversation.turns:
            self.session.restore(self._conversation)
        if self._first is not None:
            self.session.load(self._first)
        elif self._pick_model:
            self.action_models()

    def _listen(self, event: events.SessionEvent) -> None:
        """On the session's threads: the meters first, for what they tell is of this moment."""
        if self._meters is not None:
            self._meters.hear(event)
        self._inbox(event)

    def _wake(self) -> None:
        self.post_message(SessionSpoke())

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        self.post_message(Metered(snapshot))

    def _take_duty(self, duty: Duty) -> None:
        self.post_message(Accounted(duty))

    def _take_forecast(self, layout: Layout, answer: Answer) -> None:
        self.post_message(Forecasted(layout, answer))

    @work(thread=True)
    def _find_cards(self) -> None:
        self.post_message(CardsFound(self.outside.find_cards()))

    @on(CardsFound)
    def _cards_found(self, event: CardsFound) -> None:
        if self._over:
            return
        self.hearing.show_cards(event.found.cards)
        self.main.header.warning = event.found.warning
        if event.found.advice is not None and self._first is None:
            self.say(event.found.advice)

    @on(Remember)
    def _remember(self, event: Remember) -> None:
        self._keep(**event.choice)

    def _keep(self, **choice: Any) -> None:
        trouble = self.memory.keep(**choice)
        if trouble and not self._over:
            self.say(trouble)

    def on_descendant_focus(self) -> None:
        """The split editor is explained once."""
        if not self._over and self.main.where == "split" and self.main.split.current is not None:
            self._hint("split")

    def _hint(self, name: str) -> None:
        """Say it, if it never was and nothing else is said now."""
        if self.memory.due(name) and not self.main.status.display:
            hint = self.keymap_in_use.words(HINTS[name])
            self.say(hint)
            self.memory.shown(name)
            self.set_timer(HINT_S, lambda: self.main.status.forget(hint))

    def exit(self, *args: Any, **kwargs: Any) -> None:
        """End, remembering what was not sent."""
        if not self._over and isinstance(self.screen_stack[0], MainScreen) and self.main.is_mounted:
            self._keep(**self.main.state)
        super().exit(*args, **kwargs)

    def on_resize(self, event: Resize) -> None:
        """Below the smallest size there is one sentence. All is drawn anew: the terminal may have cut it meanwhile."""
        self.set_class(is_too_small(event.size), "-too-small")
        self.refresh()

    def on_unmount(self) -> None:
        """End a run that is on, the meters and the forecasts; whoever made the session closes it."""
        self.outside.bench.close()
        if self._meters is not None:
            self._meters.close()
        if self.drafts is not None:
            self.drafts.close()

    @property
    def _over(self) -> bool:
        """Whether the screen is going or gone, so that nothing can be drawn on it."""
        return self._exit or not self.screen_stack

    @property
    def failure(self) -> Exception | None:
        """The fault of the app's own that ended it."""
        return self._exception

    def fail(self, error: BaseException | None) -> None:
        """End with a fault that some thread met."""

        def meet_it() -> None:
            if error is not None:
                raise error

        self.call_later(meet_it)

    def _print_error_renderables(self) -> None:
        """Nothing: whoever runs the app tells the user in one line."""

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette lists the key map: of the main screen all of it, of others their own part."""
        yield from commands(self, self.keymap_in_use, screen)

    # ── what the session and the meters say ───────────────────────────────────────────────
    @on(SessionSpoke)
    async def _hear(self) -> None:
        for event in self._inbox.fetch():
            if self._over:
                return
            await self.hearing.hear(event)
            match event:
                case events.TurnDone():
                    self._hint("reply")
                case events.Changed():
                    self._hint("change")

    @on(Accounted)
    def _accounted(self, event: Accounted) -> None:
        if not self._over:
            self.main.cards.show_duty(event.duty)
            self.main.split.speeds = event.duty.speeds or self.main.split.speeds
            self.main.change.note_joules(event.duty.per_token(event.duty.joules))

    @on(Metered)
    def _metered(self, event: Metered) -> None:
        if self._over:
            return
        self.main.cards.working = self.main.chat.answering or self.hearing.job is not None
        self.main.cards.show_snapshot(event.snapshot)
        self.main.split.free_mib = self.main.cards.free_mib
        self.hearing.metered(event.snapshot)

    def say(self, message: str, *, problem: bool = False) -> None:
        """Show a message in the status line and keep it."""
        self.said.append(Said(datetime.now(), message, problem))
        self.main.status.say(message, problem=problem)

    def _say(self, message: str, problem: bool) -> None:
        self.say(message, problem=problem)

    # ── what the panes ask for ────────────────────────────────────────────────────────────
    @on(NoticeShown)
    def _notice(self, event: NoticeShown) -> None:
        self.say(event.message)

    @on(PromptSubmitted)
    def _send(self, event: PromptSubmitted) -> None:
        if self.main.chat.answering:
            self.say("a reply is being written; Esc stops it")
        elif self.session.loaded is None and self.hearing.job is None:
            self.say(self.keymap_in_use.words("no model is loaded: {layouts} lists layouts, {models} models"))
        else:
            self.main.status.dismiss()
            self.main.chat.prompt.accepted(event.prompt)
            if event.instead_of is None:
                self.session.send(event.prompt)
            else:
                self.session.resend(event.instead_of, event.prompt)

    @on(SplitApplied)
    def _apply(self, event: SplitApplied) -> None:
        self.main.status.dismiss()
        self.session.resplit(event.split)

    @on(DraftChanged)
    def _ask_forecast(self, event: DraftChanged) -> None:
        layout, loaded = self.session.layout, self.session.loaded
        if self.drafts is None:
            return
        if event.split is None or layout is None or loaded is None or loaded.served is not None:
            self.drafts.drop()
            self.main.split.show_forecast(None)
        else:
            self.drafts.ask(msgspec.structs.replace(layout, split=event.split), Running(layout, loaded))

    @on(Forecasted)
    def _show_forecast(self, event: Forecasted) -> None:
        if self._over:
            return
        pane, over = self.main.split, self.screen
        if isinstance(over, ContextScreen):
            over.show(event.layout, event.answer)
        elif pane.asks(event.layout):
            pane.show_forecast(event.answer)

    def _context_full(self, event: events.ContextFull) -> None:
        loaded, layout = self.session.loaded, self.session.layout
        if loaded is None or layout is None:
            return

        def go_on(way: WayOn | None) -> None:
            if way is not None:
                take(way, self.session, layout.context)
                if event.prompt is not None:
                    self.main.chat.prompt.accepted(event.prompt)
                    self.session.send(event.prompt)

        n_ctx_train = loaded.model.n_ctx_train
        self.push_screen(ContextFullScreen(event, self.session.conversation, n_ctx_train=n_ctx_train), go_on)
