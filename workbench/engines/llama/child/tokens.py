"""Text to tokens and back."""

import codecs
import ctypes

import llama_cpp.llama_cpp as llama

PIECE_BYTES = 512


class Vocabulary:
    """The model's vocabulary."""

    def __init__(self, model: object) -> None:
        self.handle = llama.llama_model_get_vocab(model)
        self._piece = ctypes.create_string_buffer(PIECE_BYTES)

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        """Tokens of `text`, in which special tokens are recognised by their names."""
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        out = (llama.llama_token * room)()
        count = llama.llama_tokenize(self.handle, data, len(data), out, room, add_special, True)
        if count < 0:
            out = (llama.llama_token * -count)()
            count = llama.llama_tokenize(self.handle, data, len(data), out, -count, add_special, True)
        return list(out[:count])

    def piece(self, token: int) -> bytes:
        """The bytes of one token, which need not be whole characters."""
        length: int = llama.llama_token_to_piece(self.handle, token, self._piece, PIECE_BYTES, 0, True)
        if length < 0:
            longer = ctypes.create_string_buffer(-length)
            length = llama.llama_token_to_piece(self.handle, token, longer, -length, 0, True)
            return longer.raw[:length]
        return self._piece.raw[:length]

    def ends(self, token: int) -> bool:
        """Whether the token ends a reply."""
        return bool(llama.llama_vocab_is_eog(self.handle, token))


class TextStream:
    """Bytes of tokens in, text out: whole characters only, and never a part of a stop string."""

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stops = stops
        self._held = ""
        self.stopped = False

    def feed(self, piece: bytes) -> str:
        """What can be shown now. After a stop string `stopped` is set and nothing more comes."""
        text = self._decode(piece)
        if not self._stops:
            return text
        text = self._held + text
        at = min((found for stop in self._stops if (found := text.find(stop)) >= 0), default=-1)
        if at >= 0:
            self.stopped = True
            self._held = ""
            return text[:at]
        keep = max(
            (n for stop in self._stops for n in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:n])),
            default=0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """What was held back; a cut character becomes U+FFFD."""
        return "" if self.stopped else self._held + self._decode(b"", True)
