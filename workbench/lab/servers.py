"""The models that a layout's server has."""

from workbench.domain.layout import Layout
from workbench.engines import ollama, openai
from workbench.engines.engine import EngineError, ModelInfo
from workbench.engines.http import Http
from workbench.engines.server import key_of


def server_models(layout: Layout) -> tuple[ModelInfo, ...]:
    """Each model, as far as the server describes it. Raises EngineError, also for a layout of no server."""
    if layout.served_by is None:
        raise EngineError(f"{layout.name} is no layout of a server", key="engine")
    key = key_of(layout)
    if layout.engine == "ollama":
        return ollama.list_models(Http(layout.served_by, layout.timeouts, key))
    return openai.list_models(Http(openai.api_base(layout.served_by), layout.timeouts, key))
