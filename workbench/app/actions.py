"""What the keys that work everywhere do: open a dialog, ask the session."""

import os
import signal
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from textual.app import App

from workbench.app.chat_file import save_chat, suggested_name
from workbench.app.hearing import Hearing
from workbench.app.keymap import Keymap
from workbench.app.messages import DraftChanged
from workbench.app.outside import Drafts, Outside
from workbench.app.screens.accounts import AccountsScreen
from workbench.app.screens.context import ContextScreen
from workbench.app.screens.help import HelpScreen
from workbench.app.screens.layouts import LayoutsScreen
from workbench.app.screens.main import MainScreen
from workbench.app.screens.models import ModelsScreen
from workbench.app.screens.said import Said, SaidScreen
from workbench.app.screens.save_as import SaveAsScreen
from workbench.domain.layout import Context, Layout
from workbench.lab.rooms import Running
from workbench.lab.session import Session
from workbench.store.writing import free_name, path_of, save_named

if TYPE_CHECKING:
    from workbench.app.ab_desk import Desk


class Actions(App[None]):
    """The actions of the key map that are the app's own; whoever derives from it has the parts."""

    session: Session
    said: list[Said]
    outside: Outside
    hearing: Hearing
    drafts: Drafts | None = None
    keymap_in_use: Keymap
    _clear_asked = False

    @property
    def main(self) -> MainScreen:
        """The main screen, whatever lies over it."""
        screen = self.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen

    def say(self, message: str, *, problem: bool = False) -> None:
        """Show a message in the status line and keep it."""
        raise NotImplementedError

    def action_help(self) -> None:
        """Help for the focused pane."""
        self.push_screen(HelpScreen(self.main.where))

    def action_messages(self) -> None:
        """What was said so far."""
        self.push_screen(SaidScreen(self.said))

    # ── layouts ───────────────────────────────────────────────────────────────────────────
    def action_layouts(self) -> None:
        """Open a layout."""
        running = self.session.layout.name if self.session.layout else None
        self.push_screen(LayoutsScreen(self.outside.list_layouts, running), self._load)

    def action_models(self) -> None:
        """Open a model."""
        self.push_screen(ModelsScreen(self.outside.find_models), self._load)

    def action_take_suggestion(self) -> None:
        """Load what was suggested where memory ended."""
        if self.hearing.suggested is None:
            self.say("nothing is suggested now")
        else:
            self.main.status.dismiss()
            self._load(self.hearing.suggested)

    def action_context(self) -> None:
        """Draft other context settings, for the split that is being edited too."""
        layout, loaded = self.session.layout, self.session.loaded
        if layout is None or loaded is None:
            self.say("no model is loaded")
            return
        split = self.main.split.asked
        base = layout if split is None else msgspec.structs.replace(layout, split=split)

        def ask(draft: Layout) -> None:
            if self.drafts is not None and draft.served_by is None:  # what a server holds nobody foretells
                self.drafts.ask(draft, Running(layout, loaded))

        def done(context: Context | None) -> None:
            if context is None:
                self.post_message(DraftChanged(self.main.split.asked))
            else:
                self._load(msgspec.structs.replace(base, context=context))

        n_ctx_train = loaded.model.n_ctx_train
        self.push_screen(ContextScreen(base, layout, loaded.n_ctx, n_ctx_train=n_ctx_train, ask=ask), done)

    def _load(self, layout: Layout | None) -> None:
        if layout is not None:
            self.main.status.dismiss()
            self.session.load(layout)

    def action_save_as(self) -> None:
        """Save what runs as a layout."""
        if self.session.layout is None:
            self.say("nothing is loaded that could be saved")
        else:
            self._save(self.session.layout)

    def _save(self, layout: Layout) -> None:
        def saved(path: Path | None) -> None:
            if path is not None:
                self.say(f"saved: {path}")

        save = partial(save_named, layout)
        self.push_screen(SaveAsScreen("Save as a layout", free_name(layout.name), save, path_of), saved)

    # ── A/B ───────────────────────────────────────────────────────────────────────────────
    def action_compare(self) -> None:
        """Measure two layouts against each other."""
        if self.hearing.loads:
            self.say("A layout loads; once it is there it can be measured.")
            return
        self._desk().compare()

    def action_runs(self) -> None:
        """Past runs."""
        self._desk().runs()

    def _desk(self) -> "Desk":
        from workbench.app.ab_desk import Desk  # brings plots along, which most sessions never draw

        return Desk(self, self.session, self.outside)

    # ── the history ───────────────────────────────────────────────────────────────────────
    def action_go_back(self) -> None:
        """The layout before."""
        self.main.status.dismiss()
        self.session.go_back()

    def action_go_forward(self) -> None:
        """The layout after this one."""
        self.main.status.dismiss()
        self.session.go_forward()

    def action_go_to_line(self) -> None:
        """The chosen line of the history."""
        history, chosen = self.session.history, self.main.change.chosen
        if not history:
            self.say("nothing was loaded yet")
        elif history[chosen].layout == self.session.layout and not self.hearing.busy:
            self.say(f"{history[chosen].label} serves already")
        else:
            self.main.status.dismiss()
            self.session.go_to(chosen)

    def action_save_line(self) -> None:
        """Save the chosen line of the history as a layout."""
        history = self.session.history
        if history:
            self._save(history[self.main.change.chosen].layout)

    def action_accounts(self) -> None:
        """Forecast against measured, of the chosen line of the history."""
        change = self.main.change
        accounts = change.accounts.get(change.chosen, ())
        if accounts:
            self.push_screen(AccountsScreen(change.history[change.chosen].label, accounts))
        else:
            self.say("there is no forecast to compare this load with; one is made while a split is edited")

    # ── the conversation ──────────────────────────────────────────────────────────────────
    def action_save_chat(self) -> None:
        """Save the chat to a file."""
        conversation = self.session.conversation
        if not conversation.turns:
            self.say("nothing was said yet that could be saved")
            return

        def saved(path: Path | None) -> None:
            if path is not None:
                self.say(f"saved: {path}")

        title = f"Chat with {self.session.loaded.model.name}" if self.session.loaded else "Chat"
        save = partial(save_chat, conversation, title)
        self.push_screen(SaveAsScreen("Save the chat: .md or .jsonl", suggested_name(datetime.now()), save), saved)

    def action_suspend_process(self) -> None:
        """Back to the shell for a while, with all that was started along with this."""
        if self._driver is not None and self._driver.can_suspend:
            os.killpg(os.getpgrp(), signal.SIGTSTP)
        else:
            self.say("there is no shell here to go back to")

    def action_new_chat(self) -> None:
        """Clear the conversation, at the second press."""
        turns = len(self.session.conversation.turns)
        if turns and not self._clear_asked:
            self._clear_asked = True
            self.set_timer(4, self._forget_clear)
            again = self.keymap_in_use.words("{new_chat} again clears ")
            self.say(f"{again}{turns} turn{'s' if turns > 1 else ''} and starts a new chat")
        elif turns:
            self._clear_asked = False
            self.main.status.dismiss()
            self.session.clear()

    def _forget_clear(self) -> None:
        self._clear_asked = False

    def action_escape(self) -> None:
        """Stop what runs; else close the messages, leave editing, or go to the prompt."""
        main = self.main
        prompt = main.chat.prompt
        if self.hearing.busy:
            self.session.cancel()
        elif self.hearing.dismiss():
            return
        elif prompt.has_focus and prompt.editing is not None:
            prompt.fill("", None)
        else:
            main.go_to(prompt)
