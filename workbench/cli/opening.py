"""What `workbench [LAYOUT | MODEL.gguf | FOLDER]` names."""

import os
from pathlib import Path

from workbench.domain.layout import Layout
from workbench.store.documents import read_layout
from workbench.store.models import resolve_model
from workbench.store.places import find_layout


def what_to_open(target: str) -> Layout | Path:
    """A layout, one made for a model, or a folder of models to choose from.

    Raises DocumentError, ModelError.
    """
    path = Path(os.path.expanduser(target))
    if os.path.isdir(path):
        return path
    if path.suffix.lower() == ".gguf":
        return Layout(name=path.stem, model=str(resolve_model(target).absolute()))
    return read_layout(find_layout(target))
