"""F1: the focused pane, then every key."""

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from workbench.app.card_rows import LEGEND
from workbench.app.keymap import ALONE, Keymap, Where, keymap_of
from workbench.app.screens.dialog import Dialog

ABOUT: dict[Where, tuple[str, str]] = {
    "prompt": ("Prompt", "What you write to the model. Replies stream above it."),
    "chat": ("Chat", "The turns so far. ← → choose a turn, ↑ ↓ scroll."),
    "cards": (
        "Cards",
        f"One card on two lines, or one: whose memory it is ({LEGEND}), used/total; nvidia-smi's number, use over "
        "the last seconds, ▼ what holds it down, power, temperature, clock, traffic. Below: what the meters mean, "
        "the last reply (its work against the weights), the host. A dash is a figure that nobody knows.",
    ),
    "split": (
        "Split",
        "Which card holds how many layers. You edit a draft: ▓ is what a card would gain, ░ what it would lose. "
        "Nothing happens until Enter.",
    ),
    "change": (
        "Last change",
        "The splits of this session, the newest first, ● the one that serves: tok/s of its probe, joules a token of "
        "its last reply, the free memory of its tightest card, MiB per card.",
    ),
    "setup": (
        "A/B: what to measure",
        "Two layouts and a prompt set. A block is four loads, ABBA or BAAB; each load is a new one, since two loads "
        "of one layout differ too.",
    ),
    "result": (
        "A/B: a run",
        "Ratios are speeds, B over A. B is called faster or slower only where the 95 % interval over the blocks "
        "excludes 1 and the difference exceeds the noise floor, which is what two equal layouts may show.",
    ),
    "runs": ("Past runs", "Every run is kept with all of its samples."),
    "context": (
        "Context",
        "A draft of n_ctx, the KV type and flash attention, with what it would take. Nothing is loaded until Enter.",
    ),
    "card": (
        "One card",
        "Its figures, and its last ten minutes: use, memory, power and traffic. A dash is a figure that nobody knows.",
    ),
    "topology": (
        "Topology",
        "How each pair of cards is joined, and whether the driver lets them reach each other's memory.",
    ),
    "saving": ("Save under a name", "Enter saves, and leaves a file that is there as it is."),
    "dialog": ("Lists and questions", "↑ ↓ choose, Enter takes what is chosen."),
    "anywhere": ("Everywhere", ""),
    "app": ("In dialogs too", ""),
}


def help_text(where: Where, keys: Keymap) -> Content:
    """The help of one pane first, then the keys that work everywhere, then the other panes."""
    first: list[Where] = [where, "app"] if where in ALONE else [where, "anywhere", "app"]
    order = [*first, *(other for other in ABOUT if other not in first)]
    blocks = []
    for place in order:
        title, about = ABOUT[place]
        lines = [Content.styled(title, "bold $text-primary")]
        if about:
            lines.append(Content(about))
        lines += [Content.styled(f"  {shown:<10}", "bold") + Content(what) for shown, what in keys.help(place)]
        blocks.append(Content("\n").join(lines))
    return Content("\n\n").join(blocks)


class HelpScreen(Dialog[None]):
    """Scrolls; Esc or F1 closes."""

    def action_help(self) -> None:
        """Close: the key that opened it."""
        self.action_close()

    def __init__(self, where: Where) -> None:
        super().__init__()
        self._where = where

    def compose(self) -> ComposeResult:
        """One long text."""
        with Vertical(classes="dialog") as box:
            box.border_title = "Help"
            box.border_subtitle = "↑ ↓ scroll · Esc closes"
            with VerticalScroll():
                yield Static(help_text(self._where, keymap_of(self.app)), markup=False)
