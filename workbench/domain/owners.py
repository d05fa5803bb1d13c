"""Whose memory is it: what is used on a card, divided among its owners."""

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from workbench.domain.memory import CardMemory

OwnerKind = Literal["weights", "kv", "compute", "context", "process", "unknown"]
"""This model's kinds; `context` is what its process holds beyond them; another process; nobody knows whose."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what is used, in MiB. `pid` and `name` are those of another process."""

    kind: OwnerKind
    mib: float
    pid: int | None = None
    name: str | None = None


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process and what it holds, as the driver tells; `mib` None where it does not."""

    pid: int
    name: str | None = None
    mib: float | None = None


def divide(
    used_mib: float,
    memory: CardMemory | None,
    holders: Sequence[Holder] = (),
    our_pids: Collection[int] = (),
) -> tuple[Owner, ...]:
    """The owners of `used_mib`; their sum is exactly that, and none is negative.

    Figures of different sources may disagree by what changed between their readings: whoever
    comes later in the order of `OwnerKind` gets no more than what is left. Where the driver
    lists none of our pids, as in a container, the smallest process that could hold the model
    is taken for ours.
    """
    engine = 0.0 if memory is None else memory.total_mib
    ours = _ours(engine, holders, our_pids)
    left = used_mib
    found: list[Owner] = []

    def take(kind: OwnerKind, mib: float, holder: Holder | None = None) -> None:
        nonlocal left
        part = min(max(0.0, mib), left)
        left -= part
        if part > 0:
            pid, name = (None, None) if holder is None else (holder.pid, holder.name)
            found.append(Owner(kind=kind, mib=part, pid=pid, name=name))

    if memory is not None:
        take("weights", memory.weights_mib)
        take("kv", memory.kv_mib)
        take("compute", memory.compute_mib)
    take("context", sum(holder.mib or 0.0 for holder in ours) - engine)
    for holder in holders:
        if holder not in ours:
            take("process", holder.mib or 0.0, holder)
    take("unknown", left)
    return tuple(found)


def _ours(engine_mib: float, holders: Sequence[Holder], our_pids: Collection[int]) -> Sequence[Holder]:
    listed = [holder for holder in holders if holder.pid in our_pids]
    if listed or not our_pids or not engine_mib:
        return listed
    able = [holder for holder in holders if holder.mib is not None and holder.mib >= engine_mib]
    return sorted(able, key=lambda holder: holder.mib or 0.0)[:1]
