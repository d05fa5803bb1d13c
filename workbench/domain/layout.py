"""Layouts: model, engine, split, context settings and environment, as saved."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from workbench.domain.split import Split

EngineName = Literal["llama.cpp", "ollama", "openai"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
OLLAMA_URL = "http://127.0.0.1:11434"


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Context settings under llama.cpp's names; n_ctx 0 means what the model was trained with."""

    n_ctx: int = 4096
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: Literal["auto"] | int = "auto"
    type_k: CacheType = "f16"
    type_v: CacheType = "f16"
    flash_attn: Literal["auto"] | bool = "auto"


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How long a server is waited for, in seconds: to connect, for its first word, between two words.

    The first word may take a load of the model and a long prompt. Whatever a server sends,
    a comment to keep the line open included, begins the wait anew.
    """

    connect_s: float = 5.0
    first_token_s: float = 600.0
    silence_s: float = 120.0


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One document of `layouts/`. `model` is a path, a glob or `demo:smollm2`; on a server, its name there.

    The engines ollama and openai are servers that run already, at `url`. `options` go with
    every request, under the server's own names. `api_key_env` names the environment variable
    that holds the key. In `env` a null unsets the variable in the engine, an inherited one too.
    """

    name: str
    engine: EngineName = "llama.cpp"
    model: str
    url: str | None = None
    api_key_env: str | None = None
    keep_alive: str | int | None = None
    options: dict[str, Any] = {}
    timeouts: Timeouts = Timeouts()
    split: Split = Split()
    context: Context = Context()
    env: dict[str, str | None] = {}

    @property
    def served_by(self) -> str | None:
        """The address of the server, None for an engine of our own."""
        if self.engine == "llama.cpp":
            return None
        return (self.url or OLLAMA_URL).rstrip("/")

    @property
    def n_ctx_asked(self) -> int:
        """The context that the engine is asked for, in tokens; 0 where it knows its own."""
        return 0 if self.engine == "openai" else self.context.n_ctx

    def label(self) -> str:
        """How the model is placed, for people: `layer 3:1`, `ollama, 20 on cards`, `openai`."""
        if self.engine == "llama.cpp":
            return self.split.label()
        own = self.split.label().removeprefix("layer auto").removeprefix(", ")
        return f"{self.engine}, {own}" if own else self.engine


def on_one_server(layouts: Sequence[Layout]) -> bool:
    """Whether two or more layouts are served by one and the same server."""
    servers = [layout.served_by for layout in layouts if layout.served_by is not None]
    return len(servers) > len(set(servers))
