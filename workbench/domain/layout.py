"""Layouts: model, engine, split, context settings and environment, as saved."""

from typing import Literal

import msgspec

from workbench.domain.split import Split

EngineName = Literal["llama.cpp", "ollama", "openai"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Context settings under llama.cpp's names; n_ctx 0 means what the model was trained with."""

    n_ctx: int = 4096
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: Literal["auto"] | int = "auto"
    type_k: CacheType = "f16"
    type_v: CacheType = "f16"
    flash_attn: Literal["auto"] | bool = "auto"


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One document of `layouts/`. `model` is a path, a glob or `demo:smollm2`.

    In `env` a null unsets the variable in the engine, an inherited one too.
    """

    name: str
    engine: EngineName = "llama.cpp"
    model: str
    split: Split = Split()
    context: Context = Context()
    env: dict[str, str | None] = {}
