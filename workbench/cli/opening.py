"""What `workbench [LAYOUT | MODEL.gguf | FOLDER]` names."""

import os
from collections.abc import Collection
from pathlib import Path

from workbench.cli.failures import Code, CommandFailed
from workbench.domain.faults import nearest_word
from workbench.domain.layout import Layout
from workbench.store.documents import DocumentError, read_layout
from workbench.store.models import resolve_model
from workbench.store.places import find_layout


def what_to_open(target: str, commands: Collection[str] = ()) -> Layout | Path:
    """A layout, one made for a model, or a folder of models to choose from.

    Raises DocumentError, ModelError; CommandFailed where it may be one of the `commands`, mistyped.
    """
    path = Path(os.path.expanduser(target))
    if os.path.isdir(path):
        return path
    if path.suffix.lower() == ".gguf":
        return Layout(name=path.stem, model=str(resolve_model(target).absolute()))
    try:
        file = find_layout(target)
    except DocumentError as error:
        near = nearest_word(target, commands)
        if near is None:
            raise
        asked = " Or" if error.message.endswith("?") else ";"
        raise CommandFailed(f"{error}{asked} did you mean `workbench {near}`?", Code.WRONG) from None
    return read_layout(file)
