"""Conversations: turns of messages, with what the engine said about each."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from workbench.domain.timing import Timing

Role = Literal["system", "user", "assistant"]
StopReason = Literal["stop", "max_tokens", "context_full", "cancelled", "died"]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message as chat templates know it. `images` are files that go with it."""

    role: Role
    content: str
    images: tuple[str, ...] = ()


def whole_characters(text: str) -> str:
    """The text with each lone surrogate, half a character of a broken input, as a question mark."""
    return text.encode("utf-8", "replace").decode()


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the next token is chosen; temperature 0 is greedy, max_tokens 0 means until the end.

    `ignore_eos` goes on past the end of the reply, for fixed-length measurements.
    """

    max_tokens: int = 0
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    ignore_eos: bool = False


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One question, with the image files that went with it, and its answer. `split` names what answered."""

    prompt: str
    reply: str
    stop_reason: StopReason
    timing: Timing | None = None
    split: str = ""
    images: tuple[str, ...] = ()


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """All turns so far, oldest first."""

    system: str | None = None
    turns: tuple[Turn, ...] = ()

    def messages(self, prompt: str | None = None, images: tuple[str, ...] = ()) -> tuple[Message, ...]:
        """What the engine is asked: every turn, then `prompt` with its images.

        A turn without a reply is left out, since many templates refuse two prompts in a row.
        """
        out = [Message("system", self.system)] if self.system else []
        for turn in self.turns:
            if turn.reply:
                out += [Message("user", turn.prompt, turn.images), Message("assistant", turn.reply)]
        if prompt is not None:
            out.append(Message("user", prompt, images))
        return tuple(out)

    @property
    def tokens(self) -> int:
        """How many tokens the engine holds of it, about: by the last turn that was counted, and at least one a turn."""
        timings = (turn.timing for turn in reversed(self.turns))
        last = next((timing for timing in timings if timing is not None), None)
        return max(len(self.turns), 0 if last is None else last.prompt_tokens + last.tokens)

    def with_turn(self, turn: Turn) -> "Conversation":
        """This conversation and one turn more."""
        return msgspec.structs.replace(self, turns=(*self.turns, turn))

    def upto(self, count: int) -> "Conversation":
        """The first `count` turns: what is left when a later one is edited."""
        return msgspec.structs.replace(self, turns=self.turns[:count])

    def without_oldest(self, count: int) -> "Conversation":
        """All but the `count` oldest turns."""
        return msgspec.structs.replace(self, turns=self.turns[count:])


_FRAME = 16
"""What a chat template puts around a turn, in characters."""


def turns_to_drop(turns: Sequence[Turn], prompt: str, prompt_tokens: int, room: int) -> int | None:
    """How many of the oldest turns must go for the prompt to fit into `room` tokens; None if not even alone.

    `prompt_tokens` is what turns and prompt take together; the parts are told by their length.
    """
    sizes = [len(turn.prompt) + len(turn.reply) + _FRAME for turn in turns]
    total = left = sum(sizes) + len(prompt) + _FRAME
    for count, size in enumerate((*sizes, 0)):
        if prompt_tokens * left <= room * total:
            return count
        left -= size
    return None
