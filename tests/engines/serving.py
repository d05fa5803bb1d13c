"""Engines on servers, for tests: layouts, and an engine that has loaded."""

from typing import Any

import msgspec

from tests.servers.running import Contract
from workbench.domain.conversation import Message, Sampling
from workbench.domain.layout import EngineName, Layout, Timeouts
from workbench.engines.engine import Filler, Request
from workbench.engines.ollama import OllamaEngine
from workbench.engines.openai import OpenAIEngine
from workbench.engines.server import ServerEngine

OPENERS = {"ollama": OllamaEngine.open, "openai": OpenAIEngine.open}
PATIENT = Timeouts(connect_s=5, first_token_s=20, silence_s=20)
IMPATIENT = Timeouts(connect_s=0.5, first_token_s=0.5, silence_s=0.5)
REPLY = "Rivers run to the sea. Ünïcode 🦀"


def layout(engine: EngineName, url: str, timeouts: Timeouts = PATIENT, **more: object) -> Layout:
    """A layout of the contract's model."""
    given: dict[str, object] = {"model": "tiny", "name": "served"} | more
    return Layout(engine=engine, url=url, timeouts=timeouts, **given)  # type: ignore[arg-type]


def opened(engine: EngineName, server: Contract | str, timeouts: Timeouts = PATIENT, **more: object) -> ServerEngine:
    """An engine that has seen its model."""
    url = server if isinstance(server, str) else server.url
    return OPENERS[engine](layout(engine, url, timeouts, **more))


def asks(*said: str, salt: int | None = None, **sampling: Any) -> Request:
    """A request: prompts and replies in turn, the last one a prompt."""
    messages = tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(said))
    given = msgspec.structs.replace(Sampling(temperature=0.0), **sampling)
    return Request(messages=messages, sampling=given, filler=None if salt is None else Filler(salt=salt))


def unheard(_: object) -> None:
    """Listens to nothing."""
