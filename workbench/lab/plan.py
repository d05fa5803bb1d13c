"""From a layout to what a worker is told: which file, which cards, how many threads."""

import os
from collections.abc import Callable, Sequence

import psutil

from workbench.domain.card import Card, CardKind, format_mib, parse_mib, pci_key
from workbench.domain.layout import Layout
from workbench.domain.rules import check_layout
from workbench.domain.split import Virtual
from workbench.engines.engine import LoadFailed
from workbench.engines.llama.wire import Load, WireCard

RPC_PREFIX = "rpc://"
MIB = 2**20


def plan_load(layout: Layout, model_path: str, cards: Callable[[], Sequence[Card]], beside: int = 0) -> Load:
    """What the worker is told. `cards` lists the machine's cards, and is asked only if need be.

    `beside` counts the virtual cards that live already and share the cores. Raises LoadFailed.
    """
    _check(layout, None)
    wanted = layout.split.cards
    if isinstance(wanted, Virtual):
        used = _virtual_cards(wanted)
    elif wanted is None:
        used = tuple(_local(card) for card in cards() if card.kind is not CardKind.CPU)
    else:
        used = _named_cards(wanted, cards)
    _check_cards(layout, used)
    _check(layout, len(used) or None)
    live = beside + sum(1 for card in used if card.virtual_mib is not None)
    return Load(
        model_path=model_path,
        cards=used,
        split=layout.split,
        context=layout.context,
        card_threads=max(1, cores() // max(1, live)),
    )


def _check(layout: Layout, n_cards: int | None) -> None:
    """Hold the layout against the rules, which not every layout comes from a document that was held against."""
    for key, message in check_layout(layout, n_cards):
        raise LoadFailed(f"{key.rpartition('.')[2]} {message}", key=key)


def _check_cards(layout: Layout, used: Sequence[WireCard]) -> None:
    """Hold the split against the cards it will have."""
    split = layout.split
    if not used and split.cards is None and (split.layers or not isinstance(split.tensor_split, str)):
        raise LoadFailed(
            "there is no GPU here to split over; write cards: {virtual: [600MiB, 600MiB]}, or leave the shares out to "
            "run on the CPU (`workbench cards` lists what there is)",
            key="split.cards",
        )
    unable = [card.name for card in used if card.endpoint or card.virtual_mib or card.name.startswith("CUDA")]
    if split.split_mode == "row" and unable:
        raise LoadFailed(
            f"split_mode row does not work on {unable[0]}, which cannot hold rows of a tensor; write layer or tensor",
            key="split.split_mode",
        )


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _virtual_cards(wanted: Virtual) -> tuple[WireCard, ...]:
    sizes = [parse_mib(size) for size in wanted.virtual]
    host_mib = psutil.virtual_memory().total / MIB
    if sum(sizes) > host_mib:
        raise LoadFailed(
            f"the virtual cards add up to {format_mib(sum(sizes))}, and this host has {format_mib(host_mib)} of memory;"
            " make them smaller",
            wanted_mib=sum(sizes),
            free_mib=host_mib,
            key="split.cards.virtual",
        )
    return tuple(WireCard(name=f"RPC{i}", virtual_mib=size, free_mib=size) for i, size in enumerate(sizes))


def _named_cards(wanted: Sequence[str], cards: Callable[[], Sequence[Card]]) -> tuple[WireCard, ...]:
    if tuple(wanted) == ("CPU",):
        return ()
    known = cards() if any(not name.startswith(RPC_PREFIX) for name in wanted) else ()
    used: list[WireCard] = []
    for i, name in enumerate(wanted):
        if name.startswith(RPC_PREFIX):
            remote = sum(1 for card in used if card.endpoint)
            used.append(WireCard(name=f"RPC{remote}", endpoint=name.removeprefix(RPC_PREFIX)))
            continue
        card = find_card(name, known)
        if card is None:
            there = ", ".join(card.name for card in known) or "none"
            raise LoadFailed(
                f"there is no card {name} here; there are: {there} (`workbench cards` lists them)",
                key=f"split.cards[{i}]",
            )
        if card.kind is CardKind.CPU:
            raise LoadFailed(
                "CPU stands alone in `cards`, or not at all: layers that fit no card go there by n_gpu_layers",
                key=f"split.cards[{i}]",
            )
        used.append(_local(card))
    return tuple(used)


def find_card(name: str, cards: Sequence[Card]) -> Card | None:
    """The card of that name, PCI bus id or UUID."""
    key = pci_key(name)
    for card in cards:
        same_bus = key is not None and key == pci_key(card.pci_bus_id or "")
        if same_bus or name.lower() in (card.name.lower(), (card.uuid or "").lower()):
            return card
    return None


def _local(card: Card) -> WireCard:
    return WireCard(name=card.name, device=card.name, free_mib=card.free_mib)
