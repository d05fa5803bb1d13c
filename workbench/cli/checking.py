"""`workbench check`: every fault of layouts, prompt sets, the configuration and the key map."""

from collections.abc import Sequence
from pathlib import Path

import click

from workbench.domain.text import visible
from workbench.store.config import Config, UserKeys
from workbench.store.documents import DocumentError, check_as, check_document
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
            return check_document(file)
