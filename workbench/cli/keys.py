"""`workbench keys`: every action of the screen, its keys, and what a key map calls it."""

import click
import msgspec

from workbench.app.keymap import shown
from workbench.app.screens.help import ABOUT
from workbench.app.user_keys import read_keymap
from workbench.cli.text import table
from workbench.store.places import places


def print_keys(*, as_json: bool) -> None:
    """Print them, with the user's own in place. Raises DocumentError."""
    keys = read_keymap(places().keymap).keys
    if as_json:
        rows = [
            {"name": key.name, "keys": key.keys.split(","), "where": key.where, "what": key.what, "fixed": key.fixed}
            for key in keys
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return
    lines = [(key.name, shown(key), ABOUT[key.where][0], key.what) for key in keys]
    click.echo(table([("action", "key", "where", "what"), *lines]))
