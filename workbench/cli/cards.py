"""`workbench cards`."""

from collections.abc import Sequence

import click
import msgspec

from workbench.cli.failures import say
from workbench.cli.text import UNKNOWN, table
from workbench.domain.card import Card, format_mib
from workbench.lab.cards import inventory


def print_cards(*, as_json: bool) -> None:
    """Print the cards; what is amiss goes to stderr."""
    found = inventory()
    click.echo(cards_json(found.cards) if as_json else cards_table(found.cards))
    if found.advice:
        say(found.advice)


def cards_json(cards: Sequence[Card]) -> str:
    """An array of objects; sizes in MiB, null where unknown."""
    fields = ("name", "description", "kind", "smi_index", "pci_bus_id", "uuid", "total_mib", "free_mib")
    rows = [{field: getattr(card, field) for field in fields} for card in cards]
    return msgspec.json.format(msgspec.json.encode(rows), indent=2).decode()


def cards_table(cards: Sequence[Card]) -> str:
    """One line a card."""
    rows: list[tuple[str, ...]] = [("card", "smi", "description", "pci bus id", "total", "free", "uuid")]
    for card in cards:
        smi = None if card.smi_index is None else str(card.smi_index)
        total, free = (None if size is None else format_mib(size) for size in (card.total_mib, card.free_mib))
        cells = (card.name, smi, card.description, card.pci_bus_id, total, free, card.uuid)
        rows.append(tuple(cell or UNKNOWN for cell in cells))
    return table(rows)
