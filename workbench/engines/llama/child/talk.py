"""The conversation as the context holds it: prefix reuse, prefill, the decode loop, the probe, the state."""

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import llama_cpp.llama_cpp as llama
import psutil

from workbench.domain.conversation import Message, Sampling, StopReason
from workbench.domain.timing import Probe, Timing
from workbench.engines.engine import EngineError, Filler, PromptTooLong, SavedState, StateRefused
from workbench.engines.llama.child import mapped
from workbench.engines.llama.child.model import Model
from workbench.engines.llama.child.native import AbortFlag
from workbench.engines.llama.child.sampler import GREEDY, Pick, picker
from workbench.engines.llama.child.template import ChatTemplate
from workbench.engines.llama.child.tokens import TextStream, Vocabulary

SEQUENCE = 0
REMOTE_CHUNK = 128
"""Prefill tokens between two looks at the abort flag where RPC cards queue what they are sent."""
PROBE_DEPTH = 64
PROBE_TOKENS = 48
PROBE_WARM_UP = 8
STATE_SHARE_OF_FREE = 0.5
"""The probe sets the conversation aside in host memory; this much of what is free may go to it."""
ABORTED = 2


class Aborted(Exception):
    """The abort flag ended a decode."""


class Talk:
    """One sequence of tokens in the model's context.

    `tokens` is the conversation as tokens, of which the first `n_kv` are in the context. `text`
    is the same as text, up to the last of `marks`: (characters, tokens) at each end of a prompt
    or reply. The next prompt is cut into tokens only from the last mark that it agrees with: a
    reply cut anew may come out as other tokens than were sampled.
    """

    def __init__(self, model: Model, abort: AbortFlag) -> None:
        self._model = model
        self._abort = abort
        self.template = ChatTemplate(model.handle)
        self._vocabulary = Vocabulary(model.handle)
        self.attach()

    def attach(self) -> None:
        """Begin on the model's present context, which is empty."""
        self._context = self._model.context
        self._memory = llama.llama_get_memory(self._context)
        self._n_ctx: int = llama.llama_n_ctx(self._context)
        self._chunk: int = llama.llama_n_batch(self._context)
        if self._model.remote:
            self._chunk = min(self._chunk, REMOTE_CHUNK)
        self.tokens: list[int] = []
        self.n_kv = 0
        self.text = ""
        self.marks: list[tuple[int, int]] = []

    # ── replies ──────────────────────────────────────────────────────────────────────────
    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        arrived: float,
        on_text: Callable[[str], None],
        filler: Filler | None = None,
    ) -> tuple[StopReason, Timing]:
        """Answer. `arrived` is when the request came (s, monotonic). Raises PromptTooLong, EngineError."""
        prompt = "" if filler is not None and filler.prompt_tokens else self.template.render(messages)
        evaluate_from = 0
        prefill_started = time.perf_counter()
        try:
            if filler is None:
                self._take_prompt(prompt)
            else:
                arrived += self._fill(prompt, filler)
            n_prompt = len(self.tokens)
            evaluate_from = self.n_kv
            prefill_started = time.perf_counter()
            self._prefill()
        except Aborted:
            now = time.perf_counter()
            return "cancelled", Timing(
                prompt_tokens=len(self.tokens),
                evaluated_tokens=self.n_kv - evaluate_from,
                tokens=0,
                decoded_tokens=0,
                ttft_s=time.monotonic() - arrived,
                prefill_s=now - prefill_started,
                decode_s=0.0,
            )
        prefill_s = time.perf_counter() - prefill_started
        stream = TextStream(self.template.stops)
        said: list[str] = []
        with picker(sampling, self._context) as pick:
            token = pick()
            first = time.perf_counter()
            ttft_s = time.monotonic() - arrived

            def emit(text: str) -> None:
                if text:
                    said.append(text)
                    on_text(text)

            stop, last, io_s = self._decode(token, pick, sampling, stream, emit)
        emit(stream.end())
        if filler is None and not stream.stopped:
            # A stop string is in the tokens and not in the text: such a reply is cut anew.
            self._mark(prompt + "".join(said))
        generated = len(self.tokens) - n_prompt
        return stop, Timing(
            prompt_tokens=n_prompt,
            evaluated_tokens=n_prompt - evaluate_from,
            tokens=generated,
            decoded_tokens=self.n_kv - n_prompt,
            ttft_s=ttft_s,
            prefill_s=prefill_s,
            decode_s=last - first,
            io_s=io_s,
        )

    def _decode(
        self, token: int, pick: Pick, sampling: Sampling, stream: TextStream, emit: Callable[[str], None]
    ) -> tuple[StopReason, float, float]:
        """The loop. Returns why it ended, when the last token was picked, and seconds spent on text.

        The decode of a token is begun before its text is made: a card works meanwhile.
        """
        context, vocabulary, tokens = self._context, self._vocabulary, self.tokens
        decode, clock = llama.llama_decode, time.perf_counter
        one = (llama.llama_token * 1)()
        batch = llama.llama_batch_get_one(one, 1)
        left = sampling.max_tokens or self._n_ctx
        io_s = 0.0
        while True:
            picked = clock()
            if not sampling.ignore_eos and vocabulary.ends(token):
                return "stop", picked, io_s
            tokens.append(token)
            left -= 1
            stop = self._stop_before_decode(left)
            if stop is None:
                one[0] = token
                status = decode(context, batch)
                if status == ABORTED:
                    self._resync()
                    stop = "cancelled"
                elif status != 0:
                    raise EngineError(f"llama_decode failed with {status}")
                else:
                    self.n_kv += 1
            begun = clock()
            emit(stream.feed(vocabulary.piece(token)))
            io_s += clock() - begun
            if stop is not None or stream.stopped:
                return stop or "stop", picked, io_s
            token = pick()

    def _stop_before_decode(self, left: int) -> StopReason | None:
        if left == 0:
            return "max_tokens"
        if self._abort:
            return "cancelled"
        return "context_full" if self.n_kv >= self._n_ctx else None

    def _take_prompt(self, prompt: str) -> None:
        """Cut the prompt into tokens and keep of the context what they have in common."""
        marks = [mark for mark in self.marks if prompt.startswith(self.text[: mark[0]])]
        if marks:
            chars, count = marks[-1]
            new = self.tokens[:count] + self._vocabulary.tokenize(prompt[chars:], add_special=False)
        else:
            new = self._cut(prompt)
        self._check_length(len(new))
        common = 0
        for ours, theirs in zip(self.tokens[: self.n_kv], new, strict=False):
            if ours != theirs:
                break
            common += 1
        self._keep(min(common, len(new) - 1))
        self.tokens, self.marks = new, marks
        self._mark(prompt)

    def _mark(self, text: str) -> None:
        """Note that all tokens so far are this text."""
        self.text = text
        self.marks.append((len(text), len(self.tokens)))

    def _fill(self, prompt: str, filler: Filler) -> float:
        """Empty the context, evaluate the filler's depth, take its prompt or `prompt`; seconds for the depth."""
        made = self._made_up(filler.depth + filler.prompt_tokens, filler.salt)
        wanted = made[filler.depth :] or self._cut(prompt)
        self._check_length(filler.depth + len(wanted))
        self._keep(0)
        self.text, self.marks = "", []
        self.tokens = made[: filler.depth]
        begun = time.monotonic()
        self._prefill()
        self.tokens += wanted
        return time.monotonic() - begun

    def _cut(self, prompt: str) -> list[int]:
        add_special = not (self.template.bos and prompt.startswith(self.template.bos))
        return self._vocabulary.tokenize(prompt, add_special)

    def _made_up(self, count: int, salt: int) -> list[int]:
        n_vocab = llama.llama_vocab_n_tokens(self._vocabulary.handle)
        return [(i * 7919 + salt * 104729 + 101) % n_vocab for i in range(count)]

    def _check_length(self, n_prompt: int) -> None:
        if not n_prompt:
            raise EngineError("the prompt is empty")
        if n_prompt >= self._n_ctx:
            raise PromptTooLong(n_prompt, self._n_ctx)

    def _keep(self, count: int) -> None:
        """Keep the first `count` tokens of the context."""
        if count < self.n_kv and not llama.llama_memory_seq_rm(self._memory, SEQUENCE, count, -1):
            # Recurrent state cannot be cut: begin again.
            llama.llama_memory_clear(self._memory, False)
            count = 0
        self.n_kv = count

    def _prefill(self) -> None:
        """Evaluate what the context lacks. Raises Aborted with what was evaluated kept."""
        pending = self.tokens[self.n_kv :]
        for start in range(0, len(pending), self._chunk):
            if self._abort:
                raise Aborted
            chunk = pending[start : start + self._chunk]
            array = (llama.llama_token * len(chunk))(*chunk)
            status = llama.llama_decode(self._context, llama.llama_batch_get_one(array, len(chunk)))
            if status == ABORTED:
                self._resync()
                raise Aborted
            if status != 0:
                raise EngineError(f"llama_decode failed with {status}")
            self.n_kv += len(chunk)
            if self._model.remote:
                llama.llama_synchronize(self._context)
        llama.llama_synchronize(self._context)

    def _resync(self) -> None:
        """After an aborted decode: believe the context about how many tokens it holds."""
        self.n_kv = llama.llama_memory_seq_pos_max(self._memory, SEQUENCE) + 1

    # ── probe ────────────────────────────────────────────────────────────────────────────
    def probe(self) -> Probe | None:
        """Fixed depth, greedy; the conversation is set aside and put back. None if aborted.

        Raises EngineError where the conversation is too large to be set aside.
        """
        aside = self._set_aside()
        kept = (self.tokens, self.n_kv)
        try:
            llama.llama_memory_clear(self._memory, False)
            depth = min(PROBE_DEPTH, self._n_ctx // 4)
            return self._measure(depth, min(PROBE_TOKENS, self._n_ctx // 4))
        except Aborted:
            return None
        finally:
            llama.llama_memory_clear(self._memory, False)
            self.tokens, self.n_kv = kept
            if aside is not None and not llama.llama_state_seq_set_data(self._context, aside, len(aside), SEQUENCE):
                self.n_kv = 0

    def _measure(self, depth: int, n_tokens: int) -> Probe:
        self.tokens = self._made_up(depth, salt=0)
        self.n_kv = 0
        begun = time.perf_counter()
        self._prefill()
        prefill_s = time.perf_counter() - begun
        with picker(GREEDY, self._context) as pick:
            one = (llama.llama_token * 1)(pick())
            batch = llama.llama_batch_get_one(one, 1)
            for i in range(PROBE_WARM_UP + n_tokens):
                if i == PROBE_WARM_UP:
                    begun = time.perf_counter()
                if self._abort or llama.llama_decode(self._context, batch) != 0:
                    raise Aborted
                one[0] = pick()
            decode_s = time.perf_counter() - begun
        return Probe(
            depth=depth + PROBE_WARM_UP,
            tokens=n_tokens,
            prefill_tok_s=depth / prefill_s,
            decode_tok_s=n_tokens / decode_s,
        )

    def _set_aside(self) -> ctypes.Array[ctypes.c_uint8] | None:
        if self.n_kv == 0:
            return None
        size = llama.llama_state_seq_get_size(self._context, SEQUENCE)
        if size > STATE_SHARE_OF_FREE * psutil.virtual_memory().available:
            raise EngineError(f"no probe: the conversation's state of {size >> 20} MiB does not fit beside the model")
        buffer: ctypes.Array[ctypes.c_uint8] = (ctypes.c_uint8 * size)()
        llama.llama_state_seq_get_data(self._context, buffer, size, SEQUENCE)
        return buffer

    # ── state ────────────────────────────────────────────────────────────────────────────
    def save(self, path: Path) -> SavedState:
        """Write the context's state. Raises EngineError where it cannot be written."""
        size = llama.llama_state_seq_get_size(self._context, SEQUENCE)
        try:
            pointer = mapped.writable(path, size)
        except OSError as error:
            raise EngineError(f"its state of {size >> 20} MiB cannot be kept: {error.strerror}") from error
        written = llama.llama_state_seq_get_data(self._context, pointer, size, SEQUENCE)
        if written != size:
            raise EngineError(f"its state came to {written} of {size} bytes")
        return SavedState(path=str(path), size=size, tokens=tuple(self.tokens), text=self.text, marks=tuple(self.marks))

    def restore(self, state: SavedState) -> None:
        """Take a state over. Raises StateRefused; the context is then empty."""
        try:
            size = os.path.getsize(state.path)
            if size != state.size:
                raise StateRefused(f"its state is damaged: {size} of {state.size} bytes")
            pointer = mapped.readable(Path(state.path), size)
        except OSError as error:
            raise StateRefused(f"its state cannot be read: {error.strerror}") from error
        if not llama.llama_state_seq_set_data(self._context, pointer, size, SEQUENCE):
            llama.llama_memory_clear(self._memory, False)
            self.tokens, self.n_kv, self.text, self.marks = [], 0, "", []
            raise StateRefused("the new context cannot hold its state")
        self.tokens = list(state.tokens)
        self._resync()
        self.text, self.marks = state.text, list(state.marks)
