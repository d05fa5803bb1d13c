"""What every engine looks like to the lab."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

import msgspec

from workbench.domain.conversation import Message, Sampling, StopReason
from workbench.domain.layout import Context
from workbench.domain.memory import CardMemory
from workbench.domain.text import visible
from workbench.domain.timing import Probe, Timing


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model as its own header describes it. `n_layer` counts the blocks, without the output.

    `header_bytes` is how long the header of the first part is. Of a model that a server holds,
    `path` is its name there and `digest` the server's own; what the server does not tell is 0.
    """

    path: str
    name: str
    arch: str
    quantisation: str
    n_layer: int
    n_ctx_train: int
    n_params: int
    size_mib: float
    header_bytes: int = 0
    digest: str = ""


class CardProcess(msgspec.Struct, frozen=True):
    """The process behind a virtual card, for meters and for watching it die. Size in MiB."""

    name: str
    pid: int
    endpoint: str
    size_mib: float


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """The server that holds the model: what it calls itself, where, and the memory it says the model takes.

    `pids` are its processes, where it runs on this machine and they can be seen. Sizes are MiB,
    None where it does not tell.
    """

    name: str
    url: str
    total_mib: float | None = None
    on_cards_mib: float | None = None
    pids: tuple[int, ...] = ()


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What a load came to, in the engine's own words.

    `cards` are in the split's order, `host` is what stayed with the CPU. `places` names the
    card of each of the n_layer + 1 positions, from the engine's assignment lines; empty in
    tensor mode. `template` names the chat template; `template_is_fallback` when the model had
    none. `n_ctx` is what was made, which may be more than what was asked. A model that a
    server holds has `served` and no cards; its `n_ctx` is 0 and its `flash_attn` None if unknown.
    """

    model: ModelInfo
    cards: tuple[CardMemory, ...]
    host: CardMemory
    places: tuple[str, ...]
    n_ctx: int
    flash_attn: bool | None
    template: str
    template_is_fallback: bool
    load_s: float
    pid: int
    card_processes: tuple[CardProcess, ...] = ()
    warnings: tuple[str, ...] = ()
    served: Served | None = None


class LoadProgress(msgspec.Struct, frozen=True):
    """How far a load is: 0 … 1 of the weights, and what is being done, for people."""

    fraction: float
    stage: str


class Filler(msgspec.Struct, frozen=True, kw_only=True):
    """Made-up tokens for measurements of exact length; a request with them begins on an empty context.

    `depth` tokens are in the context before the clock starts. `prompt_tokens`, if not 0, are
    the prompt, and no message is read. Another `salt` makes other tokens.
    """

    depth: int = 0
    prompt_tokens: int = 0
    salt: int = 0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that is asked for."""

    messages: tuple[Message, ...] = ()
    sampling: Sampling = Sampling()
    filler: Filler | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A finished reply, whatever ended it. `tokens` are told for requests with a filler only.

    `caveat` says why the figures of this reply are not to be relied on, empty if they are.
    """

    text: str
    stop_reason: StopReason
    timing: Timing
    tokens: tuple[int, ...] = ()
    caveat: str = ""


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a conversation in a file: what the context holds, as tokens and as text.

    Each of `marks` is a (characters, tokens) pair: so much of `text` is so many of `tokens`.
    """

    path: str
    size: int
    tokens: tuple[int, ...]
    text: str
    marks: tuple[tuple[int, int], ...] = ()


class Failure(Protocol):
    """What is told of a failure, by an error or by a message of the worker."""

    @property
    def reason(self) -> str:
        """For people."""

    @property
    def card(self) -> str | None:
        """The card it failed on."""

    @property
    def wanted_mib(self) -> float | None:
        """What was asked of the card."""

    @property
    def free_mib(self) -> float | None:
        """What the card had."""

    @property
    def key(self) -> str | None:
        """The layout's key that is to blame."""


class EngineError(Exception):
    """Something the engine could not do; the engine serves on unless a subclass says otherwise.

    `card` is the card it failed on; `wanted_mib` and `free_mib` what was asked of it and what
    it had, where known. `key` is the layout's key that is to blame (`split.layers`).
    """

    def __init__(
        self,
        reason: str,
        *,
        card: str | None = None,
        wanted_mib: float | None = None,
        free_mib: float | None = None,
        key: str | None = None,
    ) -> None:
        reason = visible(" ".join(reason.split()))
        super().__init__(reason)
        self.reason = reason
        self.card = card
        self.wanted_mib = wanted_mib
        self.free_mib = free_mib
        self.key = key

    @classmethod
    def of(cls, told: Failure) -> Self:
        """The same failure as an error of this kind."""
        return cls(told.reason, card=told.card, wanted_mib=told.wanted_mib, free_mib=told.free_mib, key=told.key)


class LoadFailed(EngineError):
    """The layout did not load; the engine is of no more use."""


class LoadCancelled(EngineError):
    """The load was cancelled; the engine is of no more use."""


class EngineDied(EngineError):
    """The engine's process ended, or lost a card; `partial` is the text that had arrived."""

    partial: str = ""


class ReplyBroken(EngineError):
    """The reply broke off, and the engine serves on; `partial` is the text that had arrived."""

    def __init__(self, reason: str, partial: str) -> None:
        super().__init__(reason)
        self.partial = partial


class PromptTooLong(EngineError):
    """The prompt has more tokens than the context holds."""

    def __init__(self, prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(f"the prompt has {prompt_tokens} tokens, the context holds {n_ctx}", key="context.n_ctx")
        self.prompt_tokens = prompt_tokens
        self.n_ctx = n_ctx


class StateRefused(EngineError):
    """A saved state does not fit this context; the context is empty and serves on."""


class Engine(Protocol):
    """One model, loaded one way. Calls block their thread; `cancel` and `close` come from any.

    One call runs at a time. `load` comes first, once. Every call raises EngineDied when the
    engine ends under it; an engine that dies while idle calls the `on_death` it was made with.
    """

    def load(self, on_progress: Callable[[LoadProgress], None]) -> Loaded:
        """Load. Raises LoadFailed, LoadCancelled, EngineDied."""

    def chat(self, request: Request, on_text: Callable[[str], None]) -> Reply:
        """Answer; `on_text` gets the reply piece by piece. Raises PromptTooLong, ReplyBroken, EngineDied."""

    def probe(self) -> Probe | None:
        """Measure at fixed depth, leaving the conversation's state as it was; None if cancelled."""

    def expect_state(self, path: Path, size: int) -> None:
        """Get ready to save a state of up to `size` bytes to a file that has them, or to restore it; 0: none after all.

        From any thread, also while another call runs; returns at once.
        """

    def save_state(self, path: Path) -> SavedState:
        """Write the conversation's state. Raises EngineError where it cannot."""

    def restore_state(self, state: SavedState) -> None:
        """Take a state over. Raises StateRefused where this context cannot hold it."""

    def new_context(self, context: Context) -> Loaded:
        """Keep the weights, make another context. Raises LoadFailed: then the engine is of no more use."""

    def cancel(self) -> None:
        """Stop the running call; the reply so far comes back as `cancelled`. Quiet within a second."""

    def close(self) -> None:
        """End the engine and all it started; memory is free when this returns."""
