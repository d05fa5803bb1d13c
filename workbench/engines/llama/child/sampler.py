"""llama.cpp's sampler chain for a request."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llama_cpp.llama_cpp as llama

from workbench.domain.conversation import Sampling

GREEDY = Sampling(temperature=0.0, ignore_eos=True)


@contextmanager
def sampler_chain(sampling: Sampling) -> Iterator[Any]:
    """A chain in the order of llama.cpp's own tools: top-k, top-p, min-p, temperature, seed."""
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    try:
        if sampling.temperature <= 0:
            llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_greedy())
        else:
            seed = sampling.seed if sampling.seed is not None else secrets.randbits(32)
            for link in (
                llama.llama_sampler_init_top_k(sampling.top_k),
                llama.llama_sampler_init_top_p(sampling.top_p, 1),
                llama.llama_sampler_init_min_p(sampling.min_p, 1),
                llama.llama_sampler_init_temp(sampling.temperature),
                llama.llama_sampler_init_dist(seed & 0xFFFFFFFF),
            ):
                llama.llama_sampler_chain_add(chain, link)
        yield chain
    finally:
        llama.llama_sampler_free(chain)
