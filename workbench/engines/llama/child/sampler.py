"""How the next token is chosen."""

import ctypes
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from workbench.domain.conversation import Sampling

GREEDY = Sampling(temperature=0.0, ignore_eos=True)

Pick = Callable[[], int]
"""Waits for the card and chooses the token that follows."""


@contextmanager
def picker(sampling: Sampling, context: Any) -> Iterator[Pick]:
    """What `sampling` asks for, over the logits of the token decoded last."""
    if sampling.temperature <= 0:
        yield _greedy(context)
        return
    with _chain(sampling) as chain:
        sample = llama.llama_sampler_sample
        yield lambda: sample(chain, context, -1)


def _greedy(context: Any) -> Pick:
    """The first of the largest logits, as llama.cpp's greedy sampler takes it.

    llama.cpp's own makes an array of candidates of the whole vocabulary first, which costs
    0.1 ms a token at 32 000 words: 2 to 3 % on a small model.
    """
    vocab = llama.llama_model_get_vocab(llama.llama_get_model(context))
    n_vocab = llama.llama_vocab_n_tokens(vocab)
    logits_of = llama.llama_get_logits_ith
    arrays: dict[int, npt.NDArray[np.float32]] = {}

    def pick() -> int:
        pointer = logits_of(context, -1)
        address = ctypes.cast(pointer, ctypes.c_void_p).value or 0
        logits = arrays.get(address)
        if logits is None:
            logits = arrays[address] = np.ctypeslib.as_array(pointer, (n_vocab,))
        return int(logits.argmax())

    return pick


@contextmanager
def _chain(sampling: Sampling) -> Iterator[Any]:
    """A chain in the order of llama.cpp's own tools: top-k, top-p, min-p, temperature, seed."""
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    try:
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(32)
        for link in (
            llama.llama_sampler_init_top_k(sampling.top_k),
            llama.llama_sampler_init_top_p(sampling.top_p, 1),
            llama.llama_sampler_init_min_p(sampling.min_p, 1),
            llama.llama_sampler_init_temp(sampling.temperature),
            llama.llama_sampler_init_dist(seed % llama.LLAMA_DEFAULT_SEED),
        ):
            llama.llama_sampler_chain_add(chain, link)
        yield chain
    finally:
        llama.llama_sampler_free(chain)
