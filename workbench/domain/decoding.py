"""JSON from outside, with one kind of error."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """What the decoder makes of it. Raises msgspec.DecodeError for whatever it cannot be, too deep a nesting too."""
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
