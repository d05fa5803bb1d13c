"""The context is full: three ways on."""

from dataclasses import dataclass
from typing import Literal

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from workbench.app.screens.dialog import Dialog
from workbench.domain.conversation import Conversation, turns_to_drop
from workbench.domain.layout import Context
from workbench.lab.events import ContextFull
from workbench.lab.session import Session


@dataclass(frozen=True)
class WayOn:
    """What was chosen; `number` is the new n_ctx, or how many turns to drop."""

    way: Literal["larger", "drop", "new"]
    number: int = 0


def larger_n_ctx(event: ContextFull, n_ctx_train: int) -> int | None:
    """Twice the context, more for the prompt, at most what the model was trained with; None if that does not do."""
    wanted = event.n_ctx * 2
    while event.prompt_tokens is not None and wanted < event.prompt_tokens + 512:
        wanted *= 2
    proposed = min(wanted, n_ctx_train) if n_ctx_train else wanted
    return proposed if proposed > max(event.n_ctx, event.prompt_tokens or 0) else None


def turns_in_the_way(event: ContextFull, conversation: Conversation) -> int | None:
    """How many of the oldest turns to drop: half of them, or more for the prompt; None where it has no room alone."""
    turns = conversation.turns
    half = max(1, len(turns) // 2)
    if event.prompt is None or event.prompt_tokens is None:
        return half
    for room in (event.n_ctx * 15 // 16, event.n_ctx * 5 // 4):  # with some for a reply, else perhaps just so
        needed = turns_to_drop(turns, event.prompt, event.prompt_tokens, room)
        if needed is not None:
            return max(half, needed)
    return None


def take(way: WayOn, session: Session, context: Context) -> None:
    """Go that way."""
    if way.way == "larger":
        session.set_context(msgspec.structs.replace(context, n_ctx=way.number))
    elif way.way == "drop":
        session.drop_oldest(way.number)
    else:
        session.clear()


class ContextFullScreen(Dialog[WayOn]):
    """Offers a larger n_ctx, dropping the oldest turns, or a new chat."""

    def __init__(self, event: ContextFull, conversation: Conversation, *, n_ctx_train: int) -> None:
        super().__init__()
        self._event = event
        self._ways: list[tuple[str, WayOn]] = []
        larger = larger_n_ctx(event, n_ctx_train)
        if larger is not None:
            self._ways.append((f"Make the context larger: n_ctx {event.n_ctx} → {larger}", WayOn("larger", larger)))
        turns, drop = len(conversation.turns), turns_in_the_way(event, conversation)
        self._alone = drop is None
        if drop is not None and drop < turns:
            self._ways.append((f"Drop the {drop} oldest of {turns} turns", WayOn("drop", drop)))
        if drop is not None:
            self._ways.append(("Start a new chat", WayOn("new")))

    def compose(self) -> ComposeResult:
        """What happened, and the ways on."""
        event = self._event
        if event.prompt_tokens is not None:
            what = f"The prompt has {event.prompt_tokens} tokens, the context holds {event.n_ctx}."
        else:
            what = f"The reply filled the context of {event.n_ctx} tokens. Its text is kept."
        if self._alone:
            what += " Not even a new chat has room for it: shorten it"
            what += ", or make the context larger." if self._ways else "."
        with Vertical(classes="dialog") as box:
            box.border_title = "The context is full"
            box.border_subtitle = "Enter chooses · Esc leaves it"
            yield Static(Content(what + "\n"), markup=False)
            yield OptionList(*(Option(label) for label, _ in self._ways), markup=False)

    def on_mount(self) -> None:
        """The first way is chosen."""
        self.query_one(OptionList).highlighted = 0

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._ways[event.option_index][1])
