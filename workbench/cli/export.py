"""`workbench export`: a layout as others run it."""

import os

import click
import msgspec

from workbench.cli.failures import Code, CommandFailed, say
from workbench.domain.card import pci_key
from workbench.domain.export import CannotExport, ExportForm, export
from workbench.domain.layout import Layout
from workbench.domain.split import Virtual
from workbench.lab.kit import RealKit
from workbench.lab.plan import RPC_PREFIX, cores, plan_load
from workbench.store.documents import read_layout
from workbench.store.models import ModelError, resolve_model
from workbench.store.places import find_layout


def print_export(name: str, form: ExportForm) -> None:
    """Print the layout in another form; what to know about it goes to stderr. Raises CommandFailed."""
    path = find_layout(name)
    layout = read_layout(path)
    try:
        model = layout.model if layout.served_by is not None else str(resolve_model(layout.model).absolute())
    except ModelError as error:
        model = _elsewhere(layout, error)
        say(f"{error.message}; it is taken to be where it is to run")
    try:
        exported = export(_with_names(layout), form, model, cores())
    except CannotExport as error:
        raise CommandFailed(str(error), Code.WRONG) from None
    click.echo(exported.text, nl=False)
    for note in exported.notes:
        say(note)


def _elsewhere(layout: Layout, error: ModelError) -> str:
    """A plain path of another machine; a glob or a bundled model means a file that must be here."""
    if any(char in layout.model for char in "*?[") or layout.model.startswith("demo:"):
        raise error
    return os.path.expanduser(layout.model)


def _with_names(layout: Layout) -> Layout:
    """The same with llama.cpp's names for cards that are given by bus id or UUID, which only this machine knows."""
    cards = layout.split.cards
    if layout.served_by is not None or cards is None or isinstance(cards, Virtual):
        return layout
    if not any(pci_key(card) or card.upper().startswith("GPU-") for card in cards):
        return layout
    kit = RealKit(spare=False)
    planned = plan_load(layout, "", lambda: kit.cards(layout)).cards
    names = tuple(f"{RPC_PREFIX}{card.endpoint}" if card.endpoint else card.name for card in planned)
    return msgspec.structs.replace(layout, split=msgspec.structs.replace(layout.split, cards=names))

