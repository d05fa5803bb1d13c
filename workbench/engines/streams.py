"""A reply as it arrives: bytes to lines and events, pieces to whole characters, and when each came."""

import time
from collections.abc import Callable

from workbench.domain.timing import Timing
from workbench.engines.engine import EngineError

LONGEST_LINE = 16 << 20
TOO_QUICK_S = 1e-4
"""A token in less than this was not made meanwhile: it had been kept back."""
FEWEST_READS = 2
ALL_AT_ONCE = "the reply came all at once, so its speed is not known; a proxy on the way may keep it back"


class Lines:
    """Whole lines of what was read so far; half a line, or half a character, waits for the rest."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, read: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends. Raises EngineError for one without end."""
        self._rest += read
        if b"\n" not in read:
            if len(self._rest) > LONGEST_LINE:
                raise EngineError(f"the server sent a line of more than {LONGEST_LINE >> 20} MiB")
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [line.removesuffix(b"\r") for line in lines]

    def rest(self) -> bytes:
        """What came after the last line's end."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest


class Events:
    """Server-sent events: the field `data` of each, or of an `error` that some servers send so."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._data: list[str] = []

    def feed(self, read: bytes) -> list[str]:
        """The events that are whole now. Raises EngineError."""
        found = [self._take(line) for line in self._lines.feed(read)]
        return [event for event in found if event is not None]

    def rest(self) -> str | None:
        """An event that the end of the stream cut off from its blank line."""
        event = self._take(self._lines.rest())
        return event if event is not None else self._take(b"")

    def _take(self, line: bytes) -> str | None:
        if not line:
            event = "\n".join(self._data) if self._data else None
            self._data = []
            return event
        field, _, value = line.decode("utf-8", "replace").partition(":")
        if field in ("data", "error"):
            self._data.append(value.removeprefix(" "))
        return None


class Heard:
    """The reply so far: its text, with thinking in tags, and the clock of its arrival.

    `on_text` gets whole characters only. The clock is monotonic: one that jumps is not read.
    """

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._pieces: list[str] = []
        self._half = ""
        self._thinking = False
        self._begun = time.monotonic()
        self._now = self._begun
        self._first = self._last = 0.0
        self._reads = 0
        self._count = self._in_first = 0

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)

    @property
    def count(self) -> int:
        """The pieces so far; most servers send a token a piece."""
        return self._count

    @property
    def ttft_s(self) -> float:
        """Seconds from the request to the first piece, or till now."""
        return (self._first or time.monotonic()) - self._begun

    def read(self) -> None:
        """Something was read from the network: what comes of it arrived now."""
        self._now = time.monotonic()

    def say(self, text: str) -> None:
        """A piece of the answer."""
        self._piece(text, thinking=False)

    def think(self, text: str) -> None:
        """A piece of the thinking before the answer."""
        self._piece(text, thinking=True)

    def end(self) -> None:
        """Nothing follows."""
        if self._half:
            self._half = ""
            self._emit("�")
        if self._thinking:
            self._thinking = False
            self._emit("</think>")

    def _piece(self, text: str, *, thinking: bool) -> None:
        if not text:
            return
        if not self._first:
            self._first = self._now
        if self._now != self._last:
            self._reads += 1
        self._last = self._now
        self._count += 1
        if self._last == self._first:
            self._in_first += 1
        text = self._whole(text)
        if thinking != self._thinking:
            self._thinking = thinking
            text = f"<think>{text}" if thinking else f"</think>\n\n{text.lstrip()}"
        self._emit(text)

    def _whole(self, text: str) -> str:
        """The text with surrogates joined: JSON may cut a character in two across pieces."""
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _emit(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._on_text(text)

    def timing(self, prompt_tokens: int = 0, tokens: int | None = None, cached: int = 0) -> tuple[Timing, str]:
        """Timings by this side's clock, over the server's counts where it gave any; and a caveat.

        What arrived in one read counts as made by then, so a server or a proxy that sends
        several tokens at a time is timed right, and one that keeps all back is not timed.
        """
        counted = tokens is not None
        tokens = self._count if tokens is None else tokens
        decode_s = self._last - self._first
        decoded = round(tokens * (self._count - self._in_first) / self._count) if self._count else 0
        at_once = tokens > FEWEST_READS and (self._reads < FEWEST_READS or decode_s < decoded * TOO_QUICK_S)
        if at_once:
            decoded, decode_s = 0, 0.0
        evaluated = 0 if at_once else max(0, prompt_tokens - cached)
        timing = Timing(
            prompt_tokens=prompt_tokens,
            evaluated_tokens=evaluated,
            tokens=tokens,
            decoded_tokens=decoded,
            ttft_s=self.ttft_s,
            prefill_s=self.ttft_s if evaluated else 0.0,
            decode_s=decode_s,
            source="client" if counted else "pieces",
        )
        return timing, ALL_AT_ONCE if at_once else ""
