"""A run: its verdict in words, both arms, and the views of what it rests on."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.reactive import reactive
from textual.screen import Screen
from textual.widgets import Digits, Static

from workbench.app import ab_draw
from workbench.app.keymap import Where, bindings, keymap_of, shown
from workbench.app.panes.bars import Header
from workbench.app.panes.small import TooSmall
from workbench.app.panes.views import WIDE, Views
from workbench.app.screens.help import HelpScreen
from workbench.domain import wording
from workbench.domain.comparison import METRICS, Metric
from workbench.domain.layout import Layout
from workbench.domain.outcome import Outcome
from workbench.domain.run import Run, RunHeader
from workbench.store.exporters import markdown

Left = Layout | RunHeader | None
"""What leaving a run leads to: a layout to load, a run to measure again, or nothing."""


class Foot(Static):
    """The keys of a screen of its own, without those that do nothing now."""

    hidden: reactive[frozenset[str]] = reactive(frozenset())
    leaving: reactive[str] = reactive("leave")
    """What Esc does now."""

    def __init__(self, where: Where) -> None:
        super().__init__(id="foot", markup=False)
        self._where = where

    def render(self) -> Content:
        """As many as fit."""
        room, line = self.content_size.width, Content("")
        for key in keymap_of(self.app).footer(self._where):
            if key.action in self.hidden:
                continue
            word = self.leaving if key.action == "leave" else key.footer
            piece = Content.styled(shown(key), "bold $text-primary") + Content(f" {word}")
            gap = 2 if line.plain else 0
            if line.cell_length + gap + piece.cell_length > room:
                break
            line = line + Content(" " * gap) + piece
        return line


class ResultScreen(Screen[Left]):
    """Shows a run. `run` is what there is of it, None before anything is known."""

    CSS_PATH = "result.tcss"
    BINDINGS = bindings("result")
    where: ClassVar[Where] = "result"

    def __init__(self, run: Run | None = None, outcome: Outcome | None = None, folder: Path | None = None) -> None:
        super().__init__()
        self.run = run
        self.outcome = outcome
        self.folder = folder
        self.metric: Metric = "decode"
        self.prompt_at = 0
        self.message = ""
        """Said instead of what to do next, until the next key."""

    def compose(self) -> ComposeResult:
        """Verdict, speeds, views, what goes on, keys."""
        yield Header(id="header", markup=False)
        with Horizontal(id="verdict", classes="pane"):
            yield Digits(id="big")
            yield Static(id="words", markup=False)
        yield Static(id="speeds", markup=False)
        yield Views()
        yield Static(id="stage", markup=False)
        yield Foot("result")
        yield TooSmall()

    @property
    def running(self) -> bool:
        """Whether samples are being taken."""
        return False

    def on_mount(self) -> None:
        """Draw what is there."""
        self.draw()

    def on_resize(self, event: events.Resize) -> None:
        """Views side by side where there is room."""
        self.query_one(Views).lay_out(event.size.width >= WIDE[0] and event.size.height >= WIDE[1])
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Draw all of it."""
        if not self.is_mounted:
            return
        self._draw_verdict()
        self.draw_stage()
        if self.run is not None:
            header = self.run.header
            way = "fresh loads" if header.method == "fresh" else "both resident"
            what = f"{header.blocks} blocks, {way}" if header.kind == "ab" else f"{header.blocks} loads"
            kind = "A/B" if header.kind == "ab" else "replay"
            self.query_one(Header).left = f"{kind} · {header.prompts.name} · {what}"
            self.query_one(Header).right = header.machine.host
            width = self.app.size.width - 4
            names = Content.styled(ab_draw.arms(self.run), "$text-muted")
            self.query_one("#speeds", Static).update(
                names + Content("\n") + ab_draw.speeds(self.run, self.outcome, self.metric, width)
            )
            self.query_one(Views).show(self.run, self.outcome, self.metric, self.prompt_at, self.folder)
        foot = self.query_one(Foot)
        foot.hidden, foot.leaving = frozenset(self.hidden_keys()), "stop" if self.running else "leave"

    def draw_stage(self) -> None:
        """Draw what goes on now."""
        self.query_one("#stage", Static).update(self.stage())

    def _draw_verdict(self) -> None:
        number = ab_draw.big(self.outcome, self.metric)
        digits = self.query_one("#big", Digits)
        digits.display = bool(number)
        digits.update(number)
        digits.set_class(self.running, "-interim")
        self.query_one("#words", Static).update(self.words())

    def words(self) -> Content:
        """The verdict and what to do next."""
        if self.run is None:
            return Content(self.message)
        said = ab_draw.verdict(self.run, self.outcome, self.metric, running=self.running)
        following = self.message
        if not following and self.outcome is not None and not self.running:
            following = ab_draw.next_step(self.run, self.outcome, self.metric, keymap_of(self.app))
        return said + Content.styled(f"\n{following}", "$text-primary") if following else said

    def stage(self) -> Content:
        """What goes on now."""
        return Content("")

    def hidden_keys(self) -> Sequence[str]:
        """The actions that do nothing now."""
        hidden = []
        outcome, run = self.outcome, self.run
        over = run is not None and outcome is not None and not self.running
        effect = outcome.effect(self.metric) if outcome is not None else None
        settled = effect is not None and effect.verdict in ("faster", "slower")
        hopeless = effect is None or wording.is_hopeless(effect)
        failed = outcome is not None and any(arm.failure is not None for arm in outcome.arms)
        if not over or settled or hopeless or failed or run is None or run.missing:
            hidden.append("more_blocks")
        if not over or run is None or not run.missing:
            hidden.append("go_on")
        if not over or not settled:
            hidden.append("use")
        if not over:
            hidden += ["again", "export"]
        if run is None or len(run.header.prompts.prompts) < 2:
            hidden.append("prompt(1)")
        return hidden

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that do nothing now are not bound."""
        return action not in self.hidden_keys() if self.is_mounted else True

    # ── keys ──────────────────────────────────────────────────────────────────────────────
    def action_view(self, by: int) -> None:
        """Another view."""
        self.query_one(Views).choose(by)

    def action_scroll(self, by: int) -> None:
        """Scroll the view."""
        self.query_one(Views).scroll(by)

    def action_metric(self) -> None:
        """Another metric."""
        self.metric = METRICS[(METRICS.index(self.metric) + 1) % len(METRICS)]
        self.draw()

    def action_prompt(self, by: int) -> None:
        """The outputs of another prompt."""
        if self.run is not None:
            views = self.query_one(Views)
            if not views.wide and views.chosen != "outputs":
                views.chosen = "outputs"
                views.choose(0)
            self.prompt_at = (self.prompt_at + by) % len(self.run.header.prompts.prompts)
            self.draw()

    def action_use(self) -> None:
        """Leave, and load the faster layout."""
        effect = None if self.outcome is None else self.outcome.effect(self.metric)
        if self.run is not None and effect is not None:
            self.dismiss(self.run.header.arm("B" if effect.verdict == "faster" else "A").layout)

    def action_again(self) -> None:
        """Leave, to measure the same again."""
        if self.run is not None:
            self.dismiss(self.run.header)

    def action_export(self) -> None:
        """Write the report."""
        if self.run is not None and self.outcome is not None:
            self.message = write_report(self.outcome)
            self.draw()

    def action_help(self) -> None:
        """Help for this screen."""
        self.app.push_screen(HelpScreen("result"))

    def action_leave(self) -> None:
        """Leave."""
        self.dismiss(None)


def write_report(outcome: Outcome) -> str:
    """Write the report to a new file in the current folder; what to say of it."""
    number = 1
    path = Path(f"{outcome.header.id}.md")
    while path.exists():
        number += 1
        path = Path(f"{outcome.header.id}-{number}.md")
    try:
        path.write_text(markdown(outcome), encoding="utf-8")
    except OSError as error:
        return f"cannot write {path.resolve()}: {error.strerror}"
    return f"written: {path.resolve()}"
