"""The command palette: every action of the key map that can be taken on the screen below it."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.app import SystemCommand
from textual.screen import Screen

from workbench.app.keymap import ALONE, Key, Keymap, Where, shown
from workbench.app.screens.help import ABOUT
from workbench.app.screens.main import MainScreen

if TYPE_CHECKING:
    from workbench.app.actions import Actions

NOT_OF_A_PANE: tuple[Where, ...] = ("app", "anywhere")


def commands(app: "Actions", keymap: Keymap, screen: Screen[Any]) -> Iterable[SystemCommand]:
    """One command an action, with its key; those of a pane say which."""
    here = None if isinstance(screen, MainScreen) else getattr(screen, "where", "dialog")
    for key in keymap.keys:
        if key.action == "app.command_palette":
            continue
        if key.where == "app" or (key.where not in ALONE if here is None else key.where in (here, "dialog")):
            run = partial(_run, app, key, screen)
            yield SystemCommand(_title(key), shown(key), lambda run=run: app.call_later(run))


def _title(key: Key) -> str:
    return key.what if key.where in (*NOT_OF_A_PANE, *ALONE) else f"{ABOUT[key.where][0]}: {key.what}"


async def _run(app: "Actions", key: Key, screen: Screen[Any]) -> None:
    if key.where in NOT_OF_A_PANE or not isinstance(screen, MainScreen):
        await app.run_action(key.action, screen)
        return
    pane = screen.pane(key.where)
    screen.go_to(pane)
    await app.run_action(key.action, pane)
