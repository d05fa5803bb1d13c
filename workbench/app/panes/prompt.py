"""The input: several lines, Enter sends, earlier prompts come back with Up."""

from collections.abc import Iterable

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.widgets import TextArea

from workbench.app.keymap import bindings, keymap_of
from workbench.app.messages import EditAsked, PromptSubmitted

PLACEHOLDER = "Ask something · {prompt_submit} sends · {prompt_newline} a new line"


class Prompt(TextArea, inherit_bindings=False):
    """The prompt being written. `editing` is the index of the turn it will replace, if any."""

    BINDINGS = [  # noqa: RUF012
        *(b for b in TextArea.BINDINGS if isinstance(b, Binding) and b.key not in ("f6", "f7", "up", "down")),
        *bindings("prompt"),
    ]

    def __init__(self) -> None:
        super().__init__(
            id="prompt",
            soft_wrap=True,
            show_line_numbers=False,
            compact=True,
            highlight_cursor_line=False,
        )
        self.cursor_blink = False
        self.earlier: list[str] = []
        self.editing: int | None = None
        self._at = 0
        self._unsent = ""

    def on_mount(self) -> None:
        """The hint names the keys that hold."""
        self.placeholder = Content(keymap_of(self.app).words(PLACEHOLDER))

    async def _on_key(self, event: events.Key) -> None:
        keys = keymap_of(self.app)
        for name, act in (("prompt.submit", self.action_submit), ("prompt.newline", self.action_newline)):
            if event.key in keys.of(name):
                event.stop()
                event.prevent_default()
                act()
                return
        await super()._on_key(event)

    def action_newline(self) -> None:
        """A new line."""
        self.insert("\n")

    def action_submit(self) -> None:
        """Send what is written."""
        text = self.text.strip()
        if text:
            self.post_message(PromptSubmitted(text, self.editing))

    def accepted(self, prompt: str) -> None:
        """The prompt was taken: clear the input and remember it."""
        self.remember([prompt])
        self.fill("", None)

    def remember(self, prompts: Iterable[str]) -> None:
        """Prompts that Up brings back, oldest first."""
        for prompt in prompts:
            if prompt in self.earlier:
                self.earlier.remove(prompt)
            self.earlier.append(prompt)
        self._at = len(self.earlier)

    def fill(self, text: str, index: int | None) -> None:
        """Put a text in; with an index it will replace that turn."""
        self.editing = index
        self.text = text
        self.move_cursor(self.document.end)
        self._at = len(self.earlier)
        self.border_title = None if index is None else f"editing turn {index + 1}: it and what follows are replaced"
        self.set_class(index is not None, "-editing")

    def action_resend(self) -> None:
        """Write the last prompt anew; it and its reply are replaced."""
        self.post_message(EditAsked(None, self.text.strip()))

    def action_older(self) -> None:
        """The prompt before, from the first line; else a line up."""
        if self.cursor_location[0] > 0:
            self.action_cursor_up()
        elif self._at > 0:
            if self._at == len(self.earlier):
                self._unsent = self.text
            self._recall(self._at - 1)

    def action_newer(self) -> None:
        """The next prompt, from the last line; else a line down."""
        if self.cursor_location[0] < self.document.line_count - 1:
            self.action_cursor_down()
        elif self._at < len(self.earlier):
            self._recall(self._at + 1)

    def _recall(self, at: int) -> None:
        self._at = at
        self.text = self.earlier[at] if at < len(self.earlier) else self._unsent
        self.move_cursor(self.document.end)
