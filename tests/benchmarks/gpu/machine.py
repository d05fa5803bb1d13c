"""The cards of this machine, and what is to be said of it beside the figures."""

import time
from collections.abc import Sequence

from tests.benchmarks.gpu.table import Machine
from workbench.domain.card import Card, CardKind, pci_key
from workbench.lab.cards import find_topology, inventory
from workbench.lab.provenance import describe
from workbench.meters.nvml import Nvml


def find_cards(count: int | None) -> tuple[tuple[Card, ...], dict[str, str | None]]:
    """All CUDA cards, or the first `count`; parts of one where there are fewer. The environment that gives them.

    Ends where there are none.
    """
    found = inventory({})
    gpus = sum(card.kind is CardKind.CUDA for card in found.cards)
    if not gpus:
        lack = found.advice or "there is no NVIDIA card here"
        raise SystemExit(f"{lack}; --rehearse goes the same ways on virtual cards")
    wanted = count or max(2, gpus)
    env: dict[str, str | None] = {"GGML_CUDA_DEVICES": str(wanted)} if wanted > gpus else {}
    found = inventory(env) if env else found
    cards = tuple(card for card in found.cards if card.kind is CardKind.CUDA)[:wanted]
    if len(cards) < wanted:
        raise SystemExit(f"{len(cards)} CUDA cards instead of {wanted}; {found.advice or 'llama.cpp sees no more'}")
    return cards, env


def describe_machine(cards: Sequence[Card], virtual: int, command: str, commit: str) -> Machine:
    """Cards, driver, build and date; the machine's own name is left out."""
    about = describe(())
    nvml = Nvml()
    cuda = None if nvml.cuda is None else "{}.{}".format(*nvml.cuda)
    nvml.close()
    cells = [cell.text() for row in find_topology(cards).cells for cell in row if cell is not None]
    names = {pci_key(gpu.pci_bus_id): gpu.name for gpu in about.machine.cards}
    return Machine(
        cards=tuple(names.get(pci_key(card.pci_bus_id or "")) or card.description for card in cards)
        or ("virtual",) * virtual,
        parts=max((card.parts for card in cards), default=0),
        memory_mib=tuple(card.total_mib for card in cards),
        joined=", ".join(dict.fromkeys(cells)),
        driver=about.machine.driver,
        cuda=cuda,
        versions=about.build.versions,
        build=about.build.system_info,
        cpu=f"{about.machine.cores} cores, {about.machine.cpu}",
        commit=commit,
        date=time.strftime("%Y-%m-%d %H:%M:%S"),
        command=command,
    )
