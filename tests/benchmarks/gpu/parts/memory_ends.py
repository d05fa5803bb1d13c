"""Memory that ends: for weights, for KV, and in the middle of answering; a second process has taken it.

Each time the last good layout must come back and answer a prompt. In a rehearsal the limits of
virtual cards take the part of the second process.
"""

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tests.benchmarks.gpu.room import Figure, Room
from tests.benchmarks.gpu.served import LIMIT_S, Heard, ask, gpus, nvml, session_on, settle
from tests.benchmarks.gpu.taker import MIB, Taker
from tests.benchmarks.resplit import SENTENCE, FixedKit
from tests.waiting import wait_until
from workbench.domain.card import Card
from workbench.domain.conversation import Sampling
from workbench.domain.layout import Layout
from workbench.domain.memory import CardMemory, with_sizes
from workbench.domain.split import SplitMode, Virtual
from workbench.engines.engine import Loaded
from workbench.lab import events
from workbench.lab.session import Session
from workbench.meters.nvml import Nvml
from workbench.meters.sample import CardSample

PART = "memory_ends"
MODES: tuple[SplitMode, ...] = ("layer", "tensor")
CASES = (
    *(("weights", how) for how in ("beside", "in turn", "in turn")),
    *(("KV", how) for how in ("beside", "in turn", "in turn", "context")),
    *(("compute", "answering"),) * 3,
)
QUICK = (("weights", "beside"), ("KV", "in turn"), ("compute", "answering"))
N_CTX, LARGE_N_CTX = 4096, 65536
LEFT_MIB = 24.0
"""So little is left where a reply is to run out of it: decode goes on with that, and so does a short prompt.

A prompt of 2048 tokens at once takes 33 MiB of an 8b model's card for the input of its widest
matrix alone; in tensor mode each GPU has its part of that.
"""
LONG_PROMPT = SENTENCE * 30


class Squeeze(Protocol):
    """Takes the memory."""

    def before(self, kind: str, how: str, target: Layout) -> Layout:
        """See to it that `target` will not fit, or with `compute` that nothing more does; what is to be asked for."""

    def left_mib(self) -> float | None:
        """What is left free now, by NVML."""

    def release(self) -> None:
        """Give everything back."""


class OnGpu:
    """A GPU on which a second process holds what is to be missing. Made before any model is loaded."""

    def __init__(self, card: Card, driver: Nvml, taker: Taker) -> None:
        self._bus_id = card.pci_bus_id or ""
        self._driver = driver
        self._taker = taker
        self._idle_mib = self._sample().used_mib or 0.0

    def know(self, mode: SplitMode, serving: tuple[CardMemory, ...], part: float) -> None:
        """What serves there now, by cards; `part` of the model lies there."""
        self._cards, self._part = serving, part
        self._left_mib = LEFT_MIB * (part if mode == "tensor" else 1.0)
        self._base_mib = (self._sample().used_mib or 0.0) - self._idle_mib
        self._other_mib = max(0.0, self._base_mib - sum(card.total_mib for card in serving))

    def before(self, kind: str, how: str, target: Layout) -> Layout:
        if kind == "compute":
            self._taker.leave(self._left_mib)
            return target
        whole_mib = Path(target.model).stat().st_size / MIB * self._part
        kv_mib = sum(card.kv_mib for card in self._cards) * target.context.n_ctx / N_CTX
        needed = self._other_mib + (whole_mib / 2 if kind == "weights" else whole_mib + kv_mib / 2)
        comes_back = self._base_mib if how == "in turn" else 0.0
        if how == "context":  # the weights stay
            needed, comes_back = kv_mib / 2, sum(card.kv_mib + card.compute_mib for card in self._cards)
        self._taker.leave(max(self._left_mib, needed - comes_back))
        return target

    def left_mib(self) -> float | None:
        return self._sample().free_mib

    def release(self) -> None:
        self._taker.give_back()

    def _sample(self) -> CardSample:
        return self._driver.sample("", self._bus_id)


class OnVirtual:
    """The same by limits: of the cards that the target is to make, or of those that serve."""

    def __init__(self, loaded: Loaded, session: Session) -> None:
        self._card: CardMemory = loaded.cards[-1]
        self._session = session

    def before(self, kind: str, how: str, target: Layout) -> Layout:
        card = self._card
        if how in ("context", "answering"):
            serving = self._session.loaded
            assert serving is not None
            _stop_growing(serving.card_processes[-1].pid)
            return target
        kv_mib = card.kv_mib * target.context.n_ctx / N_CTX
        mib = card.weights_mib / 2 if kind == "weights" else card.weights_mib + kv_mib / 2
        assert isinstance(target.split.cards, Virtual)
        sizes = (*target.split.cards.virtual[:-1], f"{mib:.0f}MiB")
        return msgspec.structs.replace(target, split=msgspec.structs.replace(target.split, cards=Virtual(sizes)))

    def left_mib(self) -> float | None:
        return None

    def release(self) -> None:
        """The cards that were squeezed are gone."""


def _stop_growing(pid: int) -> None:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    held = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    resource.prlimit(pid, resource.RLIMIT_DATA, (held, held))


def measure(room: Room) -> Iterator[Figure]:
    """Runs every case in both modes, on one session a mode."""
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        kit = FixedKit()
        card = next(reversed(gpus(room, kit)), None)
        kit.close()
        squeeze = None
        if card is not None and card.pci_bus_id is not None:
            squeeze = OnGpu(card, stack.enter_context(nvml()), stack.enter_context(Taker(card.pci_bus_id)))
        for mode in MODES:
            found = list(_in_mode(room, mode, _cases(room, mode), card, squeeze))
            rows += found
            yield _figure(found, f"{mode} mode", len(_cases(room, mode)))
    yield _figure(rows, "all", sum(len(_cases(room, mode)) for mode in MODES))


def _cases(room: Room, mode: SplitMode) -> list[tuple[str, str]]:
    """What is done in a mode. In tensor mode a virtual card that may not grow has all that a reply takes.

    What ends before the weights come leaves room for as many again: they want a larger model.
    """
    cases = QUICK if room.quick else CASES
    if room.virtual:
        return [case for case in cases if (mode, case[0]) != ("tensor", "compute")]
    return [case for case in cases if case != ("weights", "in turn") or "70b" in room.models]


def _figure(rows: list[dict[str, Any]], case: str, planned: int) -> Figure:
    good = sum(row["recovered"] for row in rows)
    why = [f"{row['mode']} {row['kind']} {row['how']}: {row['message'] or 'memory did not end'}" for row in rows
           if not row["recovered"]]  # fmt: skip
    return Figure(
        part=PART,
        what=f"came back after memory ended, of {planned}",
        case=case,
        value=good,
        limit=f"{planned} of {planned}",
        holds=good == planned == len(rows),
        note="; ".join(why),
        detail={"rows": rows},
    )


def _in_mode(
    room: Room, mode: SplitMode, cases: list[tuple[str, str]], card: Card | None, on_gpu: OnGpu | None
) -> Iterator[dict[str, Any]]:
    base = room.layout("8b", room.split(mode), n_ctx=N_CTX, n_ubatch=2048)
    kit = FixedKit()
    with session_on(base, kit) as (session, heard):
        ask(session, "Name a river.", 16)
        assert session.loaded is not None
        squeeze: Squeeze
        if on_gpu is not None and card is not None:
            there = {each.name for each in kit.cards(base) if each.pci_bus_id == card.pci_bus_id}
            serving = tuple(memory for memory in session.loaded.cards if memory.name in there)
            on_gpu.know(mode, serving, len(serving) / len(session.loaded.cards))
            squeeze = on_gpu
        else:
            squeeze = OnVirtual(session.loaded, session)
        for kind, how in cases:
            about = {"mode": mode, "kind": kind, "how": how}
            try:
                yield about | _one(room, session, heard, kit, squeeze, base, kind, how)
            except Exception as error:  # what was found before is kept
                yield about | {"recovered": False, "message": f"it did not go on: {error!r}"}
                return
            finally:
                squeeze.release()


def _one(
    room: Room, session: Session, heard: Heard, kit: FixedKit, squeeze: Squeeze, base: Layout, kind: str, how: str
) -> dict[str, Any]:
    """Memory ends once: what was said of it, and whether the last good layout came back and answers."""
    # What was suggested after the case before is worked out in the switches' thread, by a helper that holds memory.
    session._switches.submit(lambda: None).result(LIMIT_S)
    kit.forecasts.release()
    kit.beside = how == "beside"
    if kind == "compute" or session.layout != base:
        session.load(base).result(LIMIT_S)  # a worker that has evaluated a long prompt holds what another takes
        session.clear().result(LIMIT_S)
    since, turns = len(heard.events), len(session.conversation.turns)
    begun = time.monotonic()
    if kind == "compute":
        left, phase = _answer_until_it_ends(session, heard, squeeze, base, 60 if room.virtual else 300)
    else:
        target = squeeze.before(kind, how, _target(room, base, kind, how))
        left, phase = squeeze.left_mib(), "load"
        settle(session.load(target))
    problems = heard.of(events.Problem, since)
    if kind == "compute":  # the layout comes back; nothing can answer in what is left, until the other gives way
        wait_until(lambda: session.loaded is not None, LIMIT_S)
        squeeze.release()
    afterwards = settle(session.send("Name a lake.", Sampling(temperature=0, max_tokens=16, ignore_eos=True)))
    seconds = time.monotonic() - begun
    answered = afterwards is not None and afterwards.stop_reason == "max_tokens"
    first = problems[0][1] if problems else None
    ended = first is not None and (kind == "compute" or first.wanted_mib is not None)
    strategies = [event.strategy for _, event in heard.of(events.LoadStarted, since)]
    return {
        "recovered": ended and answered and session.layout == base,
        "ended_in": phase,
        "left_mib": left,
        "message": None if first is None else with_sizes(first.message, first.card, first.wanted_mib, first.free_mib),
        "card": first and first.card,
        "wanted_mib": first and first.wanted_mib,
        "free_mib": first and first.free_mib,
        "problems": len(problems),
        "strategies": strategies,
        "answered": answered,
        "suggested": [event.sentence for _, event in heard.of(events.Suggestion, since)],
        "turns_kept": len(session.conversation.turns) > turns,
        "seconds": round(seconds, 2),
    }


def _target(room: Room, base: Layout, kind: str, how: str) -> Layout:
    """A layout that needs more: a larger model, another split, a larger context, the last two together."""
    if how == "context":
        context = msgspec.structs.replace(base.context, n_ctx=LARGE_N_CTX)
        return msgspec.structs.replace(base, context=context)
    split = msgspec.structs.replace(base.split, tensor_split=room.uneven(1.0, 2.0))
    if kind == "weights":
        model = room.models.get("70b", room.models["8b"])
        return msgspec.structs.replace(base, split=split, model=str(model), name="larger")
    context = msgspec.structs.replace(base.context, n_ctx=LARGE_N_CTX)
    return msgspec.structs.replace(base, split=split, context=context, name="longer")


def _answer_until_it_ends(
    session: Session, heard: Heard, squeeze: Squeeze, base: Layout, tokens: int
) -> tuple[float | None, str]:
    """Memory goes while a reply streams; a reply that needs no more goes on, and a long prompt follows."""
    since = len(heard.events)
    reply = session.send("Tell of a river.", Sampling(temperature=0, max_tokens=tokens, ignore_eos=True))
    wait_until(lambda: reply.done() or heard.of(events.TurnText, since))
    squeeze.before("compute", "answering", base)
    left = squeeze.left_mib()
    turn = settle(reply)
    if turn is None or turn.stop_reason == "died":
        return left, "decode"
    settle(session.send(LONG_PROMPT, Sampling(temperature=0, max_tokens=16, ignore_eos=True)))
    return left, "prefill"
