"""`workbench check`: every fault of layouts, prompt sets, the configuration and the key map; no model is loaded."""

import functools
from collections.abc import Sequence
from pathlib import Path

import click

from workbench.domain.rules import check_positions
from workbench.domain.text import visible
from workbench.store.config import Config, UserKeys
from workbench.store.documents import DocumentError, check_as, check_document, read_layout
from workbench.store.models import ModelError, is_unknown_demo, resolve_model
from workbench.store.places import check_config


def check_files(files: Sequence[str]) -> bool:
    """Print a line for each fault on stderr, and one for each sound file; whether all are sound."""
    sound = True
    for file in files:
        errors = faults_of(file)
        sound = sound and not errors
        for error in errors:
            click.echo(str(error), err=True)
        if not errors:
            click.echo(f"{visible(file)}: sound")
    return sound


def faults_of(file: str) -> list[DocumentError]:
    """The faults of a document; configuration and key map are known by their names."""
    match Path(file).name:
        case "config.yaml":
            return check_as(file, Config, check_config)
        case "keymap.yaml":
            from workbench.app.user_keys import check_keys  # brings Textual along

            return check_as(file, UserKeys, check_keys)
        case _:
            return check_document(file) or misfits_of(file)


def misfits_of(file: str) -> list[DocumentError]:
    """What a sound layout asks of its model that the model has not, as far as its header tells.

    A model file that is not on this machine is no fault: it may be on another.
    """
    try:
        layout = read_layout(file)
        if layout.served_by is not None:
            return []
        path = resolve_model(layout.model)
    except ModelError as error:
        return [DocumentError.at(file, error.key, error.message)] if is_unknown_demo(layout.model) else []
    except DocumentError:  # a prompt set
        return []
    n_layer = n_layer_of(path) if layout.split.layers is not None else None
    fault = None if n_layer is None else check_positions(layout.split, n_layer)
    return [] if fault is None else [DocumentError.at(file, f"split.{fault.key}", fault.message)]


@functools.cache
def n_layer_of(path: Path) -> int | None:
    """How many layers a model has; None where its header cannot be read."""
    from workbench.engines.engine import EngineError  # the engine is for layouts with counted layers alone
    from workbench.engines.llama.client import inspect_models
    from workbench.store.places import places

    try:
        (seen,) = inspect_models([path], places().engine_log)
    except EngineError:
        return None
    return None if seen.model is None else seen.model.n_layer
