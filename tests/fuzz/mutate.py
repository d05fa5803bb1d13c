"""Slips and malice: another text near a given one, cut anywhere, or wrong in one value of its JSON."""

import json
import random
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 2**31, 2**63, 2**64, -(2**70), 0.5, -0.0, 1e308, 1e-320, "", "a", "auto", "none",
    "\x1b[2J\x1b]0;t\x07", "\u202e\u200b\u0301\u0301", "\ud800", "a\nb\tc", "x" * 300, "0", "NaN", "..", "/", "~",
    "[@click=quit]", [], {}, [[]], [1, 2, 3], {"": None}, {"a": {"b": [1]}},
)  # fmt: skip
PIECES = (
    b"\x00", b"\n", b"\r\n", b"\x1b[", b"\xff", b"\xed\xa0\x80", b"\xe2\x80\xae", b"{", b"}", b"[", b"]", b":", b",",
    b'"', b"'", b"-", b"#", b"&a", b"*a", b"!!", b"%", b"1e999", b"nan", b"-0", b"0x", b"99999999999999999999",
)  # fmt: skip
DEEP = 3000


def mutate(data: bytes, chance: random.Random) -> bytes:
    """One or a few changes; half of them keep JSON lines what they are."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        data = _in_json(data, chance) if chance.random() < 0.6 else _in_bytes(data, chance)
    return data


def _in_bytes(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    end = min(len(data), at + chance.choice((0, 1, 2, 8, 40)))
    kind = chance.randrange(5)
    if kind == 0:
        return data[:at] + data[end:]
    if kind == 1:
        return data[:end] + data[at:]
    if kind == 2 and at < len(data):
        return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
    if kind == 3:
        start = chance.randrange(len(data) + 1)
        return data[:at] + data[start : start + chance.choice((1, 8, 64))] + data[end:]
    return data[:at] + chance.choice(PIECES) + data[end:]


def _in_json(data: bytes, chance: random.Random) -> bytes:
    """Another value at one place of one JSON line; other lines than JSON are changed as bytes are."""
    lines = data.split(b"\n")
    number = chance.randrange(len(lines))
    head, brace, body = lines[number].partition(b"{")
    try:
        value = json.loads(brace + body)
    except (ValueError, RecursionError):
        return _in_bytes(data, chance)
    places = list(_places(value))
    if not places:
        return _in_bytes(data, chance)
    holder, key = chance.choice(places)
    kind = chance.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif kind == 2:
        other, place = chance.choice(places)
        holder[key] = json.loads(json.dumps(other[place]))
    elif kind == 3 and chance.random() < 0.05:
        text = json.dumps(value).encode().replace(json.dumps(holder[key]).encode(), b"[" * DEEP, 1)
        lines[number] = head + text
        return b"\n".join(lines)
    else:
        holder[key] = chance.choice(VALUES)
    lines[number] = head + json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    if chance.random() < 0.1:
        lines.insert(chance.randrange(len(lines)), lines[number])
    return b"\n".join(lines)


def _places(value: Any) -> Any:
    """Every (container, key) below a value."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)
