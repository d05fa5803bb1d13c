"""The screen: chat on the left; cards, split and last change on the right, or behind a tab."""

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import Screen
from textual.widget import Widget

from workbench.app.keymap import Where, bindings
from workbench.app.messages import EditAsked, ScreenReady
from workbench.app.panes.bars import FootKeys, Header, Tabs
from workbench.app.panes.cards import CardsPane
from workbench.app.panes.change import ChangePane
from workbench.app.panes.chat import ChatLog, ChatPane
from workbench.app.panes.small import TooSmall
from workbench.app.panes.split import SplitPane
from workbench.app.panes.status import Status
from workbench.store.screen_state import ScreenState

WIDE = 100
SPLIT_PART, SPLIT_FRAME = 0.42, 6
"""The split editor's part of the height, and how many lines of it are not its rows."""
PANES = ("prompt", "chat", "cards", "split", "change")


class MainScreen(Screen[None]):
    """Lays the panes out and moves the focus between them."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide"), (140, "-wider")]  # noqa: RUF012
    AUTO_FOCUS = "#prompt"
    BINDINGS = bindings("anywhere")

    def __init__(self, hint: str) -> None:
        super().__init__()
        self._hint = hint

    def compose(self) -> ComposeResult:
        """Header, panes, status, footer."""
        yield Header(id="header", markup=False)
        yield Tabs(id="tabs", markup=False)
        with Vertical(id="left"):
            yield ChatPane(self._hint)
        with Vertical(id="right"):
            yield CardsPane()
            yield SplitPane()
            yield ChangePane()
        yield Status()
        yield FootKeys(id="foot", markup=False)
        yield TooSmall()

    # ── parts ─────────────────────────────────────────────────────────────────────────────
    @property
    def chat(self) -> ChatPane:
        """The chat."""
        return self.query_one(ChatPane)

    @property
    def cards(self) -> CardsPane:
        """The cards."""
        return self.query_one(CardsPane)

    @property
    def split(self) -> SplitPane:
        """The split editor."""
        return self.query_one(SplitPane)

    @property
    def change(self) -> ChangePane:
        """The last change."""
        return self.query_one(ChangePane)

    @property
    def header(self) -> Header:
        """The first line."""
        return self.query_one(Header)

    @property
    def status(self) -> Status:
        """Progress and messages."""
        return self.query_one(Status)

    # ── focus ─────────────────────────────────────────────────────────────────────────────
    @property
    def panes(self) -> tuple[Widget, ...]:
        """What Tab goes through, in the order of PANES."""
        return (self.chat.prompt, self.chat.log_view, self.cards, self.split, self.change)

    def pane(self, where: str) -> Widget:
        """The pane that the key map calls so, one of PANES."""
        return self.panes[PANES.index(where)]

    def go_to(self, pane: Widget) -> None:
        """Focus a pane, its tab coming to the front first."""
        in_chat = pane in (self.chat.prompt, self.chat.log_view)
        self.set_class(not in_chat, "-cards-tab")
        self.set_class(pane is self.change, "-history")
        self.query_one(Tabs).chat = in_chat
        self.set_focus(pane)

    def restore(self, state: ScreenState) -> None:
        """As it was left, but for the focus: letters typed at once are a prompt."""
        self.cards.compact, self.cards.off = state.compact, state.meters_off
        if state.unsent and not self.chat.prompt.text:
            self.chat.prompt.fill(state.unsent, None)

    @property
    def state(self) -> dict[str, object]:
        """What of it a next start restores, beside what was remembered when it was chosen."""
        prompt = self.chat.prompt
        return {"unsent": "" if prompt.editing is not None else prompt.text}

    def next_pane(self, by: int) -> None:
        """The next pane, or the one before."""
        at = self.panes.index(self.focused) if self.focused in self.panes else 0
        self.go_to(self.panes[(at + by) % len(self.panes)])

    def action_next_pane(self) -> None:
        """The next pane."""
        self.next_pane(1)

    def action_previous_pane(self) -> None:
        """The pane before."""
        self.next_pane(-1)

    def action_split(self) -> None:
        """To the split editor, or back to the prompt."""
        self.go_to(self.chat.prompt if self.where == "split" else self.split)

    def action_history(self) -> None:
        """To the history of splits, or back to the prompt."""
        self.go_to(self.chat.prompt if self.where == "change" else self.change)

    def suggest(self, sentence: str) -> None:
        """Offer a way on, in the status and in the footer; "" takes it away."""
        self.status.suggest(sentence)
        self.query_one(FootKeys).offered = bool(sentence)

    def action_thinking(self) -> None:
        """Show or fold the last reply's thinking."""
        self.chat.toggle_thinking()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """The footer and the tabs follow the focus, a mouse click's too."""
        where: Where = "prompt"
        if isinstance(event.widget, ChatLog):
            where = "chat"
        elif isinstance(event.widget, CardsPane):
            where = "cards"
        elif isinstance(event.widget, SplitPane):
            where = "split"
        elif isinstance(event.widget, ChangePane):
            where = "change"
        self.query_one(FootKeys).where = where
        self._make_room()

    @property
    def where(self) -> Where:
        """Which pane has the focus, as the key map calls it."""
        return self.query_one(FootKeys).where

    @on(EditAsked)
    def _edit(self, event: EditAsked) -> None:
        turns = self.chat.log_view.turns
        if not turns:
            return
        index = turns[-1].index if event.index is None else event.index
        self.chat.prompt.fill(event.prompt or turns[-1].prompt, index)
        self.go_to(self.chat.prompt)

    def on_mount(self) -> None:
        """Say so once every pane is there."""
        self.watch(self.split, "drafting", self._make_room)
        self.call_after_refresh(self.post_message, ScreenReady())

    def on_resize(self, _event: events.Resize) -> None:
        """Rows follow the height."""
        self._make_room()

    def _make_room(self) -> None:
        """The split's rows scroll where there is little room; a draft at work has that of the last change, too."""
        rows = max(3, int(self.size.height * SPLIT_PART) - SPLIT_FRAME)
        crowded = len(self.split.names) + 1 > rows
        drafting = crowded and self.split.drafting and self.where == "split"
        self.set_class(drafting, "-drafting")
        self.split.tight = drafting
        self.query_one("#split-scroll").styles.max_height = None if drafting else rows
