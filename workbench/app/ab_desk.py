"""From F3 and F5 to a run and back: which screen follows which, and the session's return."""

from collections.abc import Callable

from textual.app import App

from workbench.app.outside import Outside
from workbench.app.screens.ab_run import ABScreen, Plan
from workbench.app.screens.ab_setup import Known, SetupScreen
from workbench.app.screens.run_detail import Left
from workbench.app.screens.runs import Opened, RunsScreen
from workbench.domain.layout import Layout
from workbench.domain.run import RunHeader
from workbench.lab.session import Session
from workbench.store.places import list_prompt_sets
from workbench.store.runs import list_runs


class Desk:
    """Opens the screens of A/Bs and runs over an app."""

    def __init__(self, app: App[None], session: Session, outside: Outside) -> None:
        self._app = app
        self._session = session
        self._outside = outside

    def compare(self, again: RunHeader | None = None) -> None:
        """Choose what to measure, the running split and the one before it preset; or what a run measured."""
        session = self._session
        history = session.history
        now = next((line for line in history if line.layout == session.layout), None)
        probe = next((line.probe for line in (now, *reversed(history)) if line is not None and line.probe), None)
        known = Known(
            running=session.layout,
            before=session.layout_before if session.layout_before != session.layout else None,
            load_s=session.loaded.load_s if session.loaded is not None else 0.0,
            probe=probe,
            again=again,
            sets=list_prompt_sets,
            layouts=self._outside.list_layouts,
        )
        self._app.push_screen(SetupScreen(known), self._start)

    def runs(self) -> None:
        """Past runs."""
        self._app.push_screen(RunsScreen(list_runs), self._open)

    def _start(self, plan: Plan | None) -> None:
        if plan is not None:
            self._show(ABScreen(self._outside.bench, self._session, plan=plan), lambda: None)

    def _open(self, opened: Opened | None) -> None:
        if opened is None:
            return
        past = opened.past
        if opened.again:
            self.compare(past.header)
        else:
            screen = ABScreen(
                self._outside.bench, self._session, run=past.run, outcome=past.outcome, folder=past.folder
            )
            self._show(screen, self.runs)

    def _show(self, screen: ABScreen, then: Callable[[], None]) -> None:
        def left(what: Left) -> None:
            if screen.parked:
                self._session.unpark()
            if isinstance(what, Layout):
                self._session.load(what)
            elif isinstance(what, RunHeader):
                self.compare(what)
            elif not screen.parked:
                then()

        self._app.push_screen(screen, left)
