"""Every key and what it does: bindings, footer, help and command palette all come from here."""

from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding

Where = Literal["anywhere", "prompt", "chat", "cards", "split", "change", "setup", "result", "runs"]

ALONE: tuple[Where, ...] = ("setup", "result", "runs")
"""Screens of their own, where the main screen's keys do nothing."""


@dataclass(frozen=True)
class Key:
    """One action. `footer` is its word in the footer, "" keeps it out; `palette` lists it there.

    One that is `offered` is in the footer only while there is something to take.
    """

    keys: str
    action: str
    what: str
    where: Where = "anywhere"
    footer: str = ""
    palette: bool = False
    offered: bool = False


KEYS: tuple[Key, ...] = (
    Key("f1", "app.help", "help for this pane, and all keys", footer="help", palette=True),
    Key("f2", "app.layouts", "open a layout", footer="layouts", palette=True),
    Key("f3", "app.compare", "A/B: measure two layouts against each other", footer="A/B", palette=True),
    Key("f4", "app.models", "open a model", footer="models", palette=True),
    Key("f5", "app.runs", "past runs: open, compare, export", footer="runs", palette=True),
    Key("f6", "split", "go to the split editor, and back to the prompt", footer="split"),
    Key("tab", "next_pane", "the next pane", footer="panes"),
    Key("f7", "app.go_back", "go back to the layout before", footer="back", palette=True),
    Key("ctrl+g", "app.go_forward", "forward again, after going back", palette=True),
    Key("ctrl+l", "history", "the splits of this session: go to one, save one", footer="history", palette=True),
    Key("f8", "app.messages", "what was said so far", palette=True),
    Key("f9", "app.take_suggestion", "load what was suggested", footer="load what fits", palette=True, offered=True),
    Key("ctrl+s", "app.save_as", "save this as a layout", footer="save", palette=True),
    Key("ctrl+n", "app.new_chat", "a new chat: clear the conversation", palette=True),
    Key("ctrl+t", "thinking", "show or fold the thinking of the last reply", palette=True),
    Key("shift+tab", "previous_pane", "the pane before"),
    Key("escape", "app.escape", "stop what runs; otherwise back to the prompt"),
    Key("ctrl+q", "app.quit", "quit", footer="quit", palette=True),
    Key("enter", "submit", "send the prompt", where="prompt", footer="send"),
    Key("ctrl+j", "newline", "a new line in the prompt", where="prompt"),
    Key("up", "older", "in the first line: earlier prompts", where="prompt"),
    Key("down", "newer", "in the last line: later prompts", where="prompt"),
    Key("ctrl+r", "resend", "edit and send the last prompt again, in its old place", where="prompt"),
    Key("left", "select_turn(-1)", "the turn before", where="chat", footer="turn"),
    Key("right", "select_turn(1)", "the next turn", where="chat"),
    Key("e", "edit_turn", "edit this turn's prompt and send it again", where="chat", footer="edit"),
    Key("enter", "toggle_thinking", "show or fold this turn's thinking", where="chat", footer="thinking"),
    Key("y", "copy_turn", "copy this reply", where="chat", footer="copy"),
    Key("w", "write_turn", "write this reply to a file", where="chat", footer="write"),
    Key("up", "choose(-1)", "the card above", where="split"),
    Key("down", "choose(1)", "the card below", where="split"),
    Key("right", "move(1)", "one layer more on this card", where="split", footer="more"),
    Key("left", "move(-1)", "one layer fewer on this card", where="split", footer="fewer"),
    Key("right_square_bracket", "move(5)", "five more", where="split", footer="5 more"),
    Key("left_square_bracket", "move(-5)", "five fewer", where="split"),
    Key("m", "mode", "the next split mode", where="split", footer="mode"),
    Key("equals_sign", "even", "even out", where="split", footer="even"),
    Key("f", "by_free", "by free memory", where="split"),
    Key("g", "gpu_layers", "set how many layers are on cards", where="split"),
    *(Key(str(n), f"digit({n})", "the main card (mode none)", where="split") for n in range(10)),
    Key("enter", "apply", "apply the draft", where="split", footer="apply"),
    Key("escape", "revert", "back to what runs; with no draft: stop what runs", where="split", footer="revert"),
    Key("c", "app.context", "context: n_ctx, KV type, flash attention", where="split", footer="context", palette=True),
    Key("up", "choose(-1)", "the line above", where="change"),
    Key("down", "choose(1)", "the line below", where="change"),
    Key("enter", "app.go_to_line", "load this line's layout", where="change", footer="go to it"),
    Key("s", "app.save_line", "save this line as a layout", where="change", footer="save it"),
    Key("d", "app.accounts", "forecast against measured", where="change", footer="forecast | measured", palette=True),
    Key("enter", "detail", "a card in detail, with ten minutes of history", where="cards", footer="detail"),
    Key("t", "topology", "how the cards are joined", where="cards", footer="topology"),
    Key("l", "lines", "one line a card, or two", where="cards", footer="lines"),
    Key("o", "meters", "turn the meters off, or on again", where="cards", footer="meters off"),
    Key("up", "scroll_up", "scroll up", where="cards"),
    Key("down", "scroll_down", "scroll down", where="cards"),
    Key("up", "choose(-1)", "the line above", where="setup"),
    Key("down", "choose(1)", "the line below", where="setup"),
    Key("left", "change(-1)", "the value before", where="setup"),
    Key("right", "change(1)", "the next value", where="setup", footer="change"),
    Key("l", "list", "all values of this line", where="setup", footer="list"),
    Key("enter", "start", "start", where="setup", footer="start"),
    Key("escape", "close", "close", where="setup", footer="close"),
    Key("left", "view(-1)", "the view before", where="result"),
    Key("right", "view(1)", "the next view: plot, blocks, outputs, details", where="result", footer="view"),
    Key("m", "metric", "decode, prefill or first token", where="result", footer="metric"),
    Key("b", "more_blocks", "add the blocks that would settle it", where="result", footer="more blocks"),
    Key("g", "go_on", "go on with a run that was cut short", where="result", footer="go on"),
    Key("u", "use", "load the faster layout", where="result", footer="use it"),
    Key("r", "again", "measure again", where="result", footer="again"),
    Key("x", "export", "write a report in Markdown", where="result", footer="export"),
    Key("escape", "leave", "stop, keeping what is there; then leave", where="result", footer="leave"),
    Key("f1", "help", "help", where="result", footer="help"),
    Key("right_square_bracket", "prompt(1)", "outputs: the next prompt", where="result", footer="prompt"),
    Key("left_square_bracket", "prompt(-1)", "outputs: the prompt before", where="result"),
    Key("up", "scroll(-1)", "scroll up", where="result"),
    Key("down", "scroll(1)", "scroll down", where="result", footer="scroll"),
    Key("enter", "open", "open a run", where="runs", footer="open"),
    Key("c", "mark", "compare: choose one, then the other", where="runs", footer="compare"),
    Key("r", "again", "measure again", where="runs", footer="again"),
    Key("x", "export", "write a report in Markdown", where="runs", footer="export"),
    Key("escape", "close", "close", where="runs", footer="close"),
)

_SHOWN = {
    "right_square_bracket": "]", "left_square_bracket": "[", "equals_sign": "=", "escape": "Esc", "enter": "Enter",
    "tab": "Tab", "shift+tab": "shift+Tab", "up": "↑", "down": "↓", "left": "←", "right": "→",
}  # fmt: skip


def shown(key: Key) -> str:
    """The key as people write it: `F1`, `^s`, `]`."""
    name = _SHOWN.get(key.keys, key.keys)
    if name.startswith("ctrl+"):
        return "^" + name.removeprefix("ctrl+")
    return name.upper() if name[0] == "f" and name[1:].isdigit() else name


def bindings(where: Where) -> list[Binding | tuple[str, str] | tuple[str, str, str]]:
    """The bindings of one pane, or of the app."""
    return [Binding(key.keys, key.action, key.what, show=False) for key in KEYS if key.where == where]


def footer_keys(where: Where, *, offered: bool = False) -> tuple[Key, ...]:
    """What the footer names while this pane has the focus: what is offered, its own keys, then the app's."""
    named = [key for key in KEYS if key.footer]
    if where in ALONE:
        return tuple(key for key in named if key.where == where)
    first = tuple(key for key in named if key.offered and offered)
    own = tuple(key for key in named if key.where == where and not key.offered)
    return first + own + tuple(key for key in named if key.where == "anywhere" and not key.offered)


def help_lines(where: Where) -> list[tuple[str, str]]:
    """(keys, what they do) of one pane; the digits are one line."""
    lines: list[tuple[str, str]] = []
    for key in KEYS:
        if key.where != where or key.keys in set("123456789"):
            continue
        lines.append(("0-9" if key.keys == "0" else shown(key), key.what))
    return lines
