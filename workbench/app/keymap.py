"""Every key and what it does: bindings, footer, help and command palette all come from here."""

from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding

Where = Literal["anywhere", "prompt", "chat", "cards", "split"]


@dataclass(frozen=True)
class Key:
    """One action. `footer` is its word in the footer, "" keeps it out; `palette` lists it there."""

    keys: str
    action: str
    what: str
    where: Where = "anywhere"
    footer: str = ""
    palette: bool = False


KEYS: tuple[Key, ...] = (
    Key("f1", "app.help", "help for this pane, and all keys", footer="help", palette=True),
    Key("f2", "app.layouts", "open a layout", footer="layouts", palette=True),
    Key("f4", "app.models", "open a model", footer="models", palette=True),
    Key("f6", "split", "go to the split editor, and back to the prompt", footer="split"),
    Key("tab", "next_pane", "the next pane", footer="panes"),
    Key("f7", "app.go_back", "go back to the layout before", footer="back", palette=True),
    Key("f8", "app.messages", "what was said so far", palette=True),
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
    Key("escape", "revert", "back to what runs; then to the prompt", where="split", footer="revert"),
    Key("up", "scroll_up", "scroll up", where="cards"),
    Key("down", "scroll_down", "scroll down", where="cards"),
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


def footer_keys(where: Where) -> tuple[Key, ...]:
    """What the footer names while this pane has the focus: its own keys, then the app's."""
    own = tuple(key for key in KEYS if key.footer and key.where == where)
    return own + tuple(key for key in KEYS if key.footer and key.where == "anywhere")


def help_lines(where: Where) -> list[tuple[str, str]]:
    """(keys, what they do) of one pane; the digits are one line."""
    lines: list[tuple[str, str]] = []
    for key in KEYS:
        if key.where != where or key.keys in set("123456789"):
            continue
        lines.append(("0-9" if key.keys == "0" else shown(key), key.what))
    return lines
