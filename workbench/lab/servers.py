"""The models that a layout's server has, and those that it holds in memory."""

import contextlib
from collections.abc import Callable, Iterable

import msgspec

from workbench.domain.layout import Layout, Timeouts
from workbench.engines.engine import Engine, EngineError, ModelInfo
from workbench.lab.trust import check_key

BRIEF = Timeouts(connect_s=1.0, first_token_s=5.0, silence_s=5.0)
"""For a question that nobody waits long for."""


def server_models(layout: Layout, timeouts: Timeouts | None = None) -> tuple[ModelInfo, ...]:
    """Each model, as far as the server describes it. Raises EngineError, also for a layout of no server."""
    from workbench.engines import ollama, openai  # with HTTP, whose memory only servers are to cost
    from workbench.engines.http import Http
    from workbench.engines.server import key_of

    timeouts = timeouts or layout.timeouts
    if layout.served_by is None:
        raise EngineError(f"{layout.name} is no layout of a server", key="engine")
    check_key(layout)
    key = key_of(layout)
    if layout.engine == "ollama":
        return ollama.list_models(Http(layout.served_by, timeouts, key))
    return openai.list_models(Http(openai.api_base(layout.served_by), timeouts, key))


def known_servers(layouts: Iterable[Layout]) -> tuple[Layout, ...]:
    """One layout for each server that these name, in their order."""
    servers: dict[tuple[str | None, str | None], Layout] = {}
    for layout in layouts:
        if layout.served_by is not None:
            servers.setdefault((layout.served_by, layout.api_key_env), layout)
    return tuple(servers.values())


def unload(layouts: Iterable[Layout], call: Callable[[Engine, Callable[[], None]], None]) -> None:
    """Have each Ollama unload its model, where an earlier use left it in memory; what does not answer is let be.

    `call` makes an engine's call, so that it can be cancelled.
    """
    for layout in layouts:
        if layout.engine != "ollama":
            continue
        from workbench.engines.ollama import OllamaEngine

        with contextlib.suppress(EngineError):
            check_key(layout)
            if OllamaEngine.open(msgspec.structs.replace(layout, timeouts=BRIEF)).is_in_memory():
                engine = OllamaEngine.open(layout)
                call(engine, engine.unload)
