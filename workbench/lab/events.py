"""What a session tells its listener, from its own threads."""

from typing import Literal

import msgspec

from workbench.domain.conversation import Conversation, Turn
from workbench.domain.forecast import CardAccount
from workbench.domain.layout import Layout
from workbench.domain.memory import CardMemory
from workbench.domain.timing import Probe
from workbench.engines.engine import Loaded


class Busy(msgspec.Struct, frozen=True):
    """The job that runs now: load, resplit, prompt, probe, restore; None when idle."""

    job: str | None


Strategy = Literal["first", "beside", "in turn", "context"]
"""How a layout takes over: nothing served before; the old worker answers until the new one has
loaded; the old one ends first; the weights stay and only the context is made anew."""


class LoadStarted(msgspec.Struct, frozen=True):
    """A layout is being loaded. `why` is load, resplit, rollback or respawn.

    Under the strategy beside the chat goes on meanwhile.
    """

    layout: Layout
    why: str
    strategy: Strategy


class LoadMoved(msgspec.Struct, frozen=True):
    """The load goes on: 0 … 1, and what is being done."""

    fraction: float
    stage: str


class LoadWaits(msgspec.Struct, frozen=True):
    """A layout is loaded beside the one that answers, and takes over after this reply."""

    layout: Layout


class LoadEnded(msgspec.Struct, frozen=True):
    """A load came to nothing; a Problem or a Notice said why."""

    layout: Layout


class LayoutLoaded(msgspec.Struct, frozen=True):
    """The layout serves now. `silent_s` is how long the chat could not answer on the way.

    `accounts` puts the forecast against what was measured, by card; empty where nothing was forecast.
    """

    layout: Layout
    loaded: Loaded
    strategy: Strategy
    silent_s: float
    accounts: tuple[CardAccount, ...] = ()


class TurnStarted(msgspec.Struct, frozen=True):
    """A prompt is being answered; it will be turn `index` (from 0)."""

    index: int
    prompt: str


class TurnText(msgspec.Struct, frozen=True):
    """More of the reply."""

    text: str


class TurnDone(msgspec.Struct, frozen=True):
    """The turn is over and in the journal."""

    index: int
    turn: Turn


class ConversationChanged(msgspec.Struct, frozen=True):
    """Turns were cleared, edited, dropped or restored: draw it anew."""

    conversation: Conversation


class ContextFull(msgspec.Struct, frozen=True):
    """The reply or the prompt does not fit n_ctx. `prompt` is the one that was refused, if one was.

    Three ways on: a larger n_ctx, dropping the oldest turns, a new chat.
    """

    n_ctx: int
    prompt_tokens: int | None
    prompt: str | None


class PromptReturned(msgspec.Struct, frozen=True):
    """The prompt led to no turn: it goes back to where it was typed, with the reason."""

    prompt: str
    why: str


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One split of this session with what it did. `probe` is None until measured."""

    layout: Layout
    label: str
    cards: tuple[CardMemory, ...]
    probe: Probe | None = None


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A re-split and its probes: one load each, so no verdict."""

    before: Measurement
    after: Measurement


class ProbeDone(msgspec.Struct, frozen=True):
    """The running split was measured."""

    measurement: Measurement


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong, in one message for people.

    `card`, `wanted_mib` and `free_mib` are filled where known. `serving` is the label of the
    split that serves now, None when nothing does.
    """

    message: str
    card: str | None = None
    wanted_mib: float | None = None
    free_mib: float | None = None
    serving: str | None = None


class Suggestion(msgspec.Struct, frozen=True):
    """After memory ended: the nearest layout that the forecast says fits, and its sentence."""

    layout: Layout
    sentence: str


class Notice(msgspec.Struct, frozen=True):
    """Something worth saying that is no failure."""

    message: str


SessionEvent = (
    Busy
    | LoadStarted
    | LoadMoved
    | LoadWaits
    | LoadEnded
    | LayoutLoaded
    | TurnStarted
    | TurnText
    | TurnDone
    | ConversationChanged
    | ContextFull
    | PromptReturned
    | Changed
    | ProbeDone
    | Problem
    | Suggestion
    | Notice
)
