"""What is free on each card for a draft, and what past loads say of the rest."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import psutil

from workbench.domain.card import Card, CardKind
from workbench.domain.forecast import Room, correction
from workbench.domain.layout import Layout
from workbench.domain.memory import CardMemory
from workbench.domain.split import SplitMode
from workbench.engines.engine import Loaded
from workbench.engines.llama.wire import Load, WireCard
from workbench.lab.plan import MIB, find_card
from workbench.meters.nvml import Nvml
from workbench.store.load_errors import LoadErrors

DRIVER_CONTEXT_MIB = 600.0
"""What CUDA keeps on a card for a process, where nothing better is known."""
TENSOR_MODE_MIB = 1395.0
"""The same in tensor mode with NCCL, whose buffers count here (two H200, driver 580, 8B and 70B alike)."""
VIRTUAL = "virtual"


class Running(msgspec.Struct, frozen=True):
    """The layout that serves, and what it came to."""

    layout: Layout
    loaded: Loaded


class Rooms:
    """Asks NVML for CUDA cards, from this process; a virtual card has its size.

    `cards` lists the machine's cards as an engine with a layout's environment sees them.
    """

    def __init__(self, cards: Callable[[Layout], Sequence[Card]], errors: LoadErrors) -> None:
        self._cards = cards
        self._errors = errors
        self._nvml: Nvml | None = None
        self._helper_mib: dict[str, float] = {}

    def free_mib(self, layout: Layout, cards: Sequence[WireCard]) -> dict[str, float | None]:
        """Free now on each card by its name, the helper's own memory included; None where unknown."""
        free: dict[str, float | None] = {}
        for card in cards:
            known = self._known(layout, card)
            if card.virtual_mib is not None:
                free[card.name] = card.virtual_mib
            elif known is None:
                free[card.name] = card.free_mib
            else:
                read = self._read(known)
                free[card.name] = known.free_mib if read is None else read[0]
        return free

    def used_mib(self, layout: Layout, cards: Sequence[WireCard]) -> dict[str, float]:
        """Used now on each card that NVML knows, by its name; whose part of a GPU is used nobody knows."""
        readings = ((card.name, self._known(layout, card)) for card in cards)
        return {
            name: read[1]
            for name, known in readings
            if known is not None and known.parts == 1 and (read := self._read(known))
        }

    def note_helper(self, before: Mapping[str, float | None], after: Mapping[str, float | None]) -> None:
        """The helper looked at the cards between these two readings: the difference is its own."""
        for name, free in before.items():
            now = after.get(name)
            if free is not None and now is not None:
                self._helper_mib[name] = max(0.0, free - now)

    def forget_helper(self) -> None:
        """The helper is gone, and holds nothing any more."""
        self._helper_mib = {}

    def of(self, layout: Layout, load: Load, running: Running | None, running_cards: Sequence[WireCard]) -> list[Room]:
        """The room on each card of `load` in its order, and last on the host."""
        mode = layout.split.split_mode
        comes_back: dict[str, float] = {}
        virtual_mib = 0.0
        if running is not None:
            for card, memory in zip(running_cards, running.loaded.cards, strict=False):
                if card.virtual_mib is not None:
                    virtual_mib += memory.total_mib
                    continue
                other, _ = self._other(running.layout, card, running.layout.split.split_mode)
                key = self.key(running.layout, card)
                comes_back[key] = comes_back.get(key, 0.0) + memory.total_mib + other
        free = self.free_mib(layout, load.cards)
        rooms = [self._room(layout, card, free[card.name], comes_back, mode) for card in load.cards]
        available = psutil.virtual_memory().available / MIB
        return [*rooms, Room(free_mib=available + virtual_mib, beside_mib=available)]

    def key(self, layout: Layout, card: WireCard) -> str:
        """What tells this card from others across runs; the parts of one GPU are alike."""
        if card.virtual_mib is not None:
            return VIRTUAL
        if card.endpoint is not None:
            return f"rpc://{card.endpoint}"
        known = self._known(layout, card)
        whole = (known and (known.uuid or known.pci_bus_id)) or card.name
        return whole if known is None or known.parts == 1 else f"{whole}/{known.parts}"

    def apart(self, layout: Layout, card: WireCard) -> bool:
        """Whether what a load takes there can be told from what it takes of other cards; not of parts of one GPU."""
        known = self._known(layout, card)
        return known is None or known.parts == 1

    def _room(
        self, layout: Layout, card: WireCard, free: float | None, comes_back: Mapping[str, float], mode: SplitMode
    ) -> Room:
        other, loads = self._other(layout, card, mode)
        if free is None or card.virtual_mib is not None:
            return Room(free_mib=free, beside_mib=free, other_mib=other, loads=loads)
        now = free + self._helper_mib.get(card.name, 0.0)
        known = self._known(layout, card)
        back = comes_back.get(self.key(layout, card), 0.0) / (1 if known is None else known.parts)
        return Room(free_mib=now + back, beside_mib=now, other_mib=other, loads=loads)

    def _other(self, layout: Layout, card: WireCard, mode: SplitMode) -> tuple[float, int]:
        """What a load takes there beyond the engine's figures, and how many past loads say so."""
        past = self._errors.of(self.key(layout, card), mode)
        if past:
            return correction(past), len(past)
        known = self._known(layout, card)
        if known is None or known.kind is not CardKind.CUDA:
            return 0.0, 0
        context = self._helper_mib.get(card.name) or DRIVER_CONTEXT_MIB / known.parts
        return max(context, TENSOR_MODE_MIB) if mode == "tensor" and known.parts == 1 else context, 0

    def _known(self, layout: Layout, card: WireCard) -> Card | None:
        return None if card.device is None else find_card(card.device, self._cards(layout))

    def _read(self, card: Card) -> tuple[float, float] | None:
        """(free there, used on the whole GPU) by NVML; None where it does not tell."""
        if card.kind is not CardKind.CUDA or card.pci_bus_id is None or card.uuid is None:
            return None
        self._nvml = self._nvml or Nvml()
        sample = self._nvml.sample(card.name, card.pci_bus_id)
        if sample.free_mib is None or sample.used_mib is None:
            return None
        return card.part_of(sample.free_mib), sample.used_mib

    def close(self) -> None:
        """Let go of NVML."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None


def with_virtual(rooms: Sequence[Room], load: Load, cards: Sequence[CardMemory]) -> list[Room]:
    """The same rooms, the host's without what this draft's virtual cards would take of it."""
    taken = sum(
        memory.total_mib for card, memory in zip(load.cards, cards, strict=True) if card.virtual_mib is not None
    )
    host = rooms[-1]
    return [
        *rooms[:-1],
        msgspec.structs.replace(
            host,
            free_mib=None if host.free_mib is None else host.free_mib - taken,
            beside_mib=None if host.beside_mib is None else host.beside_mib - taken,
        ),
    ]
