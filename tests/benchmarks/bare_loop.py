"""The yardstick: a bare `llama_decode` + `llama_sampler_sample` loop in a process of its own.

Reads a `Load` and then token counts as JSON lines on stdin; answers each count with tokens per
second. Loads through the worker's own code, so that model and split are the same.
"""

import sys
import time

import llama_cpp.llama_cpp as llama
import msgspec

from workbench.engines.llama import wire
from workbench.engines.llama.child import native
from workbench.engines.llama.child.cards import VirtualCards
from workbench.engines.llama.child.model import Model

PROMPT = 36


def decode_rate(context: object, n_tokens: int) -> float:
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    prompt = (llama.llama_token * PROMPT)(*range(100, 100 + PROMPT))
    llama.llama_decode(context, llama.llama_batch_get_one(prompt, PROMPT))
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_greedy())
    one = (llama.llama_token * 1)(llama.llama_sampler_sample(chain, context, -1))
    batch = llama.llama_batch_get_one(one, 1)
    begun = time.perf_counter()
    for _ in range(n_tokens):
        llama.llama_decode(context, batch)
        one[0] = llama.llama_sampler_sample(chain, context, -1)
    seconds = time.perf_counter() - begun
    llama.llama_sampler_free(chain)
    return n_tokens / seconds


def main() -> None:
    log, cards = native.LibraryLog(), VirtualCards(lambda name: sys.exit(f"{name} died"))
    model = Model(log, cards, native.AbortFlag())
    command = wire.decode_command(sys.stdin.buffer.readline())
    assert isinstance(command, wire.Load)
    model.load(command, lambda fraction, stage: None)
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        print(msgspec.json.encode(decode_rate(model.context, int(line))).decode(), flush=True)
    cards.kill()


if __name__ == "__main__":
    main()
