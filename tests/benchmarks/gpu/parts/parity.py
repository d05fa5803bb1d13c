"""The worker over llama-bench: decode and prefill, headless and with the screen open.

Loads of the two alternate, since equal loads differ by some per cent; a figure is the ratio of
the medians over all repeats of all loads. The screen's replies are the same made-up prompts, in
the whole app in a terminal, with Markdown, meters, journal and log.
"""

import statistics
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.benchmarks.gpu import llama_bench
from tests.benchmarks.gpu.engines import decode_rates, opened, prefill_rates, spread
from tests.benchmarks.gpu.room import Figure, Room
from tests.benchmarks.gpu.screen import Replies, on_screen
from workbench.domain.layout import Layout
from workbench.domain.split import Split

LEAST = {"decode": 0.98, "prefill": 0.97}
PREFILL = 512
SCREEN = "with the screen"
Rates = dict[str, list[float]]


class Effort(msgspec.Struct, frozen=True):
    """How long a reply is, how often it is repeated in a load, and how often everything is loaded."""

    decode: int
    repeats: int
    rounds: int

    @classmethod
    def of(cls, room: Room, model: str) -> "Effort":
        """A large model takes seconds to load and 17 ms a token."""
        if room.virtual:
            return cls(16, 1, 1)
        rounds = 1 if room.quick else 2
        return cls(64, 3, rounds) if room.is_large(model) else cls(128, 5, rounds)


def measure(room: Room) -> Iterator[Figure]:
    """Each model with each split; what is there of `room.models`."""
    splits = (
        room.split("none"),
        room.split("layer"),
        room.split("layer", room.uneven()),
        room.split("tensor"),
    )
    for model in ("8b", "70b"):
        if model not in room.models:
            yield Figure(part="parity", what="decode over llama-bench", case=model, note="not measured: no such model")
            continue
        for split in splits:
            yield from _compare(room, model, split)


def _compare(room: Room, model: str, split: Split) -> Iterator[Figure]:
    effort = Effort.of(room, model)
    layout = room.layout(model, split, n_ctx=1024)
    theirs: Rates = {"decode": [], "prefill": []}
    ours: Rates = {"decode": [], "prefill": []}
    shown: Rates = {"decode": [], "prefill": []}
    for number in range(effort.rounds):
        turns = ("bench", "worker", "screen")
        for turn in turns if number % 2 == 0 else reversed(turns):
            if turn == "worker":
                _add(ours, _headless(layout, effort))
            elif turn == "screen":
                _add(shown, _screen(layout, effort))
            elif room.llama_bench:
                _add(theirs, _llama_bench(room.llama_bench, layout, effort))
    for what, mine in (("", ours), (SCREEN, shown)):
        for kind in ("decode", "prefill"):
            yield _figure(kind, what, f"{model}, {split.label()}", mine[kind], theirs[kind])


def _add(rates: Rates, found: Rates) -> None:
    for kind, more in found.items():
        rates[kind] += more


def _figure(kind: str, what: str, case: str, mine: list[float], theirs: list[float]) -> Figure:
    about: dict[str, Any] = {"part": "parity", "what": f"{kind} over llama-bench{what and ', '}{what}", "case": case}
    detail = {"workbench": spread(mine), "all": [round(rate, 2) for rate in mine]}
    median = statistics.median(mine)
    rates = f"{median:.1f} tok/s, {min(mine):.1f} … {max(mine):.1f}"
    if not theirs:
        return Figure(**about, note=f"not measured: no llama-bench here; {rates}", detail=detail)
    other = statistics.median(theirs)
    detail |= {"llama_bench": spread(theirs), "all_llama_bench": [round(rate, 2) for rate in theirs]}
    note = f"{rates} over {other:.1f}, {min(theirs):.1f} … {max(theirs):.1f}"
    return Figure.at_least(round(median / other, 4), LEAST[kind], **about, note=note, detail=detail)


def _headless(layout: Layout, effort: Effort) -> Rates:
    with opened(layout) as (engine, _):
        return {
            "prefill": prefill_rates(engine, PREFILL, effort.repeats),
            "decode": decode_rates(engine, effort.decode, effort.repeats),
        }


def _screen(layout: Layout, effort: Effort) -> Rates:
    seen = on_screen(layout, Replies(prefill=PREFILL, decode=effort.decode, repeats=effort.repeats))
    return {
        "prefill": [timing.prefill_tok_s or 0.0 for timing in seen.prefill],
        "decode": [timing.decode_tok_s or 0.0 for timing in seen.decode],
    }


def _llama_bench(command: str, layout: Layout, effort: Effort) -> Rates:
    found = llama_bench.rows(command, layout, f"-p {PREFILL} -n {effort.decode}", effort.repeats)
    return {"decode" if row["n_gen"] else "prefill": row["samples_ts"] for row in found}
