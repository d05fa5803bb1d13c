"""`workbench cards`."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from functools import partial
from queue import Full, Queue
from typing import Any

import click
import msgspec
from rich.cells import cell_len

from workbench.cli.failures import say
from workbench.cli.text import UNKNOWN, in_columns, json_text, table
from workbench.domain.card import Card, format_mib
from workbench.domain.owners import Holder, divide
from workbench.domain.text import flat
from workbench.domain.topology import Topology
from workbench.lab.cards import find_topology, inventory, watching
from workbench.meters.sample import CardSample, Snapshot
from workbench.meters.sampler import Sampler

UNREAD = 1000
"""So many samples wait for a reader that stands still."""
SCREENFUL = 24
"""After so many lines the head is told again."""
HEAD = ("time", "card", "used", "total", "use", "power", "clock", "heat", "why slower")
WIDTHS = (12, 6, 9, 9, 4, 6, 8, 6, 0)
"""Cells of each column at first."""


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
    return json_text(rows)


def cards_table(cards: Sequence[Card]) -> str:
    """One line a card."""
    rows: list[tuple[str, ...]] = [("card", "smi", "description", "pci bus id", "total", "free", "uuid")]
    for card in cards:
        smi = None if card.smi_index is None else str(card.smi_index)
        total, free = (None if size is None else format_mib(size) for size in (card.total_mib, card.free_mib))
        cells = (card.name, smi, card.description, card.pci_bus_id, total, free, card.uuid)
        rows.append(tuple(cell or UNKNOWN for cell in cells))
    return table(rows)


def watch_cards(seconds: float, *, as_json: bool) -> None:
    """Print a sample every so many seconds, until Ctrl-C; what is amiss goes to stderr."""
    found = inventory()
    if found.advice:
        say(found.advice)
    samples: Queue[Snapshot] = Queue(UNREAD)
    with closing(Sampler(partial(keep, samples), interval_s=seconds, energy=True)) as sampler:
        sampler.watch(watching(found.cards))
        sampler.start()
        for text in told(endless(samples), found.cards, as_json=as_json):
            click.echo(text)


def keep(samples: Queue[Snapshot], snapshot: Snapshot) -> None:
    """Keep a sample until it is printed; nothing of what comes while nobody reads and there is no room."""
    with suppress(Full):
        samples.put_nowait(snapshot)


def endless(samples: Queue[Snapshot]) -> Iterator[Snapshot]:
    """Each sample when it comes."""
    while True:
        yield samples.get()


def told(samples: Iterable[Snapshot], cards: Sequence[Card], *, as_json: bool) -> Iterator[str]:
    """Each sample as one JSON object on a line, or as a line a card below a head for a screenful of them."""
    known = {card.name: card for card in cards}
    columns, names, lines = Columns(), None, 0
    for snapshot in samples:
        age = timedelta(seconds=time.monotonic() - snapshot.at)  # what was printed may have waited for its reader
        at = datetime.now().astimezone() - age
        if as_json:
            objects = [sample_object(sample, known.get(sample.name)) for sample in snapshot.cards]
            whole = {"at": at.isoformat(timespec="milliseconds"), "cards": objects}
            yield json_text(whole | {"host": snapshot.host, "missing": snapshot.missing}, one_line=True)
        else:
            rows, now = sample_rows(at, snapshot), [sample.name for sample in snapshot.cards]
            if now != names or lines + len(rows) > SCREENFUL:
                yield columns.line(HEAD)
                names, lines = now, 1
            lines += len(rows)
            yield "\n".join(map(columns.line, rows))


def sample_object(sample: CardSample, card: Card | None) -> dict[str, Any]:
    """All figures of a card under the names of `CardSample`; its `owners` add up to `used_mib`."""
    figures: dict[str, Any] = msgspec.to_builtins(sample)
    holders = [Holder(pid=one.pid, name=one.name, mib=one.mib) for one in sample.processes or ()]
    owners = None if sample.used_mib is None else divide(sample.used_mib, None, holders)
    for ours in ("processes", "ours_mib", "energy_at"):
        del figures[ours]
    identity = {} if card is None else {"smi_index": card.smi_index, "uuid": card.uuid, "parts": card.parts}
    return {"name": figures.pop("name"), **identity, **figures, "free_mib": sample.free_mib, "owners": owners}


class Columns:
    """Lines in columns that are as wide as the widest that was in them; they only grow."""

    def __init__(self) -> None:
        self._widths = list(WIDTHS)

    def line(self, cells: Sequence[str]) -> str:
        """One line; two spaces between columns."""
        cells = [flat(cell) for cell in cells]
        self._widths = [max(width, cell_len(cell)) for width, cell in zip(self._widths, cells, strict=True)]
        return in_columns(cells, self._widths)


def sample_rows(at: datetime, snapshot: Snapshot) -> list[tuple[str, ...]]:
    """One line a card and one of the host, by HEAD; the time stands in the first."""
    rows: list[tuple[str, ...]] = []
    for sample in snapshot.cards:
        state = "lost" if sample.lost else "asleep" if sample.asleep else ", ".join(sample.throttle or ())
        rows.append(
            (
                "" if rows else f"{at:%H:%M:%S}",
                sample.name,
                *(UNKNOWN if size is None else format_mib(size) for size in (sample.used_mib, sample.total_mib)),
                _figure(sample.utilisation, "%"),
                _figure(sample.power_w, " W"),
                _figure(sample.sm_clock_mhz, " MHz"),
                _figure(sample.temperature_c, " °C"),
                state,
            )
        )
    host = snapshot.host
    used = format_mib(host.total_mib - host.available_mib)
    figures = ("host", used, format_mib(host.total_mib), _figure(host.cpu_percent, "%"), "", "", "", "")
    return [*rows, ("" if rows else f"{at:%H:%M:%S}", *figures)]


def print_topology(*, as_json: bool) -> None:
    """Print how all pairs of cards are joined; what is amiss goes to stderr."""
    found = inventory()
    topology = find_topology(found.cards)
    click.echo(topology_json(topology) if as_json else topology_table(topology))
    if found.advice:
        say(found.advice)


def topology_json(topology: Topology) -> str:
    """An array of pairs: how they are joined, whether peer to peer is allowed, and why not."""
    pairs = [
        {"first": name, "second": topology.names[column], **msgspec.to_builtins(cell)}
        for row, name in enumerate(topology.names)
        for column, cell in enumerate(topology.cells[row])
        if cell is not None and column > row
    ]
    return json_text(pairs)


def topology_table(topology: Topology) -> str:
    """The matrix, what its words mean, and why pairs are refused."""
    rows: list[tuple[str, ...]] = [("", *topology.names)]
    for name, cells in zip(topology.names, topology.cells, strict=True):
        rows.append((name, *("·" if cell is None else cell.text() for cell in cells)))
    lines = [table(rows), *(f"{joint}: {meaning}" for joint, meaning in topology.legend())]
    return "\n".join([*lines, *(f"✗ {refusal}" for refusal in topology.refusals())])


def _figure(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f}{unit}"
