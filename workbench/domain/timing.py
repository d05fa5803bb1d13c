"""Timings of one reply, stamped where the tokens are made."""

from typing import Literal

import msgspec

TimingSource = Literal["worker", "server", "client", "pieces"]
"""Who measured: the worker, token by token; a server's own counters; this side's clock over a server's
counts; this side's clock over the pieces in which the text came, where the server counted nothing."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and seconds of one reply.

    `prompt_tokens` is the whole prompt; `evaluated_tokens` the part that was decoded for this
    reply, the rest being in the context already. `tokens` were sampled, `decoded_tokens` of
    them went through the model within `decode_s` (the last sampled one need not). `ttft_s`
    runs from the request's arrival to the first token; `io_s` is the part of `decode_s` that
    went to text and events. Of a server that does not tell, the counts are 0 and mean unknown.
    """

    prompt_tokens: int
    evaluated_tokens: int
    tokens: int
    decoded_tokens: int
    ttft_s: float
    prefill_s: float
    decode_s: float
    io_s: float = 0.0
    source: TimingSource = "worker"

    @property
    def prefill_tok_s(self) -> float | None:
        """Evaluated prompt tokens per second; None without any."""
        return self.evaluated_tokens / self.prefill_s if self.evaluated_tokens and self.prefill_s > 0 else None

    @property
    def decode_tok_s(self) -> float | None:
        """Decoded tokens per second, as llama-bench counts tg; None below two tokens."""
        return self.decoded_tokens / self.decode_s if self.decoded_tokens and self.decode_s > 0 else None


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The short fixed workload after a re-split: `depth` tokens in, `tokens` out, greedy.

    `prefill_tok_s` is None where a server does not tell.
    """

    depth: int
    tokens: int
    prefill_tok_s: float | None
    decode_tok_s: float
