"""Seconds without an answer on the way to another split, by strategy, against starting over.

`python -m tests.benchmarks.resplit [--pairs 5] [--model GGUF] [--cards CUDA0,CUDA1]` prints one
JSON object. Starting over is: end the process, load in a new one, evaluate the same conversation
of about 1 000 tokens. `gap_s` is the old engine's longest pause between pieces of a reply while
the new one loads beside it.
"""

import argparse
import json
import os
import statistics
import time
from tempfile import TemporaryDirectory

import msgspec

from workbench.domain.conversation import Conversation, Sampling, Turn
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split, Virtual
from workbench.engines.engine import Request
from workbench.lab import events
from workbench.lab.kit import RealKit
from workbench.lab.session import Session
from workbench.store.places import HOME_VARIABLE

ONE = Sampling(temperature=0, max_tokens=1)
SENTENCE = "The river rises in the hills and runs past seven towns to the sea. "


class Ears:
    """Listens to a session."""

    def __init__(self) -> None:
        self.silent: list[tuple[str, float, float]] = []
        self.texts: list[float] = []

    def __call__(self, event: events.SessionEvent) -> None:
        match event:
            case events.LayoutLoaded(strategy=strategy, silent_s=silent_s, loaded=loaded):
                self.silent.append((strategy, silent_s, loaded.load_s))
            case events.TurnText():
                self.texts.append(time.monotonic())
            case events.Problem(message=message):
                raise SystemExit(message)


class FixedKit(RealKit):
    """The real kit, with the strategy chosen by the benchmark."""

    beside = True

    def stand_beside(self, *_: object) -> bool:
        return self.beside


def unheard(text: str) -> None:
    """Text that nobody reads."""


def conversation(sentences: int) -> Conversation:
    turns = tuple(
        Turn(prompt=SENTENCE * 4 + f"({i})", reply=SENTENCE, stop_reason="stop") for i in range(sentences // 5)
    )
    return Conversation(turns=turns)


def start_over(kit: RealKit, layout: Layout, old: Layout, said: Conversation) -> float:
    """A serving engine ends, another loads in a new process and evaluates the conversation."""
    engine = kit.open_engine(old, lambda error: None)
    engine.load(lambda progress: None)
    engine.chat(Request(messages=said.messages("Go on."), sampling=ONE), unheard)
    kit.close()  # no spare: a new process is what is measured
    begun = time.monotonic()
    engine.close()
    following = FixedKit().open_engine(layout, lambda error: None)
    following.load(lambda progress: None)
    following.chat(Request(messages=said.messages("Go on."), sampling=ONE), unheard)
    seconds = time.monotonic() - begun
    following.close()
    return seconds


def change(session: Session, ears: Ears, kit: FixedKit, split: Split, strategy: str) -> tuple[float, float, int]:
    """One re-split: seconds without an answer, seconds of the load, prompt tokens evaluated afterwards."""
    kit.beside = strategy == "beside"
    session.resplit(split).result()
    took, silent_s, load_s = ears.silent[-1]
    assert took == strategy, (took, strategy)
    turn = session.send("Go on.", ONE).result()
    assert turn.timing is not None
    evaluated = turn.timing.evaluated_tokens
    session.restore(session.conversation.upto(len(session.conversation.turns) - 1)).result()
    return silent_s, load_s, evaluated


def longest_gap(session: Session, ears: Ears, kit: FixedKit, split: Split) -> float:
    """The longest pause of a reply that streams while another engine loads beside it."""
    kit.beside = True
    ears.texts.clear()
    reply = session.send("Tell a long story.", Sampling(temperature=0, max_tokens=200, ignore_eos=True))
    while not ears.texts:
        time.sleep(0.005)
    session.resplit(split).result()
    reply.result()
    return max(b - a for a, b in zip(ears.texts, ears.texts[1:], strict=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--model", default="demo:smollm2")
    parser.add_argument("--cards")
    parser.add_argument("--sentences", type=int, default=50)
    parser.add_argument("--strategies", default="beside,in turn")
    arguments = parser.parse_args()
    cards = tuple(arguments.cards.split(",")) if arguments.cards else Virtual(("600MiB", "600MiB"))
    even, uneven = (Split(tensor_split=shares, cards=cards) for shares in ((1.0, 1.0), (3.0, 1.0)))
    layout = Layout(name="benchmark", model=arguments.model, split=even, context=Context(n_ctx=4096))
    other = msgspec.structs.replace(layout, split=uneven)
    said = conversation(arguments.sentences)
    strategies = arguments.strategies.split(",")
    found: dict[str, list[float]] = {name: [] for name in ("start over", *strategies)}
    loads: dict[str, list[float]] = {name: [] for name in strategies}
    evaluated: list[int] = []
    with TemporaryDirectory() as home:
        os.environ[HOME_VARIABLE] = home
        kit, ears = FixedKit(), Ears()
        for _ in range(arguments.pairs):
            found["start over"].append(start_over(FixedKit(), other, layout, said))
            session = Session(kit, ears)
            session.load(layout).result()
            session.restore(said).result()
            session.send("Begin.", ONE).result()
            for i, strategy in enumerate(strategies):
                silent_s, load_s, tokens = change(session, ears, kit, uneven if i % 2 == 0 else even, strategy)
                found[strategy].append(silent_s)
                loads[strategy].append(load_s)
                evaluated.append(tokens)
            gap_s = (
                longest_gap(session, ears, kit, uneven if len(strategies) % 2 == 0 else even)
                if "beside" in strategies
                else None
            )
            session.close()
        kit.close()
    base = statistics.median(found["start over"])
    print(
        json.dumps(
            {
                "model": arguments.model,
                "turns": len(said.turns),
                "start_over_s": round(base, 3),
                **{
                    name.replace(" ", "_"): {
                        "silent_s": round(statistics.median(found[name]), 3),
                        "ratio": round(statistics.median(found[name]) / base, 4),
                        "load_s": round(statistics.median(loads[name]), 3),
                    }
                    for name in strategies
                },
                "evaluated_tokens_afterwards": max(evaluated),
                "gap_s": None if gap_s is None else round(gap_s, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
