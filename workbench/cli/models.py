"""`workbench models`: what a server has."""

from collections.abc import Sequence

import click

from workbench.cli.text import UNKNOWN, json_text, table
from workbench.domain.card import format_mib
from workbench.engines.engine import ModelInfo
from workbench.lab.servers import server_models
from workbench.store.documents import read_layout
from workbench.store.places import find_layout


def print_models(name: str, *, as_json: bool) -> None:
    """Print the models of a layout's server. Raises EngineError."""
    models = server_models(read_layout(find_layout(name)))
    click.echo(models_json(models) if as_json else models_table(models))


def models_json(models: Sequence[ModelInfo]) -> str:
    """An array of objects; sizes in MiB, null where the server does not tell."""
    fields = ("arch", "quantisation", "n_ctx_train", "n_params", "size_mib", "digest")
    rows = [{"name": model.path, **{field: getattr(model, field) or None for field in fields}} for model in models]
    return json_text(rows)


def models_table(models: Sequence[ModelInfo]) -> str:
    """One line a model."""
    rows: list[tuple[str, ...]] = [("model", "size", "quantisation", "context")]
    for model in models:
        cells = (format_mib(model.size_mib) if model.size_mib else "", model.quantisation,
                 str(model.n_ctx_train or ""))  # fmt: skip
        rows.append((model.path, *(cell or UNKNOWN for cell in cells)))
    return table(rows)
