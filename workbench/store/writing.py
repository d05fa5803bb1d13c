"""Layouts out: readable YAML, written whole or not at all."""

import itertools
import os
import re
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import yaml

from workbench.domain.layout import Layout
from workbench.domain.rules import check_layout
from workbench.domain.split import Virtual
from workbench.store.documents import DocumentError
from workbench.store.places import documents, places
from workbench.store.tree import plain


def save_layout(layout: Layout, path: Path, *, overwrite: bool = False) -> Path:
    """Write a layout to `path`, making its folder.

    Raises DocumentError where the layout breaks a rule, where the file is there with other
    contents and `overwrite` is not set, and where the disk refuses.
    """
    for key, message in check_layout(layout):
        raise DocumentError(path, None, key, message)
    data = layout_yaml(layout).encode()
    try:
        if not overwrite and path.exists() and path.read_bytes() == data:
            return path
        if path.parent.exists() and not path.parent.is_dir():
            raise NotADirectoryError(0, f"{path.parent} is no folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data, overwrite=overwrite)
    except FileExistsError:
        raise DocumentError(path, None, None, "exists already; choose another name or overwrite it") from None
    except OSError as error:
        raise DocumentError(path, None, None, f"cannot be written: {error.strerror}; choose another folder") from None
    return path


def save_named(layout: Layout, name: str, *, overwrite: bool = False) -> Path:
    """Save a layout under a name, in ./layouts where there is one, else in the user's folder.

    Raises DocumentError, also for a name that is taken unless it may overwrite.
    """
    return save_layout(msgspec.structs.replace(layout, name=name), path_of(name), overwrite=overwrite)


def path_of(name: str) -> Path:
    """Where a layout of that name is saved."""
    near, own = places().layouts
    return (near if near.is_dir() else own) / file_name(name)


def free_name(name: str) -> str:
    """The name, or where a layout's file has it already, the first of NAME-2, NAME-3 … that is free."""
    taken = {path.stem for path in documents(places().layouts)}
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if Path(file_name(free)).stem not in taken)


def file_name(name: str) -> str:
    """The name of the file for a document's name: `my layout/2` becomes `my-layout-2.yaml`."""
    text = re.sub(r"[^\w.+-]+", "-", unicodedata.normalize("NFKC", name)).strip("-.")
    return f"{text[:60].rstrip('-.') or 'unnamed'}.yaml"


def write_atomically(path: Path, data: bytes, *, overwrite: bool, mode: int = 0o644) -> None:
    """Put `data` at `path` in one step. Raises FileExistsError unless it may overwrite, OSError."""
    target = path.resolve()
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(temporary, target)
        else:
            _move_to_new(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _move_to_new(temporary: str, target: Path) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if target.exists():
            raise FileExistsError(target) from None
        os.replace(temporary, target)


class _Flow(dict[str, Any]):
    """A mapping that is written on one line."""


class _Dumper(yaml.SafeDumper):
    """Lists in flow style, whole floats without a point, and quotes wherever a reader could misread."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = None if isinstance(plain(value), str) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _float(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    return dumper.represent_int(int(value)) if value.is_integer() else yaml.SafeDumper.represent_float(dumper, value)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(float, _float)
_Dumper.add_representer(list, lambda dumper, value: dumper.represent_sequence(
    "tag:yaml.org,2002:seq", value, flow_style=True))
_Dumper.add_representer(_Flow, lambda dumper, value: dumper.represent_mapping(
    "tag:yaml.org,2002:map", value.items(), flow_style=True))


def layout_yaml(layout: Layout) -> str:
    """A layout as a document, its keys in the order in which people read them."""
    document: dict[str, Any] = {"name": layout.name, "engine": layout.engine, "model": layout.model}
    if layout.served_by is not None:
        return _dumped(document | _served(layout))
    split = layout.split
    where: dict[str, Any] = {"split_mode": split.split_mode}
    if split.layers is not None:
        where["layers"] = list(split.layers)
    elif not isinstance(split.tensor_split, str):
        where["tensor_split"] = list(split.tensor_split)
    elif split.split_mode != "none":
        where["tensor_split"] = split.tensor_split
    if split.main_gpu or split.split_mode == "none":
        where["main_gpu"] = split.main_gpu
    if split.layers is None or split.n_gpu_layers != "all":
        where["n_gpu_layers"] = split.n_gpu_layers
    if isinstance(split.cards, Virtual):
        where["cards"] = _Flow(virtual=list(split.cards.virtual))
    elif split.cards is not None:
        where["cards"] = list(split.cards)
    context = _Flow({name: getattr(layout.context, name) for name in layout.context.__struct_fields__})
    document |= {"split": where, "context": context}
    if layout.env:
        document["env"] = _Flow(layout.env)
    return _dumped(document)


def _served(layout: Layout) -> dict[str, Any]:
    """The keys that a layout of a server has beside its first three: what differs from the defaults."""
    plain = msgspec.to_builtins(layout)
    return {
        name: _Flow(plain[name]) if isinstance(plain[name], dict) else plain[name]
        for name in ("url", "api_key_env", "keep_alive", "split", "context", "options", "timeouts", "env")
        if plain.get(name)
    }


def _dumped(document: dict[str, Any]) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, default_flow_style=False,
                          allow_unicode=True, width=1 << 16)
    return text
