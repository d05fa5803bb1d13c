"""The demonstration: the bundled model on two virtual cards, and one re-split in mid-conversation."""

import queue
from collections.abc import Callable

import msgspec

from workbench.domain.conversation import Sampling, Turn
from workbench.domain.layout import Layout
from workbench.domain.split import Split, Virtual
from workbench.lab.events import Measurement, ProbeDone, SessionEvent
from workbench.lab.kit import Kit
from workbench.lab.session import Session
from workbench.store.models import DEMO

DEMO_LAYOUT = Layout(
    name="demo-even",
    model=DEMO,
    split=Split(split_mode="layer", tensor_split=(1, 1), cards=Virtual(virtual=("600MiB", "600MiB"))),
)
PROMPTS = ("Write two sentences on rivers.", "Now one sentence on where they end.")
PROBE_WAIT_S = 60.0
_SAMPLING = Sampling(max_tokens=64, temperature=0)


class Demonstration(msgspec.Struct, frozen=True, kw_only=True):
    """The two splits as they were measured, and the two turns of the one conversation."""

    before: Measurement
    after: Measurement
    turns: tuple[Turn, ...]


def demonstrate(kit: Kit, listener: Callable[[SessionEvent], None], say: Callable[[str], None]) -> Demonstration:
    """Load 1:1, ask, re-split to 3:1, ask on. `say` hears each step before it begins.

    Raises what loading raises; Ctrl-C ends it.
    """
    probes: queue.SimpleQueue[ProbeDone] = queue.SimpleQueue()

    def hear(event: SessionEvent) -> None:
        if isinstance(event, ProbeDone):
            probes.put(event)
        listener(event)

    session = Session(kit, hear)
    try:
        say(f"{DEMO_LAYOUT.model} on two virtual cards, split {DEMO_LAYOUT.split.label()}")
        loading = session.load(DEMO_LAYOUT)
        say(f"› {PROMPTS[0]}")
        asking = session.send(PROMPTS[0], _SAMPLING)
        loading.result()
        asking.result()
        before = _measured(session, probes)
        split = msgspec.structs.replace(DEMO_LAYOUT.split, tensor_split=(3, 1))
        say(f"re-split {before.label} → {split.label()}, the conversation goes on")
        changing = session.resplit(split)
        say(f"› {PROMPTS[1]}")
        asking = session.send(PROMPTS[1], _SAMPLING)
        changing.result()
        asking.result()
        after = _measured(session, probes)
        return Demonstration(before=before, after=after, turns=session.conversation.turns)
    finally:
        session.close()


def _measured(session: Session, probes: "queue.SimpleQueue[ProbeDone]") -> Measurement:
    """The running split with its probe; without one if the probe does not come."""
    try:
        return probes.get(timeout=PROBE_WAIT_S).measurement
    except queue.Empty:
        return session.history[-1]
