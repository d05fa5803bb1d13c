"""Every key and what it does: bindings, footer, help, command palette and the user's own keys all start here."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from textual.app import App
from textual.binding import Binding

Where = Literal[
    "app", "anywhere", "prompt", "chat", "cards", "split", "change", "setup", "result", "runs", "context", "card",
    "topology", "saving", "dialog",
]  # fmt: skip

ALONE: tuple[Where, ...] = ("setup", "result", "runs", "context", "card", "topology", "saving", "dialog")
"""Screens of their own, where the main screen's keys do nothing; those of `app` work there too."""


@dataclass(frozen=True)
class Key:
    """One action. `footer` is its word in the footer, "" keeps it out.

    One that is `offered` is in the footer only while there is something to take. `keys` may be
    several, with commas between; one that is `fixed` the user cannot change.
    """

    keys: str
    action: str
    what: str
    where: Where = "anywhere"
    footer: str = ""
    offered: bool = False
    fixed: bool = False
    called: str = ""

    @property
    def name(self) -> str:
        """What the user's key map calls it: `compare`, `split.more`."""
        said = self.called or self.action.removeprefix("app.").partition("(")[0]
        return said if self.where in ("app", "anywhere") else f"{self.where}.{said}"


KEYS: tuple[Key, ...] = (
    Key("f1", "app.help", "help for this pane, and all keys", footer="help"),
    Key("f2", "app.layouts", "open a layout", footer="layouts"),
    Key("f3", "app.compare", "A/B: measure two layouts against each other", footer="A/B"),
    Key("f4", "app.models", "open a model", footer="models"),
    Key("f5", "app.runs", "past runs: open, compare, export", footer="runs"),
    Key("f6", "split", "go to the split editor, and back to the prompt", footer="split"),
    Key("tab", "next_pane", "the next pane", footer="panes"),
    Key("f7", "app.go_back", "go back to the layout before", footer="back"),
    Key("ctrl+g", "app.go_forward", "forward again, after going back"),
    Key("ctrl+l", "history", "the splits of this session: go to one, save one", footer="history"),
    Key("f8", "app.messages", "what was said so far"),
    Key("f9", "app.take_suggestion", "load what was suggested", footer="load what fits", offered=True),
    Key("ctrl+s", "app.save_as", "save this as a layout", footer="save"),
    Key("ctrl+o", "app.save_chat", "save the chat to a file, as Markdown or JSON lines"),
    Key("ctrl+n", "app.new_chat", "a new chat: clear the conversation"),
    Key("ctrl+t", "thinking", "show or fold the thinking of the last reply"),
    Key("shift+tab", "previous_pane", "the pane before"),
    Key("escape", "app.escape", "stop what runs; otherwise back to the prompt", fixed=True),
    Key("f10", "app.change_theme", "change the colours: light or dark, the terminal's own or others"),
    Key("ctrl+z", "app.suspend_process", "go back to the shell, where `fg` returns; in the prompt undo"),
    Key("ctrl+q", "app.quit", "quit", "app", footer="quit"),
    Key("ctrl+p", "app.command_palette", "search everything that can be done", "app", footer="commands"),
    Key("ctrl+c", "app.help_quit", "in the prompt copy; elsewhere say how to quit", "app", fixed=True),
    Key("enter", "submit", "send the prompt", where="prompt", footer="send"),
    Key("ctrl+j", "newline", "a new line in the prompt", where="prompt"),
    Key("up", "older", "in the first line: earlier prompts", where="prompt"),
    Key("down", "newer", "in the last line: later prompts", where="prompt"),
    Key("ctrl+r", "resend", "edit and send the last prompt again, in its old place", where="prompt"),
    Key("left", "select_turn(-1)", "the turn before", where="chat", footer="turn", called="previous"),
    Key("right", "select_turn(1)", "the next turn", where="chat", called="next"),
    Key("e", "edit_turn", "edit this turn's prompt and send it again", where="chat", footer="edit"),
    Key("enter", "toggle_thinking", "show or fold this turn's thinking", where="chat", footer="thinking"),
    Key("y", "copy_turn", "copy this reply", where="chat", footer="copy"),
    Key("w", "write_turn", "write this reply to a file", where="chat", footer="write"),
    Key("up", "choose(-1)", "the card above", where="split", called="up"),
    Key("down", "choose(1)", "the card below", where="split", called="down"),
    Key("right", "move(1)", "one layer more on this card", where="split", footer="more", called="more"),
    Key("left", "move(-1)", "one layer fewer on this card", where="split", footer="fewer", called="fewer"),
    Key("right_square_bracket", "move(5)", "five more", where="split", footer="5 more", called="more_5"),
    Key("left_square_bracket", "move(-5)", "five fewer", where="split", called="fewer_5"),
    Key("m", "mode", "the next split mode", where="split", footer="mode"),
    Key("equals_sign", "even", "even out", where="split", footer="even"),
    Key("f", "by_free", "by free memory", where="split"),
    Key("v", "by_speed", "by measured speed, the fastest card first", where="split"),
    Key("g", "gpu_layers", "set how many layers are on cards", where="split"),
    *(Key(str(n), f"digit({n})", f"make card {n} the main card (mode none)", "split", fixed=True, called=f"card_{n}")
      for n in range(10)),
    Key("enter", "apply", "apply the draft", where="split", footer="apply"),
    Key("escape", "revert", "back to what runs; with no draft: stop what runs", "split", footer="revert", fixed=True),
    Key("c", "app.context", "context: n_ctx, KV type, flash attention", where="split", footer="context"),
    Key("up", "choose(-1)", "the line above", where="change", called="up"),
    Key("down", "choose(1)", "the line below", where="change", called="down"),
    Key("enter", "app.go_to_line", "load this line's layout", where="change", footer="go to it"),
    Key("s", "app.save_line", "save this line as a layout", where="change", footer="save it"),
    Key("d", "app.accounts", "forecast against measured", where="change", footer="forecast | measured"),
    Key("enter", "detail", "a card in detail, with ten minutes of history", where="cards", footer="detail"),
    Key("t", "topology", "how the cards are joined", where="cards", footer="topology"),
    Key("l", "lines", "one line a card, or two", where="cards", footer="lines"),
    Key("o", "meters", "turn the meters off, or on again", where="cards", footer="meters off"),
    Key("up", "scroll_up", "scroll up", where="cards"),
    Key("down", "scroll_down", "scroll down", where="cards"),
    Key("up", "choose(-1)", "the line above", where="setup", called="up"),
    Key("down", "choose(1)", "the line below", where="setup", called="down"),
    Key("left", "change(-1)", "the value before", where="setup", called="previous"),
    Key("right", "change(1)", "the next value", where="setup", footer="change", called="next"),
    Key("l", "list", "all values of this line", where="setup", footer="list"),
    Key("enter", "start", "start", where="setup", footer="start"),
    Key("escape", "close", "close", where="setup", footer="close", fixed=True),
    Key("left", "view(-1)", "the view before", where="result", called="previous_view"),
    Key("right", "view(1)", "the next view: plot, blocks, outputs, details", "result", "view", called="next_view"),
    Key("m", "metric", "decode, prefill or first token", where="result", footer="metric"),
    Key("b", "more_blocks", "add the blocks that would settle it", where="result", footer="more blocks"),
    Key("g", "go_on", "go on with a run that was cut short", where="result", footer="go on"),
    Key("u", "use", "load the faster layout", where="result", footer="use it"),
    Key("r", "again", "measure again", where="result", footer="again"),
    Key("x", "export", "write a report in Markdown", where="result", footer="export"),
    Key("escape", "leave", "stop, keeping what is there; then leave", where="result", footer="leave", fixed=True),
    Key("f1", "help", "help", where="result", footer="help"),
    Key("right_square_bracket", "prompt(1)", "outputs: the next prompt", "result", "prompt", called="next_prompt"),
    Key("left_square_bracket", "prompt(-1)", "outputs: the prompt before", where="result", called="previous_prompt"),
    Key("up", "scroll(-1)", "scroll up", where="result", called="scroll_up"),
    Key("down", "scroll(1)", "scroll down", where="result", footer="scroll", called="scroll_down"),
    Key("enter", "open", "open a run", where="runs", footer="open"),
    Key("c", "mark", "compare: choose one, then the other", where="runs", footer="compare"),
    Key("r", "again", "measure again", where="runs", footer="again"),
    Key("x", "export", "write a report in Markdown", where="runs", footer="export"),
    Key("escape", "close", "close", where="runs", footer="close", fixed=True),
    Key("up", "choose(-1)", "the setting above", "context", called="up"),
    Key("down", "choose(1)", "the setting below", "context", called="down"),
    Key("left", "turn(-1)", "less, or the value before", "context", called="less"),
    Key("right", "turn(1)", "more, or the next value", "context", called="more"),
    Key("m", "most", "the largest n_ctx that fits", "context"),
    Key("enter", "apply", "load it", "context"),
    Key("left", "other(-1)", "the card before", "card", called="previous"),
    Key("right", "other(1)", "the next card", "card", called="next"),
    Key("q", "close", "close", "card"),
    Key("t,q", "close", "close", "topology"),
    Key("ctrl+o", "overwrite", "overwrite the file of that name", "saving"),
    Key("escape", "close", "close", "dialog", fixed=True),
    Key("f1", "help", "help", "dialog"),
)

DEFAULTS = {key.name: key.keys for key in KEYS}

_SHOWN = {
    "right_square_bracket": "]", "left_square_bracket": "[", "equals_sign": "=", "escape": "Esc", "enter": "Enter",
    "tab": "Tab", "shift+tab": "shift+Tab", "up": "↑", "down": "↓", "left": "←", "right": "→",
}  # fmt: skip


def shown(key: Key) -> str:
    """The first of the keys as people write it: `F1`, `^s`, `]`."""
    first = key.keys.partition(",")[0]
    name = _SHOWN.get(first, first)
    if name.startswith("ctrl+"):
        return "^" + name.removeprefix("ctrl+")
    return name.upper() if name[0] == "f" and name[1:].isdigit() else name


def bindings(where: Where) -> list[Binding | tuple[str, str] | tuple[str, str, str]]:
    """The bindings of one pane, of a screen of its own, or of the app."""
    return [
        Binding(key.keys, key.action, key.what, show=False, priority=where == "app" and not key.fixed, id=key.name)
        for key in KEYS
        if key.where == where
    ]


class Keymap:
    """The registry as it holds now: with the user's `own` keys, by an action's name, for the defaults."""

    def __init__(self, own: Mapping[str, str] | None = None) -> None:
        self.own = dict(own or {})
        self.keys = tuple(replace(key, keys=self.own.get(key.name, key.keys)) for key in KEYS)
        self._words = {key.name.replace(".", "_"): shown(key) for key in self.keys}

    def of(self, name: str) -> tuple[str, ...]:
        """The keys of an action, as Textual names them."""
        return tuple(self.own.get(name, DEFAULTS[name]).split(","))

    def key(self, name: str) -> str:
        """The first key of an action, as people write it."""
        return self._words[name.replace(".", "_")]

    def words(self, text: str) -> str:
        """A text in which `{compare}` or `{split_more}` stands for the key of that action."""
        return text.format_map(self._words)

    def footer(self, where: Where, *, offered: bool = False) -> tuple[Key, ...]:
        """What the footer names while this pane has the focus: what is offered, its own keys, then the app's."""
        named = [key for key in self.keys if key.footer]
        if where in ALONE:
            return tuple(key for key in named if key.where == where)
        first = tuple(key for key in named if key.offered and offered)
        own = tuple(key for key in named if key.where == where and not key.offered)
        rest = tuple(key for key in named if key.where in ("anywhere", "app") and not key.offered)
        return first + own + rest

    def help(self, where: Where) -> list[tuple[str, str]]:
        """(keys, what they do) of one pane; the digits are one line."""
        lines: list[tuple[str, str]] = []
        for key in self.keys:
            if key.where != where or key.keys in set("123456789"):
                continue
            what = "the main card (mode none)" if key.keys == "0" else key.what
            lines.append(("0-9" if key.keys == "0" else shown(key), what))
        return lines


PLAIN = Keymap()
"""The registry as it is without a user's keys."""


def keymap_of(app: App[Any]) -> Keymap:
    """The key map that an app uses."""
    found = getattr(app, "keymap_in_use", PLAIN)
    assert isinstance(found, Keymap)
    return found
