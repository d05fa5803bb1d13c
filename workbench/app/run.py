"""Opens the screen on real engines, cards and folders. Imports Textual only when asked to run."""

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.app.abilities import mouse, textual_defaults
from workbench.domain.layout import Layout
from workbench.engines.engine import EngineError
from workbench.lab.cards import Inventory
from workbench.store.places import places

if TYPE_CHECKING:
    from workbench.app.app import WorkbenchApp


def set_defaults() -> None:
    """Set what Textual reads at import, where the user has not."""
    for name, value in textual_defaults(os.environ).items():
        os.environ.setdefault(name, value)


def spare_collector() -> None:
    """Leave what stands now out of later garbage collections.

    Each full one stops the screen for as long as it takes to look at everything: 40 to 100 ms
    while a reply streams, most of it for what Textual made at the start and keeps to the end.
    """
    gc.collect()
    gc.freeze()


def run_app(opening: Layout | Path | None = None, *, resume: bool = False, demo: bool = False) -> int:
    """Open the screen and return the exit code. Whatever the app fails of is raised.

    `opening` is a layout to load or a folder of models to choose from. Without it the last
    session is taken up, else models are offered, else the demonstration is. `resume` brings
    the last conversation back, to whatever is opened. Raises DocumentError.
    """
    set_defaults()
    from workbench.app.app import WorkbenchApp
    from workbench.app.memory import Memory
    from workbench.app.opening import decide, open_outside
    from workbench.app.user_keys import own_keys
    from workbench.lab.kit import RealKit
    from workbench.lab.session import Session

    start = decide(opening, resume=resume, demo=demo)
    keymap, wrong_keys = own_keys()
    memory = Memory(places().screen_state)
    kit = RealKit()
    app = WorkbenchApp(
        lambda listener: Session(kit, listener, journal=start.journal),
        open_outside(start, kit.forecasts),
        first=start.layout,
        conversation=start.conversation,
        pick_model=start.pick_model,
        keymap=keymap,
        memory=memory,
        troubles=[said for said in (*start.troubles, wrong_keys, memory.trouble) if said],
    )
    try:
        return show(app)
    finally:
        kit.close()


def show(app: "WorkbenchApp") -> int:
    """Run the app in the terminal to its end, and end its session; the exit code. Raises whatever the app fails of."""
    from workbench.app.terminal import take_terminal

    take_terminal(app)
    threading.excepthook = lambda args: app.fail(args.exc_value)
    try:
        app.run(mouse=mouse(os.environ))
    finally:
        threading.excepthook = threading.__excepthook__
        app.session.close()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0


def find_cards(inventory: Callable[[], Inventory]) -> Inventory:
    """The machine's cards and what to do if there is no GPU; what went wrong if they cannot be listed."""
    try:
        return inventory()
    except EngineError as error:
        return Inventory(cards=(), lack=f"The cards cannot be listed: {error.reason}", helps="workbench doctor")
