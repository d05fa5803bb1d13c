"""What the session says, drawn on the main screen."""

from collections.abc import Callable, Sequence

from textual.timer import Timer

from workbench.app.card_rows import kind_of
from workbench.app.outside import Outside
from workbench.app.screens.main import MainScreen
from workbench.app.wording import describe, doing, layout_words, whereto
from workbench.domain.card import Card
from workbench.domain.layout import Layout
from workbench.engines.engine import Loaded
from workbench.lab import events
from workbench.lab.session import Session
from workbench.meters.sample import Snapshot

AFTER_TROUBLE = ("rollback", "respawn")
"""Loads that begin by themselves: what was just said stays in sight."""
COMING_BACK = (*AFTER_TROUBLE, "unpark")
"""Loads that nobody asked for: a suggestion outlives them."""


class Hearing:
    """Draws event after event and knows what goes on now.

    `say` shows a message, a problem if the second argument says so; `full` is asked for a way
    on where the context is full; `drawing` draws the text of a reply while it comes.
    """

    def __init__(
        self,
        main: MainScreen,
        session: Session,
        outside: Outside,
        drawing: Timer,
        say: Callable[[str, bool], None],
        full: Callable[[events.ContextFull], None],
    ) -> None:
        self._main = main
        self._session = session
        self._outside = outside
        self._drawing = drawing
        self._say = say
        self._full = full
        self._cards: Sequence[Card] = ()
        self._loading = ""
        self.suggested: Layout | None = None
        """What is offered where memory ended."""
        self.job: str | None = None

    @property
    def loads(self) -> bool:
        """Whether a layout loads or is about to."""
        return bool(self._loading) or self._session.wishes.unsettled

    @property
    def busy(self) -> bool:
        """Whether something runs that a user may want to stop."""
        return self.loads or self._main.chat.answering or self.job not in (None, "probe", "edit")

    def show_cards(self, cards: Sequence[Card]) -> None:
        """The machine's cards are known now."""
        self._cards = cards
        self._main.cards.show_cards(cards)
        self._outside.watch(self._session.loaded, cards)
        if self._session.layout is not None and self._session.loaded is not None:
            self._show_header(self._session.layout, self._session.loaded)

    def metered(self, snapshot: Snapshot) -> None:
        """What the meters read; while nothing loads it is what the running line leaves free."""
        loaded = self._session.loaded
        if loaded is not None and not self._loading:
            names = {card.name for card in loaded.cards}
            self._main.change.note_free({card.name: card.free_mib for card in snapshot.cards if card.name in names})

    def dismiss(self) -> bool:
        """Take messages and suggestion away; whether there were any."""
        there = self._main.status.dismiss() or self.suggested is not None
        self._suggest(None, "")
        return there

    def _suggest(self, layout: Layout | None, sentence: str) -> None:
        self.suggested = layout
        self._main.suggest(sentence)

    async def hear(self, event: events.SessionEvent) -> None:
        """Draw one event."""
        main = self._main
        match event:
            case events.Busy(job):
                self.job = job
            case events.LoadStarted(layout=layout, why=why, strategy=strategy):
                self._loading = f"{doing(why)} {layout.label()}"
                if strategy == "beside":
                    self._loading += ", the chat goes on"
                if why not in COMING_BACK:
                    self._suggest(None, "")
                if why not in AFTER_TROUBLE:
                    main.status.say("", problem=False)
                main.status.progress(0.0, self._loading)
            case events.LoadEnded():
                self._loading = ""
                main.split.applied = None
                main.status.progress(None)
            case events.LoadMoved(fraction, stage):
                main.status.progress(fraction, f"{self._loading}: {stage}")
            case events.LoadWaits(layout):
                main.status.waiting(f"{layout.label()} is loaded, takes over after this reply")
            case events.LayoutLoaded(layout, loaded):
                self._loading = ""
                main.status.progress(None)
                main.change.took_over(event, self._session.history)
                self._show_loaded(layout, loaded)
            case events.TurnStarted(index, prompt):
                self._drawing.resume()
                main.status.replying(True)
                await main.chat.begin(index, prompt)
            case events.TurnText(text):
                await main.chat.grow(text)
            case events.TurnDone(index, turn):
                self._rest()
                main.change.answered()
                await main.chat.end(index, turn)
            case events.ConversationChanged(conversation):
                await main.chat.show(conversation)
            case events.ContextFull():
                if event.prompt is not None:
                    self._rest()
                    await main.chat.take_back(event.prompt)
                self._full(event)
            case events.PromptReturned(prompt, why):
                self._rest()
                await main.chat.take_back(prompt)
                self._say(why, False)
            case events.Changed():
                main.change.show(self._session.history, event)
            case events.ProbeDone():
                main.change.show(self._session.history)
            case events.Problem():
                self._say(describe(event), True)
            case events.Suggestion(layout, sentence):
                text = f"{layout_words(layout)} {sentence}"
                self._suggest(layout, text)
            case events.Notice(message):
                self._say(message, False)

    def _rest(self) -> None:
        """No reply is being written."""
        self._drawing.pause()
        self._main.status.replying(False)

    def _show_loaded(self, layout: Layout, loaded: Loaded) -> None:
        main = self._main
        self._outside.watch(loaded, self._cards)
        known = {card.name: card for card in self._cards}
        kinds = [(c.name, known[c.name].kind if c.name in known else kind_of(c.name, loaded)) for c in loaded.cards]
        main.cards.show_loaded(loaded)
        main.split.show_loaded(layout, loaded, kinds)
        self._show_header(layout, loaded)

    def _show_header(self, layout: Layout, loaded: Loaded) -> None:
        main = self._main
        main.header.left = (
            f"{loaded.model.name} {loaded.model.quantisation}".rstrip()
            + f" · {layout.label()}{whereto(layout)} · ctx {loaded.n_ctx or '–'}"
        )
        titles = [row.title or str(row.kind) for row in main.cards.rows[: len(loaded.cards)]]
        counted = ", ".join(f"{titles.count(title)} × {title}" for title in dict.fromkeys(titles))
        main.header.right = f"{counted} · {layout.engine}" if loaded.served is None else loaded.served.name
