"""`workbench demo` without a terminal."""

import sys

import click

from workbench.cli.run import Printer
from workbench.cli.text import rate, table
from workbench.lab.demo import Demonstration, demonstrate
from workbench.lab.events import Measurement
from workbench.lab.kit import RealKit


def print_demo() -> None:
    """Demonstrate on stdout."""
    printer = Printer(quiet=False, out=sys.stdout, err=sys.stderr)
    kit = RealKit()
    try:
        done = demonstrate(kit, printer, lambda step: click.echo(f"\n{step}"))
    finally:
        kit.close()
    click.echo(f"\n\n{comparison(done)}\none load each: no verdict")


def comparison(done: Demonstration) -> str:
    """Split, tok/s and MiB per card, before and after."""
    names = [card.name for card in done.before.cards]
    return table([("split", "tok/s", *(f"{name} MiB" for name in names)), _row(done.before), _row(done.after)])


def _row(measurement: Measurement) -> tuple[str, ...]:
    probe = measurement.probe
    return (
        measurement.label,
        rate(None if probe is None else probe.decode_tok_s),
        *(f"{card.total_mib:.1f}" for card in measurement.cards),
    )
