"""What servers have in common as engines: chat with cancel, the probe, states that stay where they are."""

import base64
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import msgspec

from workbench.domain.conversation import Message, Sampling, StopReason
from workbench.domain.layout import Context, Layout
from workbench.domain.timing import Probe, Timing
from workbench.engines.engine import (
    EngineError,
    Filler,
    LoadCancelled,
    Loaded,
    LoadFailed,
    LoadProgress,
    Reply,
    ReplyBroken,
    Request,
    SavedState,
    StateRefused,
)
from workbench.engines.http import Cancelled, Http
from workbench.engines.streams import Heard

PROBE_WORDS = 64
PROBE_TOKENS = 48
WARM_UP_TOKENS = 8
LARGEST_IMAGE = 20 << 20
WORDS = (
    "air", "art", "bag", "bar", "bay", "bed", "bit", "box", "boy", "bus", "car", "cat", "cup", "day", "dog", "door",
    "ear", "egg", "end", "eye", "farm", "fire", "fish", "fog", "food", "game", "gas", "gold", "hand", "hat", "hill",
    "home", "ice", "ink", "jar", "key", "king", "lake", "lamp", "leaf", "line", "map", "milk", "moon", "nail", "name",
    "net", "oil", "page", "park", "pen", "pig", "rain", "ring", "road", "rock", "room", "rope", "salt", "sand", "sea",
    "ship", "sky", "snow", "song", "star", "sun", "tea", "top", "town", "tree", "wall", "water", "wind",
)  # fmt: skip
"""Words that are one token to most models."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a reply ended, by the server's word; `timing` None where it told no times."""

    stop_reason: StopReason
    timing: Timing
    caveat: str = ""


class ServerEngine(ABC):
    """A model on a server. `look_at_model` comes first; see `engine.Engine` for the other calls."""

    def __init__(self, layout: Layout, key: str | None) -> None:
        assert layout.served_by is not None
        self._layout = layout
        self._http = Http(layout.served_by, layout.timeouts, key)
        self._cancelled = False

    # ── what differs ──────────────────────────────────────────────────────────────────────
    @abstractmethod
    def look_at_model(self) -> None:
        """See whether the server answers and has the model, and load nothing. Raises LoadFailed."""

    @abstractmethod
    def _load(self, on_progress: Callable[[LoadProgress], None]) -> Loaded:
        """Load, or see that it is loaded."""

    @abstractmethod
    def _answer(self, request: Request, heard: Heard) -> Ending:
        """Ask, and hear the reply to its end."""

    @abstractmethod
    def new_context(self, context: Context) -> Loaded:
        """See `Engine`."""

    @abstractmethod
    def close(self) -> None:
        """End what this engine started."""

    # ── the calls ─────────────────────────────────────────────────────────────────────────
    def load(self, on_progress: Callable[[LoadProgress], None]) -> Loaded:
        """See `Engine`. Raises LoadFailed, LoadCancelled."""
        self._cancelled = False
        try:
            return self._load(on_progress)
        except Cancelled:
            raise LoadCancelled("the load was cancelled") from None
        except LoadFailed:
            raise
        except EngineError as error:
            raise LoadFailed(error.reason, key=error.key) from error

    def chat(self, request: Request, on_text: Callable[[str], None]) -> Reply:
        """See `Engine`. Raises PromptTooLong, ReplyBroken, EngineError."""
        self._cancelled = False
        return self._chat(request, on_text)

    def _chat(self, request: Request, on_text: Callable[[str], None]) -> Reply:
        heard = Heard(on_text)
        try:
            ending = self._answer(request, heard)
            heard.end()
        except Cancelled:
            heard.end()
            timing, _ = heard.timing()
            return Reply(text=heard.text, stop_reason="cancelled", timing=timing)
        except EngineError as error:
            if heard.text:
                raise ReplyBroken(error.reason, heard.text) from error
            raise
        return Reply(text=heard.text, stop_reason=ending.stop_reason, timing=ending.timing, caveat=ending.caveat)

    def probe(self) -> Probe | None:
        """See `Engine`: a prompt that no cache has seen. Raises EngineError where the server tells no speed."""
        self._cancelled = False
        sampling = Sampling(max_tokens=WARM_UP_TOKENS, temperature=0.0, ignore_eos=True, seed=1)
        for number, tokens in enumerate((WARM_UP_TOKENS, PROBE_TOKENS)):
            salt = random.SystemRandom().randrange(10**9)
            request = Request(
                sampling=msgspec.structs.replace(sampling, max_tokens=tokens),
                filler=Filler(prompt_tokens=PROBE_WORDS, salt=salt),
            )
            reply = self._chat(request, lambda _: None)
            if reply.stop_reason == "cancelled":
                return None
            if number == 0:
                continue
            timing = reply.timing
            if timing.decode_tok_s is None:
                raise EngineError(f"no probe: {reply.caveat or 'the reply was too short to tell its speed'}")
            return Probe(
                depth=timing.prompt_tokens or PROBE_WORDS,
                tokens=timing.tokens,
                prefill_tok_s=timing.prefill_tok_s,
                decode_tok_s=timing.decode_tok_s,
            )
        return None

    def expect_state(self, path: Path, size: int) -> None:  # noqa: B027 - no server has more to do here
        """None comes."""

    def save_state(self, path: Path) -> SavedState:
        """A server keeps its state to itself. Raises StateRefused."""
        raise StateRefused("a server keeps the state of a conversation to itself")

    def restore_state(self, state: SavedState) -> None:
        """A server takes no state. Raises StateRefused."""
        raise StateRefused("a server takes over no state of a conversation")

    def cancel(self) -> None:
        """See `Engine`."""
        self._cancelled = True
        self._http.cancel()

    def _still(self) -> None:
        """Go on only if nobody cancelled between two calls to the server. Raises Cancelled."""
        if self._cancelled:
            raise Cancelled


def key_of(layout: Layout) -> str | None:
    """The key from the environment variable that the layout names. Raises LoadFailed."""
    name = layout.api_key_env
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise LoadFailed(f"the environment variable {name} is not set; set it to the key", key="api_key_env")
    if not key.isascii() or not key.isprintable():
        raise LoadFailed(f"what {name} holds is no key: it has characters that no key has", key="api_key_env")
    return key


def messages_of(request: Request) -> tuple[Message, ...]:
    """What to ask; made-up text, about a word a token, where the request has a filler of some length.

    A server counts its own tokens, so the lengths are near, not exact, and depth is prompt.
    """
    filler = request.filler
    if filler is None:
        return tuple(without_thinking(message) for message in request.messages)
    if filler.prompt_tokens:
        return (Message("user", made_up(filler.depth + filler.prompt_tokens, filler.salt)),)
    if not filler.depth:
        return request.messages
    return (Message("system", made_up(filler.depth, filler.salt)), *request.messages)


def made_up(words: int, salt: int) -> str:
    """So many words; other salts, others from the first on."""
    chosen = random.Random(salt)
    return " ".join([f"{salt}", *(chosen.choice(WORDS) for _ in range(max(1, words - 4)))])


def without_thinking(message: Message) -> Message:
    """A reply as models want it back: without what was thought before it."""
    head, tag, answer = message.content.partition("</think>")
    if message.role != "assistant" or not tag or not head.lstrip().startswith("<think>"):
        return message
    return msgspec.structs.replace(message, content=answer.lstrip())


def image_base64(path: str) -> tuple[str, str]:
    """An image as (media type, base64). Raises EngineError."""
    where = os.path.expanduser(path)
    try:
        if os.path.exists(where) and not os.path.isfile(where):
            raise EngineError(f"{path} is no plain file; give a PNG, JPEG, GIF or WebP file")
        with open(where, "rb") as file:
            data = file.read(LARGEST_IMAGE + 1)
    except OSError as error:
        raise EngineError(f"the image {path} cannot be read: {error.strerror}") from None
    if len(data) > LARGEST_IMAGE:
        raise EngineError(f"the image {path} is larger than {LARGEST_IMAGE >> 20} MiB; make it smaller")
    kinds = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
    kind = next((kind for head, kind in kinds if data.startswith(head)), None)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "image/webp"
    if kind is None:
        raise EngineError(f"{path} is no image; give a PNG, JPEG, GIF or WebP file")
    return kind, base64.b64encode(data).decode()


def stopped_by_length(tokens: int, max_tokens: int) -> StopReason:
    """What a reply that ended by its length was ended by: what was asked, or the context."""
    return "max_tokens" if max_tokens and (not tokens or tokens >= max_tokens) else "context_full"
