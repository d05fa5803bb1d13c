"""What the screen opens on, and the real folders, cards and meters around it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from workbench.app.outside import DEMO_HINT, HINT, LayoutEntry, ModelEntry, Outside
from workbench.app.run import find_cards, spare_collector
from workbench.domain.card import Card
from workbench.domain.conversation import Conversation, Turn
from workbench.domain.duty import Duty
from workbench.domain.layout import Layout
from workbench.engines.engine import EngineError, Loaded
from workbench.engines.llama.client import inspect_models
from workbench.lab.cards import find_topology, inventory
from workbench.lab.demo import DEMO_LAYOUT
from workbench.lab.forecast import DraftForecasts, Forecasts
from workbench.lab.servers import BRIEF, known_servers, server_models
from workbench.lab.watch import Watch
from workbench.meters.sample import Snapshot
from workbench.store.documents import DocumentError
from workbench.store.journal import Journal, JournalError, JournalState
from workbench.store.models import DEMO, ModelError, find_models, resolve_model, usual_folders
from workbench.store.places import list_layouts, places, read_config


@dataclass(frozen=True)
class Start:
    """What to load, which conversation to go on with, where to look for models, what to say first.

    `troubles` are what went wrong on the way, for people.
    """

    layout: Layout | None = None
    conversation: Conversation = field(default_factory=Conversation)
    journal: Journal | None = None
    folders: Sequence[Path] = ()
    pick_model: bool = False
    hint: str = HINT
    troubles: Sequence[str] = ()


def decide(opening: Layout | Path | None, *, resume: bool, demo: bool) -> Start:
    """What to start on. Raises DocumentError (the configuration's)."""
    layout = opening if isinstance(opening, Layout) else None
    folders = [opening] if isinstance(opening, Path) else model_folders()
    troubles: list[str] = []
    if resume or opening is None:
        taken = Journal.take_latest(places().journals, troubles.append)
        if taken is not None:
            journal, state = taken
            conversation = said_so_far(state)
            return Start(layout or state.layout, conversation, journal, folders, troubles=[*troubles, *state.problems])
        if resume:
            troubles = ["; ".join([*troubles, "there is no conversation to bring back, so this is a new one"])]
    begun = Start(journal=_new_journal(troubles.append), folders=folders, troubles=troubles)
    if layout is not None:
        return replace(begun, layout=layout, hint=DEMO_HINT if demo else HINT)
    if isinstance(opening, Path) or find_models(folders):
        return replace(begun, pick_model=True)
    try:
        resolve_model(DEMO)
    except ModelError:
        return replace(begun, hint=no_model(folders))
    return replace(begun, layout=DEMO_LAYOUT, hint=DEMO_HINT)


def said_so_far(state: JournalState) -> Conversation:
    """The conversation of a journal; a reply that was cut off counts with what had arrived of it."""
    cut = state.unfinished
    if cut is None or not cut.partial:
        return state.conversation
    return state.conversation.upto(cut.index).with_turn(
        Turn(prompt=cut.prompt, reply=cut.partial, stop_reason="died")
    )


def no_model(folders: Sequence[Path]) -> str:
    """What is missing, and the one command that helps."""
    looked = ", ".join(str(folder) for folder in folders if folder.is_dir()) or "the usual folders"
    looked = looked.replace("{", "{{").replace("}", "}}")
    return (
        f"There is no model in {looked}.\n"
        "`workbench FOLDER` looks for models in a folder of yours; {layouts} lists the layouts."
    )


def model_folders() -> Sequence[Path]:
    """Where models are looked for. Raises DocumentError."""
    configured = read_config().model_folders
    return usual_folders() if configured is None else [Path(os.path.expanduser(folder)) for folder in configured]


def open_outside(start: Start, forecasts: Forecasts) -> Outside:
    """The real folders, cards, forecasts and meters."""
    meters: list[Watch] = []

    def start_meters(listener: Callable[[Snapshot], None], accounts: Callable[[Duty], None]) -> Watch:
        meters.append(Watch(listener, accounts))
        meters[0].start()
        return meters[0]

    def watch(loaded: Loaded | None, cards: Sequence[Card]) -> None:
        if meters:
            meters[0].watch(loaded, cards)

    return Outside(
        list_layouts=_layouts,
        find_models=lambda found: _models(start.folders, found),
        find_cards=lambda: find_cards(inventory),
        start_meters=start_meters,
        watch=watch,
        find_topology=find_topology,
        start_forecasts=lambda listener: DraftForecasts(forecasts, listener),
        when_ready=spare_collector,
        hint=start.hint,
        price=read_config().price,
    )


def _new_journal(tell: Callable[[str], None]) -> Journal | None:
    try:
        return Journal.create(places().journals)
    except JournalError as error:
        tell(str(error))
        return None


def _layouts() -> Sequence[LayoutEntry]:
    return [
        LayoutEntry(path, error=str(layout)) if isinstance(layout, DocumentError) else LayoutEntry(path, layout)
        for path, layout in list_layouts()
    ]


def _models(folders: Sequence[Path], found: Callable[[ModelEntry], None]) -> None:
    paths = [model.path for model in find_models(folders)]
    try:
        for inspected in inspect_models(paths, places().engine_log):
            found(ModelEntry(Path(inspected.path), inspected.model, inspected.error or ""))
    except EngineError as error:
        found(ModelEntry(Path("models"), error=error.reason))
    for server in known_servers([layout for _, layout in list_layouts() if isinstance(layout, Layout)]):
        try:
            for model in server_models(server, BRIEF):
                found(ModelEntry(Path(model.path), model, server=server))
        except EngineError as error:
            found(ModelEntry(Path(server.name), error=error.reason, server=server))
