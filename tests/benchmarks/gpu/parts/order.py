"""The order of cards under CUDA_VISIBLE_DEVICES, and a split over a card and an RPC server that owns another.

Names, meters and placement agree where a load of unequal parts takes of each GPU, by the driver,
what the engine says of the card of that name.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tests.benchmarks.gpu import rpc_server
from tests.benchmarks.gpu.engines import ask, opened
from tests.benchmarks.gpu.room import Figure, Room
from tests.benchmarks.gpu.served import gpus, nvml
from tests.waiting import wait_until
from workbench.domain.card import Card
from workbench.domain.forecast import Forecast
from workbench.domain.layout import Layout
from workbench.domain.memory import CardMemory
from workbench.domain.split import count_layers, place_layers
from workbench.engines.engine import EngineError, Loaded
from workbench.lab.kit import RealKit
from workbench.lab.watch import Watch
from workbench.meters.nvml import Nvml
from workbench.meters.sample import Snapshot

PART = "order"
CONTEXT_MIB = 1200.0
"""A load takes up to this on a GPU beyond what the engine counts: the driver's context."""
EXACT_MIB, COMPUTE_MIB = 1.0, 64.0
REPLY = 32


def measure(room: Room) -> Iterator[Figure]:
    """By number and by UUID; then over RPC."""
    kit = RealKit(spare=False)
    machine = gpus(room, kit)
    kit.close()
    what = "names, meters and placement agree"
    if not machine:
        yield Figure(part=PART, what=what, note="not measured: a rehearsal without a GPU")
    else:
        with nvml() as driver:
            if len(machine) > 1:
                numbers = ",".join(str(gpu.index) for gpu in reversed(driver.gpus))
                yield _order(room, driver, what, "CUDA_VISIBLE_DEVICES reversed, by number", numbers)
            else:
                yield Figure(part=PART, what=what, case="reversed, by number", note="not measured: one GPU")
            uuids = ",".join(gpu.uuid or "" for gpu in reversed(driver.gpus))
            yield _order(room, driver, what, "CUDA_VISIBLE_DEVICES reversed, by UUID", uuids)
    yield from _over_rpc(room)


def _order(room: Room, driver: Nvml, what: str, case: str, visible: str) -> Figure:
    """With each GPU whole, most of the model on the first card: what is wrong, if anything."""
    expected = tuple(reversed(driver.gpus))
    shares = (3.0, *(1.0,) * (len(expected) - 1))
    split = msgspec.structs.replace(room.split(), cards=tuple(gpu.uuid or "" for gpu in expected), tensor_split=shares)
    layout = msgspec.structs.replace(room.layout("8b", split, n_ctx=2048), env={"CUDA_VISIBLE_DEVICES": visible})
    kit = RealKit(spare=False)
    cards = [card for card in kit.cards(layout) if card.pci_bus_id is not None]
    kit.close()
    wrong = [
        f"{card.name} is {card.uuid}, number {card.smi_index}, instead of {gpu.uuid}, number {gpu.index}"
        for card, gpu in zip(cards, expected, strict=False)
        if (card.uuid, card.smi_index) != (gpu.uuid, gpu.index)
    ]
    if [card.name for card in cards] != [f"CUDA{i}" for i in range(len(expected))]:
        wrong.append(f"the cards are called {', '.join(card.name for card in cards)}")
    before = _used(driver, cards)
    with opened(layout) as (engine, loaded):
        grown = {name: used - before[name] for name, used in _used(driver, cards).items()}
        ask(engine, 64, REPLY)
        metered = _metered(loaded, cards)
    wrong += _misplaced(loaded, shares)
    detail: dict[str, Any] = {}
    for memory in loaded.cards:
        by_driver, shown = grown.get(memory.name, 0.0), metered.get(memory.name)
        detail[memory.name] = {"engine": round(memory.total_mib), "driver": round(by_driver), "meters": shown}
        if not memory.total_mib - 1 <= by_driver <= memory.total_mib + CONTEXT_MIB:
            wrong.append(f"{memory.name} holds {memory.total_mib:.0f} MiB, its GPU took {by_driver:.0f}")
        if shown is None or shown < memory.total_mib:
            wrong.append(f"{memory.name} holds {memory.total_mib:.0f} MiB, its row shows {shown}")
    if len(expected) == 1:
        case += " (one GPU)"
    return Figure(part=PART, what=what, case=case, value=len(cards), unit="cards", limit="nothing else",
                  holds=not wrong, note="; ".join(wrong), detail=detail)  # fmt: skip


def _misplaced(loaded: Loaded, shares: Sequence[float]) -> list[str]:
    positions = loaded.model.n_layer + 1
    asked = count_layers(place_layers(loaded.model.n_layer, positions, shares), len(shares))
    landed = tuple(card.layers for card in loaded.cards)
    return [] if landed == asked else [f"layers {landed} instead of {asked}"]


def _used(driver: Nvml, cards: Sequence[Card]) -> dict[str, float]:
    return {card.name: driver.sample("", card.pci_bus_id or "").used_mib or 0.0 for card in cards}


def _metered(loaded: Loaded, cards: Sequence[Card]) -> dict[str, float | None]:
    """What the screen's meters show as used in each card's row."""
    snapshots: list[Snapshot] = []
    watch = Watch(snapshots.append, lambda duty: None)
    watch.watch(loaded, cards)
    watch.start()
    wait_until(lambda: snapshots)
    watch.close()
    return {card.name: card.used_mib for card in snapshots[-1].cards}


def _over_rpc(room: Room) -> Iterator[Figure]:
    """Half on the first card, half on a server that owns the last; in a rehearsal two servers have the CPU."""
    about: dict[str, Any] = {"part": PART, "case": "8b, a card and an RPC server on this host, 1:1"}
    if room.virtual:
        with rpc_server.serving("CPU", {}) as (first, _), rpc_server.serving("CPU", {}) as (second, _):
            yield from _half_and_half(room, (f"rpc://{first}", f"rpc://{second}"), about)
        return
    local, remote = room.cards[0], room.cards[-1]
    with rpc_server.serving(remote, room.env) as (endpoint, _):
        yield from _half_and_half(room, (local, f"rpc://{endpoint}"), about)


def _half_and_half(room: Room, cards: tuple[str, str], about: dict[str, Any]) -> Iterator[Figure]:
    split = msgspec.structs.replace(room.split(), cards=cards, tensor_split=(1.0, 1.0))
    layout = room.layout("8b", split, n_ctx=2048)
    forecast, why = _forecast(layout)
    with opened(layout) as (engine, loaded):
        decode = ask(engine, 64, REPLY + 1).decode_tok_s
    wrong = _misplaced(loaded, (1.0, 1.0))
    detail = {"load_s": round(loaded.load_s, 2), "places": dict.fromkeys(loaded.places)}
    yield Figure(what="decode over RPC", value=decode and round(decode, 1), unit="tok/s", limit="it answers, as placed",
                 holds=decode is not None and not wrong, note="; ".join(wrong), detail=detail, **about)  # fmt: skip
    what = "forecast against measured, the worst of weights and KV"
    if forecast is None:
        yield Figure(what=what, note=f"no forecast: {why}", **about)
        return
    rows = {held.name: _errors(told, held) for told, held in zip(forecast.cards, loaded.cards, strict=True)}
    worst = max(max(row["weights_mib"], row["kv_mib"]) for row in rows.values())
    compute = max(row["compute_mib"] for row in rows.values())
    case = {**about, "case": f"{about['case']}, by {forecast.source}"}
    yield Figure.at_most(worst, EXACT_MIB, what=what, unit="MiB", detail=rows, **case)
    yield Figure.at_most(compute, COMPUTE_MIB, what="forecast against measured, compute", unit="MiB", **case)


def _forecast(layout: Layout) -> tuple[Forecast | None, str]:
    kit = RealKit(spare=False)
    try:
        return kit.forecasts.forecast(layout, limits=False), ""
    except EngineError as error:
        return None, error.reason
    finally:
        kit.close()


def _errors(told: CardMemory | Any, held: CardMemory) -> dict[str, float]:
    kinds = ("weights_mib", "kv_mib", "compute_mib")
    return {kind: round(abs(getattr(told, kind) - getattr(held, kind)), 2) for kind in kinds}
