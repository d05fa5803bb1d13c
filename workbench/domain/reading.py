"""One plain sentence that reads the meters: the most important thing to know about this split now."""

from collections.abc import Sequence

import msgspec

from workbench.domain.duty import CardDuty, Duty

_MUCH_IDLE = 0.3
"""Above this part of a reply in which no card worked, something else is the limit."""
_OFF_IDEAL = 0.12
"""So far a card's share of the work may be from that of the weights before it is worth a word."""
_BANDWIDTH = 70.0
_FULL = 90.0
HELD_DOWN = ("hardware slowdown", "hardware thermal", "hardware power brake", "software thermal")
"""Throttle reasons that are trouble. A power cap is a card's ordinary state under load."""


class CardScene(msgspec.Struct, frozen=True, kw_only=True):
    """What the meters say of one card now; percentages 0 … 100, None where unknown."""

    name: str
    lost: bool = False
    ours: bool = True
    """Whether a part of the model lies there."""
    steadily: float | None = None
    """How busy it was at the least over the last seconds."""
    dram_percent: float | None = None
    throttle: tuple[str, ...] = ()
    sm_clock_mhz: float | None = None
    uncorrected_errors: int = 0


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the sentence is made from.

    `host_layers` are the first and the last layer that stayed on the CPU. `duty` is the last
    reply's. `working` says that a reply is being written, or something else of ours runs.
    """

    cards: Sequence[CardScene]
    duty: Duty | None = None
    host_layers: tuple[int, int] | None = None
    working: bool = False


def read(scene: Scene) -> str:
    """The sentence; empty where there is nothing to read."""
    return next(filter(None, (_trouble(scene), _host(scene), _strangers(scene), _balance(scene))), "")


def _trouble(scene: Scene) -> str:
    for card in scene.cards:
        if card.lost:
            return f"{card.name} no longer answers" + (", and a part of the model was there" if card.ours else "")
    for card in scene.cards:
        if card.uncorrected_errors:
            count = card.uncorrected_errors
            return f"{card.name} had {count} memory error{'s' if count > 1 else ''} that it could not correct"
        held = [why for why in card.throttle if why in HELD_DOWN]
        if held and card.ours:
            clock = "" if card.sm_clock_mhz is None else f" to {card.sm_clock_mhz:.0f} MHz"
            return f"{card.name} is held down{clock} ({held[0]}); a split is as slow as its slowest card"
    return ""


def _host(scene: Scene) -> str:
    if scene.host_layers is None:
        return ""
    first, last = scene.host_layers
    where = f"layer {first} is" if first == last else f"layers {first}–{last} are"
    part = scene.duty.host if scene.duty is not None else None
    if part is None:
        return f"{where} on the CPU, which is many times slower than a card"
    return f"{where} on the CPU: about {part * 100:.0f} % of the time goes there"


def _strangers(scene: Scene) -> str:
    if scene.working:
        return ""
    busy = [card for card in scene.cards if card.ours and (card.steadily or 0) >= _FULL]
    if busy and scene.duty is not None:
        return f"{busy[0].name} is busy although nothing runs here: something else uses it"
    return ""


def _balance(scene: Scene) -> str:
    duty = scene.duty
    if duty is None:
        return ""
    working = [card for card in duty.cards if (card.ideal or 0) > 0]
    if duty.idle is not None and duty.idle > _MUCH_IDLE:
        return f"no card was busy for {duty.idle * 100:.0f} % of the last reply: the host or the links are the limit"
    if not working:
        return ""  # nobody tells which card works, as with a server
    if len(working) == 1:
        return _single(scene, working[0])
    if duty.mode == "layer":
        return _turns(working)
    return _together(working)


def _single(scene: Scene, working: CardDuty) -> str:
    name = working.name
    dram = next((card.dram_percent for card in scene.cards if card.name == name), None)
    if scene.working and dram is not None and dram >= _BANDWIDTH:
        return f"{name} does all the work and is bound by its memory's bandwidth ({dram:.0f} %)"
    return f"{name} does all the work"


def _turns(working: Sequence[CardDuty]) -> str:
    off = _furthest(working)
    if off is not None:
        share, ideal = (off.share or 0) * 100, (off.ideal or 0) * 100
        kind = "more" if share > ideal else "less"
        return f"{off.name} does {share:.0f} % of the work with {ideal:.0f} % of the weights: {kind} than its share"
    if len(working) == 2 and all(abs((card.ideal or 0) - 0.5) < _OFF_IDEAL for card in working):
        return "layer mode: cards take turns, about half idle each is expected"
    idle = ", ".join(f"{card.name} {(1 - (card.ideal or 0)) * 100:.0f} %" for card in working[:4])
    rest = "" if len(working) <= 4 else " …"
    return f"layer mode: cards take turns, so idle by design: {idle}{rest}"


def _together(working: Sequence[CardDuty]) -> str:
    known = [card for card in working if card.busy is not None]
    if len(known) == len(working):
        least = min(known, key=lambda card: card.busy or 0)
        most = max(known, key=lambda card: card.busy or 0)
        if (most.busy or 0) - (least.busy or 0) > _OFF_IDEAL:
            return (
                f"tensor mode: {least.name} is busy {(least.busy or 0) * 100:.0f} %,"
                f" {most.name} {(most.busy or 0) * 100:.0f} %: {least.name} could hold more"
            )
    return "tensor mode: all cards work at once, and talk after every layer"


def _furthest(working: Sequence[CardDuty]) -> CardDuty | None:
    """The card whose work is furthest above or below its weights, if far enough to say so."""

    def surplus(card: CardDuty) -> float:
        return 0.0 if card.share is None or card.ideal is None else card.share - card.ideal

    off = max(working, key=lambda card: (round(abs(surplus(card)), 3), surplus(card)))
    if off.share is None or off.ideal is None or abs(off.share - off.ideal) <= _OFF_IDEAL:
        return None
    return off
