"""A re-split: seconds without an answer by strategy, and whether the conversation comes over whole."""

import statistics
import time
from collections.abc import Generator, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.gpu.engines import opened, unheard
from tests.benchmarks.gpu.room import Figure, Room
from tests.benchmarks.gpu.served import Heard, session_on
from tests.benchmarks.resplit import ONE, SENTENCE, FixedKit, conversation
from workbench.domain.conversation import Message, Sampling
from workbench.domain.split import Split
from workbench.engines.engine import Engine, Reply, Request
from workbench.lab import events
from workbench.lab.session import Session

BESIDE_S, OVER_LOAD_S = 0.5, 0.7
SENTENCES = 30
"""Of the conversation that is carried over, each of 68 characters."""
CHARACTERS = 2000
"""Of the conversation whose state is looked at: as many tokens of a model with made-up words."""
CONTINUED = 128


def measure(room: Room) -> Iterator[Figure]:
    """Each model: two engines side by side for the state and the plain load, then a session."""
    for model in ("8b", "70b"):
        if model not in room.models:
            yield Figure(part="resplit", what="beside: no answer for", case=model, note="not measured: no such model")
            continue
        load_s = yield from _state(room, model)
        yield from _switches(room, model, load_s)


def _state(room: Room, model: str) -> Generator[Figure, None, float]:
    """The state's size, times and sameness; returns the seconds of a plain load, the file being in memory by then."""
    even, uneven = room.layout(model), room.layout(model, room.split("layer", room.uneven()))
    about: dict[str, Any] = {"part": "resplit", "case": f"{model}, {even.split.label()} → {uneven.split.label()}"}
    said = (SENTENCE * (CHARACTERS // len(SENTENCE)),)
    with (
        TemporaryDirectory() as folder,
        opened(even) as (first, loaded_first),
        opened(uneven, beside=len(room.virtual)) as (second, loaded),
    ):
        reply = _ask(first, said, 24)
        begun = time.monotonic()
        state = first.save_state(Path(folder) / "first")
        saved = time.monotonic()
        second.restore_state(state)
        restored = time.monotonic()
        second.save_state(Path(folder) / "second")
        size = f"{state.size / 2**20:.0f} MiB, {len(state.tokens)} tokens"
        yield Figure(**about, what="saving the state", value=round(saved - begun, 3), unit="s", note=size)
        yield Figure(**about, what="restoring it", value=round(restored - saved, 3), unit="s", note=size)
        same = (Path(folder) / "first").read_bytes() == (Path(folder) / "second").read_bytes()
        yield Figure(**about, what="it reads back byte for byte", limit="yes", holds=same)
        one, other = (_ask(engine, (*said, reply.text, "And then?"), CONTINUED) for engine in (first, second))
        same = one.text == other.text and one.timing.evaluated_tokens == other.timing.evaluated_tokens
        note = f"{one.timing.tokens} tokens, {other.timing.evaluated_tokens} evaluated anew"
        yield Figure(**about, what="it goes on the same, greedily", limit="yes", holds=same, note=note)
        yield Figure(
            part="resplit", what="plain load", case=model, value=round(loaded.load_s, 2), unit="s",
            note="the second; the file is in memory", detail={"loads": [loaded_first.load_s, loaded.load_s]},
        )  # fmt: skip
        return loaded.load_s


def _ask(engine: Engine, said: tuple[str, ...], tokens: int) -> Reply:
    messages = tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(said))
    sampling = Sampling(temperature=0, max_tokens=tokens, ignore_eos=True)
    return engine.chat(Request(messages=messages, sampling=sampling), unheard)


def _switches(room: Room, model: str, load_s: float) -> Iterator[Figure]:
    """To and fro, each strategy as often as there is time for."""
    splits = room.split("layer", room.uneven()), room.split("layer")
    count = 1 if room.quick or room.virtual else 2 if room.is_large(model) else 4
    kit = FixedKit()
    with session_on(room.layout(model), kit) as (session, heard):
        session.restore(conversation(SENTENCES)).result()
        session.send("Begin.", ONE).result()
        switches: dict[str, list[events.LayoutLoaded]] = {"beside": [], "in turn": []}
        evaluated = []
        for number in range(2 * count):
            strategy = "beside" if number % 2 == 0 else "in turn"
            found, tokens = _switch(session, heard, kit, splits[number % 2], strategy)
            switches[strategy].append(found)
            evaluated.append(tokens)
        timing = session.send("Go on.", ONE).result().timing
        size = f"a conversation of {0 if timing is None else timing.prompt_tokens} tokens"
        about: dict[str, Any] = {"part": "resplit", "case": model, "unit": "s"}
        detail = {
            name: [{"silent_s": round(one.silent_s, 3), "load_s": round(one.loaded.load_s, 3)} for one in found]
            for name, found in switches.items()
        }
        beside = statistics.median(one.silent_s for one in switches["beside"])
        yield Figure.at_most(
            round(beside, 3), BESIDE_S, **about, what="beside: no answer for", note=size, detail=detail
        )
        silent = statistics.median(one.silent_s for one in switches["in turn"])
        beyond = statistics.median(one.silent_s - one.loaded.load_s for one in switches["in turn"])
        most = round(load_s + OVER_LOAD_S, 2)
        yield Figure.at_most(
            round(silent, 3), most, **about, what="in turn: no answer for", detail=detail,
            note=f"a plain load takes {load_s:.2f} s; {beyond:.2f} s of it are beyond its own load",
        )  # fmt: skip
        yield Figure(
            part="resplit", case=model, what="tokens evaluated afterwards", value=float(max(evaluated)),
            note=f"of {size}",
        )  # fmt: skip
        gap = _longest_pause(session, heard, kit, splits[0])
        yield Figure(**about, what="beside: longest pause of a reply that streams meanwhile", value=round(gap, 3))


def _switch(
    session: Session, heard: Heard, kit: FixedKit, split: Split, strategy: str
) -> tuple[events.LayoutLoaded, int]:
    """One re-split; what it came to, and how many prompt tokens the next prompt had evaluated."""
    kit.beside = strategy == "beside"
    since = len(heard.events)
    session.resplit(split).result()
    found = heard.of(events.LayoutLoaded, since)[-1][1]
    if found.strategy != strategy:
        raise RuntimeError(f"the re-split went {found.strategy} instead of {strategy}")
    turn = session.send("Go on.", ONE).result()
    evaluated = 0 if turn.timing is None else turn.timing.evaluated_tokens
    session.restore(session.conversation.upto(len(session.conversation.turns) - 1)).result()
    return found, evaluated


def _longest_pause(session: Session, heard: Heard, kit: FixedKit, split: Split) -> float:
    """Of a reply that streams while another engine loads beside it, and a little longer."""
    kit.beside = True
    since = len(heard.events)
    # Long enough for the load; what is left of it then is not waited for.
    reply = session.send("Tell a long story.", Sampling(temperature=0, max_tokens=4000, ignore_eos=True))
    while not heard.of(events.TurnText, since):
        time.sleep(0.005)
    resplit = session.resplit(split)
    while not (heard.of(events.LoadWaits, since) or reply.done() or resplit.done()):
        time.sleep(0.02)
    session.cancel()
    reply.result()
    resplit.result()
    texts = [at for at, _ in heard.of(events.TurnText, since)]
    return max((b - a for a, b in pairwise(texts)), default=0.0)
