"""What the worker costs: its decode rate over that of a bare loop, alternating in one run.

`python -m tests.benchmarks.decode_overhead [--pairs 15] [--tokens 96] [--model GGUF]
[--cards CUDA0,CUDA1] [--split-mode layer] [--tensor-split 1,1]` prints one JSON object.
`ratio` is the median over the pairs; `io_share` the worker's own clock.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from workbench.domain.conversation import Message, Sampling
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split, Virtual
from workbench.engines.engine import Request
from workbench.engines.llama import wire
from workbench.engines.llama.client import LlamaEngine
from workbench.engines.llama.process import WorkerProcess, worker_environment
from workbench.lab.kit import RealKit
from workbench.lab.plan import plan_load
from workbench.store.models import resolve_model

CARD_MIB = "600MiB"


def layout_of(arguments: argparse.Namespace) -> Layout:
    cards = arguments.cards.split(",") if arguments.cards else None
    return Layout(
        name="benchmark",
        model=arguments.model,
        split=Split(
            split_mode=arguments.split_mode,
            tensor_split=tuple(float(share) for share in arguments.tensor_split.split(",")),
            cards=tuple(cards) if cards else Virtual((CARD_MIB, CARD_MIB)),
        ),
        context=Context(n_ctx=1024, flash_attn=True),
    )


class Bare:
    """The bare loop's process."""

    def __init__(self, load: wire.Load, env: dict[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.benchmarks.bare_loop"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=env,
            )
        self._say(wire.encode(load))
        self._hear()

    def rate(self, tokens: int) -> float:
        self._say(f"{tokens}\n".encode())
        return float(self._hear())

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _say(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline().decode():
            if line.startswith("ready") or line[0].isdigit():
                return line
        raise SystemExit("the bare loop ended; the engine's log says why")


@contextmanager
def both(layout: Layout) -> Iterator[tuple[LlamaEngine, Bare]]:
    """A worker and a bare loop, each with the layout loaded over cards of its own."""
    kit = RealKit()
    virtual = isinstance(layout.split.cards, Virtual)
    # Each of the two has the cores to itself while it is measured.
    load = plan_load(layout, str(resolve_model(layout.model)), lambda: kit.cards(layout))
    env = worker_environment(layout.env, virtual)
    with TemporaryDirectory() as folder:
        log = Path(folder) / "engine.log"
        engine = LlamaEngine(load, WorkerProcess(env, log, lambda error: None))
        try:
            engine.load(lambda progress: None)
            bare = Bare(load, env, log)
            try:
                yield engine, bare
            finally:
                bare.close()
        finally:
            engine.close()


def unheard(text: str) -> None:
    """Text that nobody reads."""


def worker_rate(engine: LlamaEngine, tokens: int, salt: int) -> tuple[float, float]:
    """Decode tokens per second, and the share of that time that went to text and events."""
    sampling = Sampling(temperature=0, max_tokens=tokens + 1, ignore_eos=True)
    reply = engine.chat(Request(messages=(Message("user", f"{salt}: Tell me of rivers."),), sampling=sampling), unheard)
    rate = reply.timing.decode_tok_s
    assert rate is not None
    return rate, reply.timing.io_s / reply.timing.decode_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--model", default="demo:smollm2")
    parser.add_argument("--cards")
    parser.add_argument("--split-mode", default="layer")
    parser.add_argument("--tensor-split", default="1,1")
    arguments = parser.parse_args()
    layout = layout_of(arguments)
    workers, bares, shares = [], [], []
    with both(layout) as (engine, bare):
        worker_rate(engine, 16, -1)
        bare.rate(16)
        for pair in range(arguments.pairs):
            if pair % 2:
                bares.append(bare.rate(arguments.tokens))
            rate, share = worker_rate(engine, arguments.tokens, pair)
            workers.append(rate)
            shares.append(share)
            if not pair % 2:
                bares.append(bare.rate(arguments.tokens))
    ratios = [worker / bare for worker, bare in zip(workers, bares, strict=True)]
    print(
        json.dumps(
            {
                "split": layout.split.label(),
                "pairs": arguments.pairs,
                "tokens": arguments.tokens,
                "worker_tok_s": round(statistics.median(workers), 2),
                "bare_tok_s": round(statistics.median(bares), 2),
                "ratio": round(statistics.median(ratios), 4),
                "ratio_quartiles": [round(q, 4) for q in statistics.quantiles(ratios, n=4)],
                "io_share": round(statistics.median(shares), 4),
            }
        )
    )


if __name__ == "__main__":
    main()
