"""One turn of the chat: the prompt, the reply with its thinking folded, and the figures."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from workbench.app.keymap import keymap_of
from workbench.app.panes.markdown import Answer, StillMarkdown
from workbench.app.panes.steady import Steady
from workbench.app.text import parts
from workbench.domain.conversation import StopReason, Turn
from workbench.domain.text import clean, tame

ENDINGS: dict[StopReason, str] = {
    "stop": "",
    "max_tokens": "ended at the token limit",
    "context_full": "the context is full",
    "cancelled": "stopped by you",
    "died": "the reply broke off",
}


def figures(turn: Turn) -> Content:
    """`57.0 tok/s · first token 0.31 s · 128 tokens`, and why it ended if it did not just stop."""
    pieces: list[str] = []
    if turn.timing is not None:
        rate = turn.timing.decode_tok_s
        pieces = [
            "– tok/s" if rate is None else f"{rate:.1f} tok/s",
            f"first token {turn.timing.ttft_s:.2f} s",
            f"{turn.timing.tokens} tokens",
        ]
        if turn.timing.source in ("client", "pieces"):
            pieces.append("timed here")
    line = Content.styled(" · ".join(pieces), "$text-muted")
    ending = ENDINGS[turn.stop_reason]
    if ending:
        line = line + Content(" · " if pieces else "") + Content.styled(ending, "$text-warning")
    return line


class Thinking(Static):
    """Thinking on one line; the whole of it when unfolded."""

    def __init__(self) -> None:
        super().__init__(classes="thinking", markup=False)
        self.text = ""
        self.open = False
        self.finished = False

    def show(self, text: str, *, finished: bool) -> None:
        """Take the text so far."""
        self.text, self.finished = text.strip(), finished
        self._draw()

    def toggle(self) -> None:
        """Fold or unfold."""
        self.open = not self.open
        self._draw()

    def on_click(self) -> None:
        """Fold or unfold."""
        self.toggle()

    def _draw(self) -> None:
        words = len(self.text.split())
        head = f"{'▾' if self.open else '▸'} {'thought' if self.finished else 'thinking'} · {words} words"
        if not self.open:
            head += keymap_of(self.app).words(" · {thinking} shows them")
        self.update(Content(head + "\n" + self.text if self.open else head))


class TurnView(Steady, Vertical):
    """A turn. `grow` adds to the reply while it comes, `settle` draws the finished turn."""

    def __init__(self, index: int, prompt: str) -> None:
        super().__init__(classes="turn")
        self.index = index
        self.prompt = prompt
        self.reply = ""
        self.turn: Turn | None = None
        self._still = False
        self._shown: list[tuple[bool, str]] = []

    def compose(self) -> ComposeResult:
        """The prompt, room for the reply, and the figures."""
        yield Static(Content(clean(self.prompt)), classes="you", markup=False)
        yield Vertical(classes="reply")
        yield Static("… Esc stops", classes="figures", markup=False)

    @property
    def thinking(self) -> list[Thinking]:
        """The thinking blocks of the reply."""
        return list(self.query(Thinking))

    async def grow(self, text: str) -> None:
        """Add to the reply."""
        self.reply += tame(text)
        await self._sync(parts(self.reply, finished=False), finished=False)

    async def settle(self, turn: Turn, *, still: bool = False) -> None:
        """Draw the finished turn; `still` as one piece that costs little."""
        self.turn = turn
        self.reply = clean(turn.reply)
        self.set_class(turn.stop_reason != "stop", "-cut")
        self.query_one(".figures", Static).update(figures(turn))
        if still:
            await self.be_still()
        else:
            await self._sync(parts(self.reply, finished=True), finished=True)

    async def be_still(self) -> None:
        """Draw the reply as one piece from now on."""
        if self._still:
            return
        self._still = True
        body = self.query_one(".reply", Vertical)
        widgets: list[Widget] = []
        for is_thinking, text in parts(self.reply, finished=True):
            if is_thinking:
                widgets.append(fold := Thinking())
                fold.show(text, finished=True)
            else:
                widgets.append(Static(StillMarkdown(text), classes="still"))
        with self.app.batch_update():
            await body.remove_children()
            await body.mount_all(widgets)

    async def _sync(self, wanted: list[tuple[bool, str]], *, finished: bool) -> None:
        """Bring the widgets of the reply to the wanted parts, adding where they only grew."""
        body = self.query_one(".reply", Vertical)
        same_kinds = len(wanted) >= len(self._shown) and all(
            old[0] == new[0] for old, new in zip(self._shown, wanted, strict=False)
        )
        if not same_kinds:
            await body.remove_children()
            self._shown = []
        for position, (is_thinking, text) in enumerate(wanted):
            last = position == len(wanted) - 1
            if position == len(self._shown):
                await body.mount(Thinking() if is_thinking else Answer())
                self._shown.append((is_thinking, ""))
            before = self._shown[position][1]
            widget = body.children[position]
            if isinstance(widget, Thinking):
                if text != before or finished:
                    widget.show(text, finished=finished or not last)
            elif isinstance(widget, Answer):
                if finished or not text.startswith(before):
                    await widget.finish(text)
                elif text != before:
                    await widget.write(text[len(before) :])
            self._shown[position] = (is_thinking, text)
