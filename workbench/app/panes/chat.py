"""The chat: turns that stream, and the prompt below them."""

from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from workbench.app.keymap import bindings, keymap_of
from workbench.app.messages import EditAsked, NoticeShown
from workbench.app.panes.prompt import Prompt
from workbench.app.panes.steady import forget_removed
from workbench.app.panes.turn import TurnView
from workbench.domain.conversation import Conversation, Turn
from workbench.domain.text import clean
from workbench.store.writing import write_atomically

LIVE_TURNS = 4
"""So many turns at the end are live Markdown; older ones are drawn as one piece."""


class ChatLog(VerticalScroll):
    """The turns. Sticks to the bottom until the user scrolls; left and right choose a turn."""

    BINDINGS = bindings("chat")
    selected: TurnView | None = None

    @property
    def turns(self) -> list[TurnView]:
        """All turns, oldest first."""
        return [view for view in self.query_one("#turns").children if isinstance(view, TurnView)]

    def select(self, view: TurnView | None) -> None:
        """Mark a turn."""
        if self.selected is not None:
            self.selected.remove_class("-selected")
        self.selected = view
        if view is not None:
            view.add_class("-selected")
            self.release_anchor()
            self.scroll_to_widget(view, animate=False)

    def on_focus(self) -> None:
        """The last turn is chosen when nothing is."""
        if self.turns and (self.selected is None or not self.selected.is_attached):
            self.select(self.turns[-1])

    def on_blur(self) -> None:
        """Nothing is chosen any more, and the chat sticks to its end again."""
        self.select(None)

    def action_select_turn(self, by: int) -> None:
        """Choose an earlier or later turn."""
        turns = self.turns
        if turns:
            at = turns.index(self.selected) if self.selected in turns else len(turns)
            self.select(turns[min(max(at + by, 0), len(turns) - 1)])

    def action_edit_turn(self) -> None:
        """Edit the chosen turn's prompt."""
        if self.selected is not None:
            self.post_message(EditAsked(self.selected.index, self.selected.prompt))

    def action_toggle_thinking(self) -> None:
        """Fold or unfold the chosen turn's thinking."""
        for fold in self.selected.thinking if self.selected else []:
            fold.toggle()

    def action_copy_turn(self) -> None:
        """Copy the chosen reply by the terminal's own means, which answers nothing."""
        if self.selected is not None:
            self.app.copy_to_clipboard(self.selected.reply)
            copied = "copied, if your terminal allows it; {chat_write_turn} writes the reply to a file"
            self.post_message(NoticeShown(keymap_of(self.app).words(copied)))

    def action_write_turn(self) -> None:
        """Write the chosen reply to a new file in the current folder."""
        if self.selected is None:
            return
        number = 1
        try:
            while (path := Path(f"reply-{number}.md")).exists():
                number += 1
            write_atomically(path, f"{self.selected.reply}\n".encode(), overwrite=False)
        except OSError as error:
            self.post_message(NoticeShown(f"cannot write {path}: {error.strerror}"))
        else:
            self.post_message(NoticeShown(f"written: {path.resolve()}"))


class ChatPane(Vertical):
    """Log and prompt."""

    def __init__(self, hint: str) -> None:
        super().__init__(id="chat", classes="pane")
        self.border_title = "Chat"
        self._hint = hint
        self._answering: TurnView | None = None

    def compose(self) -> ComposeResult:
        """The hint, the turns, the prompt."""
        with ChatLog(id="log"), Vertical(id="turns"):
            yield Static(Content(clean(self._hint)), id="hint")
        yield Prompt()

    @property
    def answering(self) -> bool:
        """Whether a reply is being written."""
        return self._answering is not None

    @property
    def log_view(self) -> ChatLog:
        """The turns."""
        return self.query_one(ChatLog)

    @property
    def prompt(self) -> Prompt:
        """The input."""
        return self.query_one(Prompt)

    def on_mount(self) -> None:
        """Stick to the bottom."""
        self.log_view.anchor()

    async def begin(self, index: int, prompt: str) -> None:
        """A turn starts; those from `index` on are replaced."""
        log = self.log_view
        self.query_one("#hint").display = False
        turns = log.turns
        for view in turns[index:]:
            await view.remove()
        for view in turns[: max(0, index - LIVE_TURNS + 1)]:
            await view.be_still()
        view = TurnView(index, prompt)
        await self.query_one("#turns").mount(view)
        self._answering = view
        log.anchor()

    async def grow(self, text: str) -> None:
        """More of the reply."""
        if self._answering is not None:
            await self._answering.grow(text)

    async def end(self, index: int, turn: Turn) -> None:
        """The turn is over."""
        view = self._answering
        if view is None or view.index != index:
            view = next((view for view in self.log_view.turns if view.index == index), None)
        if view is not None:
            await view.settle(turn)
        self._answering = None
        forget_removed()

    async def take_back(self, prompt: str) -> None:
        """The turn did not come to be: its prompt goes back to the input, if that is empty."""
        if self._answering is not None:
            await self._answering.remove()
            self._answering = None
            self.query_one("#hint").display = not self.log_view.turns
        if not self.prompt.text:
            self.prompt.fill(prompt, None)

    async def show(self, conversation: Conversation) -> None:
        """Draw a whole conversation anew."""
        self._answering = None
        log = self.log_view
        log.select(None)
        with self.app.batch_update():
            await log.query(TurnView).remove()
            views = [TurnView(index, turn.prompt) for index, turn in enumerate(conversation.turns)]
            await self.query_one("#turns").mount_all(views)
            for view, turn in zip(views, conversation.turns, strict=True):
                await view.settle(turn, still=view.index < len(views) - LIVE_TURNS)
        forget_removed()
        self.query_one("#hint").display = not views
        self.prompt.remember(turn.prompt for turn in conversation.turns)
        log.anchor()

    def toggle_thinking(self) -> None:
        """Fold or unfold the last reply's thinking."""
        turns = self.log_view.turns
        for fold in turns[-1].thinking if turns else []:
            fold.toggle()
