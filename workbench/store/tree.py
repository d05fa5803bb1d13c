"""Text to plain values, with the line of every key: YAML and JSON lines, strictly.

Scalars are read by the YAML 1.2 core schema, so `no` is a word and `0000:41:00.0` is no
number in base sixty. Aliases, tags, repeated keys and deep nesting are refused.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

MAX_DEPTH = 12
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CONSTANTS: dict[str, Any] = {"": None, "~": None} | {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}
_INT = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_RIGHT = (
    ("mapping values are not allowed", "put text that holds `: ` in quotes"),
    ("cannot start any token", "put text that begins with a special character in quotes, and indent with spaces"),
    ("expected ',' or", "close the bracket, and put a comma between its entries"),
    ("expected <block end>", "indent the lines of one block alike"),
    ("could not find expected ':'", "write `key: value`"),
    ("unexpected end of stream", "close the quote"),
)


class TreeError(Exception):
    """Text that is no such document: the line (from 1), the key if there is one, and what is wrong."""

    def __init__(self, line: int | None, key: str, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.key = key
        self.message = message


@dataclass
class Tree:
    """A document's plain value; `lines` and `raw` (the scalar as written) by key: `split.layers[1]`."""

    value: Any = None
    lines: dict[str, int] = field(default_factory=dict)
    raw: dict[str, str] = field(default_factory=dict)

    def line_of(self, key: str) -> int | None:
        """The line of a key, or of the nearest one around it that is there."""
        while key not in self.lines and key:
            key = key[: key.rfind("[")] if key.endswith("]") else key.rpartition(".")[0]
        return self.lines.get(key)


def plain(text: str) -> Any:
    """The value of an unquoted scalar."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(text.replace(".", "", 1)) if _SPECIAL.fullmatch(text) else text


def join(parent: str, key: str) -> str:
    """The key of an entry of `parent`."""
    return f"{parent}.{key}" if parent else key


def parse_yaml(text: str) -> Tree:
    """The one document in `text`. Raises TreeError."""
    if bad := _UNPRINTABLE.search(text):
        raise TreeError(text.count("\n", 0, bad.start()) + 1, "", f"not valid YAML: the character {bad[0]!r} is not "
                        "printable; remove it, or write it as an escape in double quotes")
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(text, error) from None
    except yaml.YAMLError as error:
        raise TreeError(None, "", f"not valid YAML: {error}; write UTF-8 text") from None
    return builder.tree


def _syntax_error(text: str, error: yaml.MarkedYAMLError) -> TreeError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    lines = text.splitlines()
    if line <= len(lines) and re.match(r" *\t", lines[line - 1]):
        return TreeError(line, "", "not valid YAML: a tab indents this line; indent with spaces")
    problem = error.problem or "it cannot be read"
    begun = error.context_mark
    since = f" (begun on line {begun.line + 1})" if begun and begun.line + 1 != line else ""
    right = next((right for part, right in _RIGHT if part in problem), "look at its indentation, quotes and brackets")
    return TreeError(line, "", f"not valid YAML: {problem}{since}; {right}")


class _Builder:
    """Builds a Tree from parser events, without recursion."""

    def __init__(self) -> None:
        self.tree = Tree()
        self._stack: list[_Open] = []
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise TreeError(line, "", "a second document begins here; keep one document a file")
            case yaml.AliasEvent():
                self._refuse(line, f"the alias *{event.anchor} is not read; write the value out")
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._no_tag(event, line)
                self._open(line, {} if isinstance(event, yaml.MappingStartEvent) else [])
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._stack.pop()
            case yaml.ScalarEvent():
                self._no_tag(event, line)
                self._scalar(event, line)

    def _refuse(self, line: int, message: str) -> NoReturn:
        raise TreeError(line, self._stack[-1].here() if self._stack else "", message)

    def _no_tag(self, event: Any, line: int) -> None:
        if event.tag is not None:
            self._refuse(line, f"the tag {event.tag} is not read; write the plain value")

    def _open(self, line: int, container: dict[str, Any] | list[Any]) -> None:
        if self._stack and self._stack[-1].wants_key():
            self._refuse(line, "a key is a list or a mapping; write a word before the colon")
        if len(self._stack) >= MAX_DEPTH:
            raise TreeError(line, "", f"is nested more than {MAX_DEPTH} deep; no document needs that")
        key = self._place(line, container)
        self._stack.append(_Open(container, key))

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        top = self._stack[-1] if self._stack else None
        if top is not None and top.wants_key():
            key = join(top.key, event.value)
            if isinstance(top.container, dict) and event.value in top.container:
                first = self.tree.lines.get(key)
                raise TreeError(line, key, f"is given twice, first on line {first}; keep one")
            top.pending = event.value
            self.tree.lines.setdefault(key, line)
            return
        key = self._place(line, event.value if event.style else plain(event.value))
        self.tree.raw[key] = event.value

    def _place(self, line: int, value: Any) -> str:
        if not self._stack:
            self.tree.value = value
            self.tree.lines[""] = line
            return ""
        top = self._stack[-1]
        key = top.here()
        self.tree.lines.setdefault(key, line)
        if isinstance(top.container, dict):
            top.container[top.pending or ""] = value
            top.pending = None
        else:
            top.container.append(value)
        return key


@dataclass
class _Open:
    """A mapping or sequence that is being read; `pending` is the key whose value comes next."""

    container: dict[str, Any] | list[Any]
    key: str
    pending: str | None = None

    def wants_key(self) -> bool:
        return isinstance(self.container, dict) and self.pending is None

    def here(self) -> str:
        if isinstance(self.container, dict):
            return join(self.key, self.pending) if self.pending is not None else self.key
        return f"{self.key}[{len(self.container)}]"


def parse_json_lines(text: str, parent: str) -> Tree:
    """A list with the object of each line; blank lines are skipped. Keys begin `parent[i]`. Raises TreeError."""
    tree = Tree(value=[], lines={"": 1, parent: 1})
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        key = f"{parent}[{len(tree.value)}]"
        tree.lines[key] = number
        try:
            value = json.loads(line, object_pairs_hook=_no_repeats)
        except json.JSONDecodeError as error:
            raise TreeError(number, "", f"not valid JSON at column {error.colno}: {error.msg}; write one object a "
                            'line, for example {"prompt": "Hello"}') from None
        except (_Repeated, RecursionError, ValueError) as error:
            what = f"`{error}` is given twice; keep one" if isinstance(error, _Repeated) else \
                "not valid JSON: a number or a nesting beyond all measure; write one plain object a line"
            raise TreeError(number, key, what) from None
        tree.value.append(value)
    return tree


class _Repeated(Exception):
    """A key that is given twice in one JSON object."""


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise _Repeated(key)
        out[key] = value
    return out
