"""What the cards did during one reply: who worked how long, who waited, what it took in joules."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from workbench.domain.memory import CardMemory
from workbench.domain.split import SplitMode

SHORT_S = 2.0
"""The energy of a shorter reply is approximate: the counters move every 20 to 100 ms."""
_JOULES_PER_KWH = 3.6e6


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One card at one time (monotonic seconds): how busy, 0 … 1, and its energy counter in joules."""

    at: float
    busy: float | None = None
    energy_j: float | None = None
    energy_at: float | None = None


class CardDuty(msgspec.Struct, frozen=True, kw_only=True):
    """One card during a reply; all parts are 0 … 1, None where nobody knows.

    `busy` is the part of the time in which it worked, `share` its part of all cards' work,
    `ideal` what that would be by its weights, each of which is read for every token.
    """

    name: str
    busy: float | None = None
    share: float | None = None
    ideal: float | None = None
    joules: float | None = None


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """All cards during a reply of `tokens` tokens in `seconds`.

    `idle` is the part of the time, 0 … 1, in which no card was busy: exact where cards take
    turns, at most that where they work at once. `host` is the part in which
    the CPU computed layers of its own, None where none lie there or it cannot be told.
    """

    mode: SplitMode
    cards: tuple[CardDuty, ...]
    tokens: int
    seconds: float
    idle: float | None = None
    host: float | None = None

    @property
    def joules(self) -> float | None:
        """All cards together; None unless every card tells."""
        known = [card.joules for card in self.cards if card.joules is not None]
        return sum(known) if known and len(known) == len(self.cards) else None

    @property
    def approximate(self) -> bool:
        """Whether the reply was too short for the energy counters."""
        return self.seconds < SHORT_S

    @property
    def speeds(self) -> dict[str, float]:
        """Of each card what it reads of the weights in the time that it works, against the others.

        Empty unless cards took turns: of those that work at once each waits for the slowest.
        """
        found = {card.name: card.ideal / card.share for card in self.cards if card.ideal and card.share}
        return found if self.mode == "layer" and len(found) == len(self.cards) > 1 else {}

    def per_token(self, joules: float | None) -> float | None:
        """Joules a token."""
        return joules / self.tokens if joules is not None and self.tokens else None


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What running costs: the machine by the hour, electricity by the kWh, or both."""

    currency: str = "EUR"
    per_hour: float | None = None
    per_kwh: float | None = None

    def tokens_per_unit(self, duty: Duty) -> float | None:
        """Tokens for one unit of the currency at the reply's pace; None where something is unknown."""
        if not duty.tokens or duty.seconds <= 0:
            return None
        cost = 0.0
        if self.per_hour is not None:
            cost += self.per_hour * duty.seconds / 3600
        if self.per_kwh is not None:
            if duty.joules is None:
                return None
            cost += self.per_kwh * duty.joules / _JOULES_PER_KWH
        return duty.tokens / cost if cost > 0 else None


def account(
    mode: SplitMode,
    memory: Sequence[CardMemory],
    readings: Sequence[Sequence[Reading]],
    began: float,
    ended: float,
    tokens: int,
    *,
    busy_is_known: Sequence[bool],
    host_busy: float | None = None,
) -> Duty:
    """The duty of each card in the split's order from its readings around a reply.

    `busy_is_known` is False for a card whose `busy` is comparable with others of its kind only,
    as a virtual card's CPU share is: it has a share of the work, but no time of its own.
    `host_busy` is the same figure of the engine's own process, given only if layers lie there.
    """
    within = [[one for one in card if began < one.at <= ended and one.busy is not None] for card in readings]
    means = [_mean([one.busy for one in card if one.busy is not None]) for card in within]
    worked = sum(mean for mean in means if mean is not None)
    ideals = _ideals(memory)
    known = all(mean is not None for mean in means)
    cards = tuple(
        CardDuty(
            name=card.name,
            busy=mean if told else None,
            share=mean / worked if mean is not None and known and worked > 0 else None,
            ideal=ideal,
            joules=_joules(series, began, ended),
        )
        for card, mean, told, ideal, series in zip(memory, means, busy_is_known, ideals, readings, strict=True)
    )
    idle = None
    if known and means and all(busy_is_known):
        total = sum(mean or 0.0 for mean in means) if mode == "layer" else max(mean or 0.0 for mean in means)
        idle = max(0.0, 1.0 - total)
    host = None
    if host_busy is not None and known:
        whole = worked + host_busy
        host = idle if idle is not None else host_busy / whole if whole > 0 else None
    return Duty(mode=mode, cards=cards, tokens=tokens, seconds=ended - began, idle=idle, host=host)


def _ideals(memory: Sequence[CardMemory]) -> list[float | None]:
    """Each card's part of the weights: layers differ in size, the output most of all."""
    total = sum(card.weights_mib for card in memory)
    return [card.weights_mib / total if total > 0 else None for card in memory]


def _joules(series: Sequence[Reading], began: float, ended: float) -> float | None:
    before, after = _energy_at(series, began), _energy_at(series, ended)
    return None if before is None or after is None or after < before else after - before


def _energy_at(series: Sequence[Reading], at: float) -> float | None:
    """The counter at a time, by a straight line between the readings around it; None outside of them.

    A counter that began anew between them tells nothing.
    """
    points = sorted({(one.energy_at, one.energy_j) for one in series if one.energy_at is not None})
    for (before, low), (after, high) in pairwise(points):
        if before <= at <= after and low is not None and high is not None and after > before:
            return low + (high - low) * (at - before) / (after - before) if high >= low else None
    return None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
