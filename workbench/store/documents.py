"""Layouts, prompt sets and the configuration: documents in, errors that name file, line and key."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from workbench.domain.faults import Fault, nearest
from workbench.domain.layout import Layout
from workbench.domain.prompts import Prompt, PromptSet
from workbench.domain.rules import check_layout, check_prompt_set
from workbench.domain.text import visible
from workbench.store.fit import fit
from workbench.store.tree import Tree, TreeError, parse_json_lines, parse_yaml

MAX_YAML_BYTES = 1 << 20
MAX_JSONL_BYTES = 16 << 20
_Document = TypeVar("_Document", bound=msgspec.Struct)


class DocumentError(Exception):
    """A document that cannot be used: where, and what is wrong; what would be right.

    `line` counts from 1, None where no line is to blame; `key` is such as `split.layers[1]`,
    None for the document as a whole.
    """

    def __init__(self, path: str | Path, line: int | None, key: str | None, message: str) -> None:
        place = str(path) if line is None else f"{path}:{line}"
        super().__init__(visible(f"{place}: {key}: {message}" if key else f"{place}: {message}"))
        self.path = Path(path)
        self.line = line
        self.key = key
        self.message = visible(message)

    @classmethod
    def at(cls, path: str | Path, key: str, message: str) -> "DocumentError":
        """The error of a key that turned out wrong after reading, such as at the load."""
        return cls(path, locate(path, key), key, message)


def read_layout(path: str | Path, n_cards: int | None = None) -> Layout:
    """A layout. `n_cards` is how many cards the machine has, where known. Raises DocumentError."""
    return read_document(path, Layout, lambda layout: check_layout(layout, n_cards))


def read_prompt_set(path: str | Path) -> PromptSet:
    """A prompt set, YAML or, by the name's end, JSON lines. Raises DocumentError."""
    return read_document(path, PromptSet, check_prompt_set)


def read_document(path: str | Path, kind: type[_Document], rules: Callable[[_Document], list[Fault]]) -> _Document:
    """A document of any kind. Raises DocumentError for its first fault."""
    document, errors = _read(path, kind, rules)
    if document is None:
        raise errors[0]
    return document


def check_document(path: str | Path) -> list[DocumentError]:
    """All faults of a layout or prompt set, told apart by the key `prompts`; empty if it is sound."""
    try:
        tree = _tree(Path(path))
    except DocumentError as error:
        return [error]
    if isinstance(tree.value, dict) and "prompts" in tree.value:
        return _read(path, PromptSet, check_prompt_set)[1]
    return _read(path, Layout, check_layout)[1]


def check_as(
    path: str | Path, kind: type[_Document], rules: Callable[[_Document], list[Fault]]
) -> list[DocumentError]:
    """All faults of a document of a known kind; empty if it is sound."""
    return _read(path, kind, rules)[1]


def is_there(path: Path) -> bool:
    """Whether there is a file of that name, also one that may not be looked at."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def locate(path: str | Path, key: str) -> int | None:
    """The line of a key, or of what would hold it; None if the document cannot be read."""
    try:
        return _tree(Path(path)).line_of(key)
    except DocumentError:
        return None


def _read(
    path: str | Path, kind: type[_Document], rules: Callable[[_Document], list[Fault]]
) -> tuple[_Document | None, list[DocumentError]]:
    try:
        tree = _tree(Path(path))
    except DocumentError as error:
        return None, [error]
    value, faults = fit(tree, kind)
    document = None if faults else msgspec.convert(value, kind)
    if document is not None:
        faults = rules(document)
    errors = [DocumentError(path, tree.line_of(key) or 1, key or None, message) for key, message in faults]
    return (None if errors else document), errors


def _tree(path: Path) -> Tree:
    is_jsonl = path.suffix.lower() == ".jsonl"
    text = _text(path, MAX_JSONL_BYTES if is_jsonl else MAX_YAML_BYTES)
    try:
        return _from_json_lines(path, text) if is_jsonl else parse_yaml(text)
    except TreeError as error:
        raise DocumentError(path, error.line, error.key or None, error.message) from None


def _text(path: Path, most: int) -> str:
    try:
        if path.is_dir():
            raise DocumentError(path, None, None, "is a folder; name a document in it")
        if path.exists() and not path.is_file():
            raise DocumentError(path, None, None, "is no plain file; name a document")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        raise DocumentError(path, None, None, "does not exist; check the name and the folder") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DocumentError(path, None, None, f"cannot be read: {reason}; check its name and permissions") from None
    if len(data) > most:
        raise DocumentError(path, None, None, f"is larger than {most >> 20} MiB; name a layout or a prompt set")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"is not UTF-8 (byte 0x{data[error.start]:02x}); save it as UTF-8"
        raise DocumentError(path, line, None, what) from None


def _from_json_lines(path: Path, text: str) -> Tree:
    tree = parse_json_lines(text, "prompts")
    for at, entry in enumerate(tree.value):
        key = f"prompts[{at}]"
        if isinstance(entry, dict):
            tree.value[at] = _prompt_entry(entry, path, tree.lines[key], key)
    tree.value = {"name": path.stem, "prompts": tree.value}
    return tree


def _prompt_entry(entry: dict[str, Any], path: Path, line: int, key: str) -> dict[str, Any]:
    if "prompt" in entry and not isinstance(entry["prompt"], str):
        raise DocumentError(path, line, f"{key}.prompt", "is not text; write it in quotes")
    if "prompt" in entry and "text" in entry:
        raise DocumentError(path, line, f"{key}.text", "stands beside prompt, which means the same; keep one")
    if not entry.keys() & {"prompt", "text", "messages", "synthetic"}:
        known = ("prompt", *Prompt.__struct_fields__)
        for name in (name for name in entry if name not in known):
            right = nearest(name, known) or '; write for example {"prompt": "Hello"}'
            raise DocumentError(path, line, f"{key}.{name}", f"is no key of `{key}`{right}")
        raise DocumentError(path, line, key, 'has nothing to ask; write for example {"prompt": "Hello"}')
    return {"id": f"line-{line}"} | {("text" if name == "prompt" else name): value for name, value in entry.items()}
