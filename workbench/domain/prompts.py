"""Prompt sets: what is replayed through a split, with its sampling."""

import msgspec

from workbench.domain.conversation import Message, Sampling


class Synthetic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A made-up prompt of exactly `prompt_tokens`, answered with exactly `max_tokens`, the set's where it has none."""

    prompt_tokens: int
    max_tokens: int | None = None


class Prompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One prompt: `text`, or `messages` of which the last is the user's, or `synthetic`.

    `system` goes before either of the first two. `depth` is how many tokens the context holds
    already, `repeat` how often the prompt is sent. The sampling fields override the set's.
    """

    id: str
    text: str | None = None
    system: str | None = None
    messages: tuple[Message, ...] | None = None
    synthetic: Synthetic | None = None
    depth: int = 0
    repeat: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None

    def conversation(self) -> tuple[Message, ...]:
        """What the engine is asked; empty for a synthetic prompt."""
        said = self.messages or ()
        if self.text is not None:
            said = (Message("user", self.text),)
        return (Message("system", self.system), *said) if self.system and said else said

    def sampling(self, defaults: Sampling) -> Sampling:
        """`defaults` with this prompt's overrides; a synthetic reply has a fixed length."""
        own = {name: getattr(self, name) for name in Sampling.__struct_fields__}
        given = {name: value for name, value in own.items() if value is not None}
        if self.synthetic is not None:
            given["ignore_eos"] = True
            if self.synthetic.max_tokens is not None:
                given["max_tokens"] = self.synthetic.max_tokens
        return msgspec.structs.replace(defaults, **given)


class PromptSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One document of `prompts/`."""

    name: str
    defaults: Sampling = Sampling()
    prompts: tuple[Prompt, ...]
