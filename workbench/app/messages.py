"""What the panes ask for, and how the session's threads are heard, as Textual messages."""

from dataclasses import dataclass
from typing import Any

from textual.message import Message

from workbench.domain.duty import Duty
from workbench.domain.layout import Layout
from workbench.domain.split import Split
from workbench.lab.cards import Inventory
from workbench.lab.forecast import Answer
from workbench.meters.sample import Snapshot


class SessionSpoke(Message):
    """The inbox has events."""

    def can_replace(self, message: Message) -> bool:
        """One is enough: the inbox is emptied at once."""
        return isinstance(message, SessionSpoke)


@dataclass
class Metered(Message):
    """What the meters read. A later reading replaces one that still waits."""

    snapshot: Snapshot

    def can_replace(self, message: Message) -> bool:
        """Only the newest counts."""
        return isinstance(message, Metered)


@dataclass
class Accounted(Message):
    """What the cards did during the last reply."""

    duty: Duty


@dataclass
class CardsFound(Message):
    """The machine's cards; without a GPU, what helps."""

    found: Inventory


@dataclass
class PromptSubmitted(Message):
    """A prompt to answer; `instead_of` is the index of the turn that it replaces."""

    prompt: str
    instead_of: int | None = None


@dataclass
class EditAsked(Message):
    """Edit the prompt of turn `index`, the last one if None; `prompt` is the text to start from."""

    index: int | None
    prompt: str


@dataclass
class SplitApplied(Message):
    """A split to load."""

    split: Split


@dataclass
class DraftChanged(Message):
    """The split being edited, as it would be applied; None when it equals what runs."""

    split: Split | None


@dataclass
class Forecasted(Message):
    """What a draft would take, or why it cannot load."""

    layout: Layout
    answer: Answer


@dataclass
class NoticeShown(Message):
    """Something to say in the status line."""

    message: str


@dataclass
class Remember(Message):
    """What the user chose here, by the fields of the screen's state, for the next start."""

    choice: dict[str, Any]


class ScreenReady(Message):
    """All panes are there."""
