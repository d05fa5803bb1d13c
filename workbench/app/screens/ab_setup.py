"""F3: which two layouts are measured against each other, and how."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from workbench.app.keymap import Where, bindings, keymap_of
from workbench.app.outside import LayoutEntry
from workbench.app.screens.ab_run import Plan
from workbench.app.screens.dialog import Dialog
from workbench.app.screens.layouts import broken_line
from workbench.app.text import one_line
from workbench.domain.duration import expected_s, loads_and_passes, roughly
from workbench.domain.layout import Layout
from workbench.domain.prompts import PromptSet
from workbench.domain.run import RunHeader
from workbench.domain.samples import DEFAULT_BLOCKS, Method, fixed_sampling, too_long
from workbench.domain.text import clean
from workbench.domain.timing import Probe
from workbench.lab.ab import PromptDoesNotFit, check_lengths
from workbench.store.documents import DocumentError

MOST_BLOCKS = 64
ALONE = "nothing: A alone"
WAYS: dict[Method, str] = {
    "fresh": "a new load each time: a verdict",
    "resident": "both loaded at once: quick, indicative only",
}
LINES = ("A", "B", "prompts", "blocks", "loads")


@dataclass(frozen=True)
class Choice:
    """A layout that can be an arm, and where it comes from."""

    layout: Layout
    origin: str = ""

    def said(self, width: int, muted: str = "$text-muted") -> Content:
        """Name, split and origin on one line."""
        name = Content.styled(one_line(self.layout.name, 22), "bold")
        origin = Content.styled(f"  {self.origin}" if self.origin else "", muted)
        room = max(4, width - name.cell_length - origin.cell_length - 2)
        return name + Content("  " + one_line(self.layout.label(), room)) + origin


@dataclass(frozen=True)
class Known:
    """What the session knows: the layouts that can be preset, and how fast they were."""

    running: Layout | None = None
    before: Layout | None = None
    load_s: float = 0.0
    probe: Probe | None = None
    again: RunHeader | None = None
    sets: Callable[[], Sequence[tuple[Path, PromptSet | DocumentError]]] = field(default=lambda: ())
    layouts: Callable[[], Sequence[LayoutEntry]] = field(default=lambda: ())


class SetupScreen(Dialog[Plan]):
    """Five lines to choose from; Enter starts."""

    CSS_PATH = "result.tcss"
    BINDINGS = bindings("setup")
    where: ClassVar[Where] = "setup"

    def __init__(self, known: Known) -> None:
        super().__init__()
        self._known = known
        self._line = 0
        self._choices: list[Choice] = []
        self._sets: list[PromptSet] = []
        self._broken: dict[str, list[tuple[Path, str]]] = {}
        """By line the documents that cannot be chosen there, and why."""
        self._a = self._b = self._set = 0
        self._blocks = DEFAULT_BLOCKS if known.again is None else known.again.blocks
        self._method: Method = "fresh" if known.again is None else known.again.method
        self._loaded = False

    def compose(self) -> ComposeResult:
        """The lines, and what they come to."""
        with Vertical(classes="dialog") as box:
            box.border_title = "A/B: which layout is faster?"
            box.border_subtitle = keymap_of(self.app).words(
                "{setup_up} {setup_down} line · {setup_previous} {setup_next} change · {setup_list} list"
                " · {setup_start} starts · Esc closes"
            )
            yield Static(id="setup-rows", markup=False)
            yield Static(id="setup-about", markup=False)

    def on_mount(self) -> None:
        """Read the folders."""
        self.query_one("#setup-rows", Static).update(Content.styled("reading layouts and prompt sets …", "$text-muted"))
        self._read()

    @work(thread=True)
    def _read(self) -> None:
        self.app.call_from_thread(self._show, self._known.layouts(), self._known.sets())

    def _show(
        self, entries: Sequence[LayoutEntry], documents: Sequence[tuple[Path, PromptSet | DocumentError]]
    ) -> None:
        known, again = self._known, self._known.again
        layouts = [entry.layout for entry in entries if entry.layout is not None]
        sets = [document for _, document in documents if isinstance(document, PromptSet)]
        broken = [(entry.path, entry.error) for entry in entries if entry.layout is None]
        faulty = [(path, str(error)) for path, error in documents if isinstance(error, DocumentError)]
        self._broken = {"A": broken, "B": broken, "prompts": faulty}
        first: list[Choice] = []
        if again is not None:
            first += [Choice(arm.layout, f"{arm.arm} of that run") for arm in again.arms]
        if known.before is not None:
            first.append(Choice(known.before, "ran before"))
        if known.running is not None:
            first.append(Choice(known.running, "runs now"))
        seen = [choice.layout for choice in first]
        self._choices = [*first, *(Choice(layout) for layout in layouts if layout not in seen)]
        self._sets = [again.prompts, *(each for each in sets if each != again.prompts)] if again else list(sets)
        names = [each.name for each in self._sets]
        self._set = 0 if again or "quick" not in names else names.index("quick")
        self._a = 0
        self._b = min(1, len(self._choices) - 1) if again is None or len(again.arms) > 1 else len(self._choices)
        self._loaded = True
        self._draw()

    # ── what was chosen ───────────────────────────────────────────────────────────────────
    @property
    def plan(self) -> Plan | None:
        """What would be measured; None where something is missing."""
        if not self._choices or not self._sets:
            return None
        arms = [self._choices[self._a].layout]
        if self._b < len(self._choices):
            arms.append(self._choices[self._b].layout)
        return Plan(arms, self._sets[self._set], self._method if len(arms) == 2 else "fresh", self._blocks)

    def _why_not(self) -> str:
        """What keeps it from starting."""
        if not self._choices:
            none = "There is no layout: {layouts} lists them, {save_as} saves what runs as one."
            return keymap_of(self.app).words(none)
        if not self._sets:
            faulty = self._broken.get("prompts")
            return faulty[0][1] if faulty else "There is no prompt set in ./prompts or in the configuration folder."
        plan = self.plan
        assert plan is not None
        try:
            for layout in plan.layouts:
                check_lengths(plan.prompts, layout)
        except PromptDoesNotFit as error:
            return f"{plan.prompts.name}: {error}"
        return too_long(plan.prompts, plan.blocks, len(plan.layouts)) or ""

    # ── keys ──────────────────────────────────────────────────────────────────────────────
    def action_choose(self, by: int) -> None:
        """Another line."""
        self._line = (self._line + by) % len(LINES)
        self._draw()

    def action_change(self, by: int) -> None:
        """Another value."""
        if not self._loaded or not self._choices or not self._sets:
            return
        match LINES[self._line]:
            case "A":
                self._a = (self._a + by) % len(self._choices)
            case "B":
                self._b = (self._b + by) % (len(self._choices) + 1)
            case "prompts":
                self._set = (self._set + by) % len(self._sets)
            case "blocks":
                self._blocks = min(max(self._blocks + by, 1), MOST_BLOCKS)
            case _:
                self._method = "resident" if self._method == "fresh" else "fresh"
        self._draw()

    def action_list(self) -> None:
        """All values of this line."""
        line = LINES[self._line]
        if not self._loaded or line not in ("A", "B", "prompts"):
            self.action_change(1)
            return
        if line == "prompts":
            values = [_set_line(each, muted="") for each in self._sets]
        else:
            values = [choice.said(66, muted="") for choice in self._choices] + ([Content(ALONE)] if line == "B" else [])
        now = {"A": self._a, "B": self._b, "prompts": self._set}[line]

        def chosen(at: int | None) -> None:
            if at is None:
                return
            if line == "A":
                self._a = at
            elif line == "B":
                self._b = at
            else:
                self._set = at
            self._draw()

        self.app.push_screen(ListScreen(line, values, now, self._broken[line]), chosen)

    def action_start(self) -> None:
        """Start, if it can."""
        if self._loaded and not self._why_not():
            self.dismiss(self.plan)

    # ── drawing ───────────────────────────────────────────────────────────────────────────
    def _draw(self) -> None:
        rows, about = self.query_one("#setup-rows", Static), self.query_one("#setup-about", Static)
        plan, why_not = self.plan, self._why_not()
        width = max(20, rows.content_size.width - 14)
        if plan is None:
            rows.update(Content.styled(f"✗ {why_not}", "$text-error"))
            return
        two = len(plan.layouts) == 2
        values = [
            self._choices[self._a].said(width),
            self._choices[self._b].said(width) if two else Content(ALONE),
            _set_line(plan.prompts),
            Content(str(plan.blocks)) + Content.styled(self._loads(plan), "$text-muted"),
            Content(WAYS[plan.method] if two else "a new load each time"),
        ]
        lines = []
        for number, (name, value) in enumerate(zip(LINES, values, strict=True)):
            here = number == self._line
            mark = Content.styled(f"{'›' if here else ' '} {name:<8}", "bold $text-primary" if here else "$text-muted")
            left, right = ("‹ ", " ›") if here else ("  ", "")
            lines.append(mark + Content(f" {left}") + value + Content(right))
        rows.update(Content("\n").join(lines))
        about.update(Content.styled(f"✗ {clean(why_not)}", "$text-error") if why_not else self._about(plan))

    def _loads(self, plan: Plan) -> str:
        loads, _ = loads_and_passes(len(plan.layouts), plan.blocks, plan.method)
        if len(plan.layouts) == 1:
            return ""
        return f"  {loads} loads" + (", ABBA and BAAB in turn" if plan.method == "fresh" else ", answers in turn")

    def _about(self, plan: Plan) -> Content:
        """How long, what is special about it, and what becomes of the session."""
        loads, passes = loads_and_passes(len(plan.layouts), plan.blocks, plan.method)
        known = self._known
        guess_s = expected_s(plan.prompts, loads=loads, passes=passes, load_s=known.load_s, probe=known.probe)
        lines = [
            Content.styled(f"Takes about {roughly(guess_s)}.", "bold")
            if guess_s is not None
            else Content("How long it takes shows after the first load.")
        ]
        if len(plan.layouts) == 2 and plan.layouts[0] == plan.layouts[1]:
            lines.append(Content("A and B are the same: this shows what equal loads differ by."))
        if len(plan.layouts) == 2 and plan.blocks < 2:
            lines.append(Content("A verdict needs two blocks."))
        unusable = len(self._broken.get(LINES[self._line], ()))
        if unusable:
            why = keymap_of(self.app).words(f"✗ {unusable} more cannot be used: {{setup_list}} says why.")
            lines.append(Content.styled(why, "$text-error"))
        if known.running is not None:
            lines.append(
                Content.styled(
                    "The running model is unloaded meanwhile; it comes back afterwards, with the conversation.",
                    "$text-muted",
                )
            )
        return Content("\n").join(lines)


class ListScreen(Dialog[int]):
    """All values of a line, and below them what cannot be chosen, and why."""

    def __init__(
        self, title: str, values: Sequence[Content], now: int, broken: Sequence[tuple[Path, str]] = ()
    ) -> None:
        super().__init__()
        self._title = title
        self._values = values
        self._now = now
        self._broken = broken

    def compose(self) -> ComposeResult:
        """The list."""
        with Vertical(classes="dialog") as box:
            box.border_title = self._title
            box.border_subtitle = "Enter chooses · Esc closes"
            values = [Option(value) for value in self._values]
            broken = [Option(broken_line(path, error), disabled=True) for path, error in self._broken]
            yield OptionList(*values, *broken, markup=False)

    def on_mount(self) -> None:
        """The present value is highlighted."""
        self.query_one(OptionList).highlighted = self._now

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)


def _set_line(prompts: PromptSet, muted: str = "$text-muted") -> Content:
    number = sum(prompt.repeat for prompt in prompts.prompts)
    tokens = sum(fixed_sampling(each, prompts.defaults).max_tokens * each.repeat for each in prompts.prompts)
    what = f"  {number} prompt{'' if number == 1 else 's'}, replies of {tokens} tokens together"
    return Content.styled(one_line(prompts.name, 22), "bold") + Content.styled(what, muted)
