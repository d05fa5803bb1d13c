"""F5: what was measured before."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.cells import cell_len
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from workbench.app import ab_draw
from workbench.app.keymap import Where, bindings, keymap_of
from workbench.app.screens.dialog import Dialog
from workbench.app.screens.run_detail import write_report
from workbench.app.text import one_line
from workbench.domain import wording
from workbench.domain.machines import Join, join
from workbench.domain.outcome import Outcome
from workbench.domain.run import Run, RunHeader
from workbench.domain.text import clean
from workbench.lab.ab import judge
from workbench.store.runs import RunError, read_run


@dataclass
class Past:
    """A run in the list: its header, and once it was read what it came to; or what is wrong with it."""

    folder: Path
    header: RunHeader | None = None
    run: Run | None = None
    outcome: Outcome | None = None
    error: str = ""


@dataclass(frozen=True)
class Opened:
    """A run to be shown, or to be measured again."""

    past: Past
    again: bool = False


WIDE = [(0, "-tight"), (132, "-roomy")]
"""These boxes are wider than other dialogs."""


class RunsScreen(Dialog[Opened]):
    """The newest first, two lines each; verdicts come as the runs are read."""

    CSS_PATH = "result.tcss"
    HORIZONTAL_BREAKPOINTS = WIDE
    BINDINGS = bindings("runs")
    where: ClassVar[Where] = "runs"

    def __init__(self, list_runs: Callable[[], Sequence[tuple[Path, RunHeader | RunError]]]) -> None:
        super().__init__()
        self._list_runs = list_runs
        self._runs: list[Past] = []
        self._marked: Past | None = None

    def compose(self) -> ComposeResult:
        """The list, and what was said last."""
        with Vertical(classes="dialog") as box:
            box.border_title = "Runs"
            box.border_subtitle = keymap_of(self.app).words(
                "{runs_open} opens · {runs_mark} compare · {runs_again} again · {runs_export} export · Esc closes"
            )
            yield OptionList(id="runs", markup=False)
            yield Static(id="about", classes="muted", markup=False)

    def on_mount(self) -> None:
        """Read the folder."""
        self.query_one(OptionList).loading = True
        self._read()

    @work(thread=True, exclusive=True)
    def _read(self) -> None:
        found = [
            Past(folder, error=str(header)) if isinstance(header, RunError) else Past(folder, header)
            for folder, header in self._list_runs()
        ]
        self.app.call_from_thread(self._show, found)
        for number, past in enumerate(found):
            if not self.is_attached:
                return
            if past.header is not None:
                try:
                    past.run, past.outcome = read_run(past.folder), judge(past.folder)
                except RunError as error:
                    past.error = str(error)
                self.app.call_from_thread(self._refresh, number)

    def _show(self, found: list[Past]) -> None:
        if not self.is_attached:
            return
        self._runs = found
        options = self.query_one(OptionList)
        options.loading = False
        options.add_options([Option(self._line(past)) for past in found])
        options.highlighted = 0 if found else None
        options.focus()
        if not found:
            self._say(keymap_of(self.app).words("No run yet: {compare} measures two layouts against each other."))

    def _refresh(self, number: int) -> None:
        if self.is_attached:
            self.query_one(OptionList).replace_option_prompt_at_index(number, self._line(self._runs[number]))

    def _line(self, past: Past) -> Content:
        width = max(40, self.query_one(OptionList).content_size.width or 70)
        mark = Content.styled("● " if past is self._marked else "  ", "bold $text-primary")
        header = past.header
        if header is None or past.error:
            said = one_line(past.error, width * 2 - 24)
            return mark + Content.styled(f"✗ {one_line(past.folder.name, 20)} ", "$text-error") + Content(said)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(header.created))
        what = "…" if past.outcome is None else wording.conclusion(past.outcome)
        names = " against ".join(arm.label for arm in header.arms)
        missing = past.run is not None and len(past.run.samples) < len(header.plan)
        taken = f" · {len(past.run.samples)} of {len(header.plan)}" if past.run is not None and missing else ""
        way = " · resident" if header.method == "resident" else ""
        first = mark + Content(f"{when}  ") + Content.styled(one_line(what, width - 21), "bold")
        rest = f" · {header.prompts.name}{way}{taken}"
        second = "    " + one_line(names, max(10, width - 5 - cell_len(rest))) + rest
        return first + Content("\n" + one_line_kept(second, width))

    def _say(self, message: str) -> None:
        self.query_one("#about", Static).update(clean(message))

    @property
    def _here(self) -> Past | None:
        at = self.query_one(OptionList).highlighted
        return None if at is None or at >= len(self._runs) else self._runs[at]

    # ── keys ──────────────────────────────────────────────────────────────────────────────
    @on(OptionList.OptionSelected)
    def action_open(self) -> None:
        """Open the highlighted run."""
        past = self._here
        if past is None:
            return
        if past.run is None:
            self._say(past.error or "it is still being read")
        else:
            self.dismiss(Opened(past))

    def action_again(self) -> None:
        """Measure the same again."""
        past = self._here
        if past is not None and past.header is not None:
            self.dismiss(Opened(past, again=True))

    def action_export(self) -> None:
        """Write a report of the highlighted run."""
        past = self._here
        if past is not None and past.outcome is not None:
            self._say(write_report(past.outcome))

    def action_mark(self) -> None:
        """Choose the first of two to compare; at the second, compare."""
        past = self._here
        if past is None or past.run is None:
            return
        if self._marked is None:
            self._marked = past
            self._say("Now choose the other one and press c; the first is marked ●.")
        elif self._marked is past:
            self._marked = None
            self._say("")
        else:
            first, self._marked = self._marked, None
            assert first.run is not None
            self._say("")
            self.app.push_screen(ComparedScreen(first.run, past.run))
        for number in range(len(self._runs)):
            self._refresh(number)


class ComparedScreen(Dialog[None]):
    """Two runs joined by layout and prompt."""

    HORIZONTAL_BREAKPOINTS = WIDE

    def __init__(self, first: Run, second: Run) -> None:
        super().__init__()
        self._hosts = [run.header.machine.host for run in (first, second)]
        self._joined: Join = join(first, second)

    def compose(self) -> ComposeResult:
        """The table, then what to be careful about."""
        rows = wording.join_rows(self._joined, self._hosts)
        parts = [ab_draw.table(rows, left=(0, 1))] if rows else []
        if self._joined.cautions:
            parts.append(Content("\n").join(Content("- " + clean(caution)) for caution in self._joined.cautions))
        with Vertical(classes="dialog") as box:
            box.border_title = "Two runs compared"
            box.border_subtitle = "↑ ↓ scroll · Esc closes"
            with VerticalScroll():
                yield Static(Content("\n\n").join(parts), markup=False)


def one_line_kept(text: str, width: int) -> str:
    """The text on one line, its leading spaces kept."""
    lead = len(text) - len(text.lstrip())
    return " " * lead + one_line(text, max(4, width - lead))
