"""Context settings as a draft, with its forecast."""

from collections.abc import Callable
from typing import ClassVar, get_args

import msgspec
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from workbench.app.keymap import Where, bindings, keymap_of
from workbench.app.screens.dialog import Dialog
from workbench.app.wording import forecast_lines
from workbench.domain.forecast import Forecast
from workbench.domain.layout import CacheType, Context, Layout
from workbench.domain.rules import check_layout
from workbench.lab.forecast import Answer

ROWS = ("n_ctx", "type_k", "type_v", "flash_attn")
TYPES: tuple[CacheType, ...] = get_args(CacheType)
FLASH: tuple[str | bool, ...] = ("auto", True, False)
LEAST, STEP = 256, 256
"""The smallest n_ctx that the arrows reach, and what the largest that fits is rounded down to."""


class ContextScreen(Dialog[Context]):
    """Edits the context of `base`; the result is the context to load.

    `running` is the layout that serves, with `n_ctx` as it was made. `ask` has a draft forecast,
    and `show` is given the answer.
    """

    BINDINGS = bindings("context")
    where: ClassVar[Where] = "context"

    def __init__(
        self, base: Layout, running: Layout, n_ctx: int, *, n_ctx_train: int, ask: Callable[[Layout], None]
    ) -> None:
        super().__init__()
        self._base = base
        self._serving = running
        self._n_ctx = n_ctx
        self._n_ctx_train = n_ctx_train
        self._ask = ask
        self._chosen = 0
        self._typed = ""
        self._answer: Answer | None = None
        self._most_asked = False
        self.draft = base.context

    def compose(self) -> ComposeResult:
        """The settings, and what they would take."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content(f"Context · {self._base.split.label()}")
            box.border_subtitle = keymap_of(self.app).words("{context_apply} loads it · Esc closes")
            yield Static(id="settings", markup=False)
            yield Static(id="foretold", markup=False)

    def on_mount(self) -> None:
        """What runs is where the draft starts."""
        self._ask(self.asked)
        self._draw()

    @property
    def asked(self) -> Layout:
        """The layout that would be loaded."""
        return msgspec.structs.replace(self._base, context=self.draft)

    def show(self, layout: Layout, answer: Answer) -> None:
        """What a draft would take; one of an earlier draft is left aside."""
        if layout != self.asked:
            return
        self._answer = answer
        if self._most_asked and isinstance(answer, Forecast) and answer.max_n_ctx is not None:
            self._take_most(answer.max_n_ctx)
        self._draw()

    def action_choose(self, by: int) -> None:
        """Another setting."""
        self._chosen, self._typed = min(max(self._chosen + by, 0), len(ROWS) - 1), ""
        self._draw()

    def action_turn(self, by: int) -> None:
        """Half or twice the n_ctx; another value of the rest."""
        draft, row = self.draft, ROWS[self._chosen]
        if row == "n_ctx":
            now = draft.n_ctx or self._n_ctx
            self._change(n_ctx=max(LEAST, now // 2) if by < 0 else now * 2)
        elif row == "flash_attn":
            self._change(flash_attn=_turned(FLASH, draft.flash_attn, by))
        else:
            setting = {row: _turned(TYPES, getattr(draft, row), by)}
            self._change("", **setting)

    def action_most(self) -> None:
        """The largest n_ctx that fits, as soon as it is known."""
        known = self._answer.max_n_ctx if isinstance(self._answer, Forecast) else None
        if known is None:
            self._most_asked = True
            self._draw()
        else:
            self._take_most(known)

    def action_apply(self) -> None:
        """Load it, unless it breaks a rule or runs already."""
        if not self._fault() and self.asked != self._serving:
            self.dismiss(self.draft)

    def on_key(self, event: events.Key) -> None:
        """Digits type the n_ctx, and backspace takes one back."""
        if event.key == "backspace" and self._typed:
            self._typed = self._typed[:-1]
        elif len(event.key) == 1 and event.key.isdecimal():
            self._chosen, self._typed = 0, (self._typed + event.key)[-8:]
        else:
            return
        event.stop()
        self._change(self._typed, n_ctx=int(self._typed or 0))

    def _take_most(self, n_ctx: int) -> None:
        self._most_asked = False
        if n_ctx >= STEP:
            self._change(n_ctx=n_ctx // STEP * STEP)

    def _change(self, typed: str = "", **settings: object) -> None:
        self._typed, self._most_asked = typed, False
        self.draft = msgspec.structs.replace(self.draft, **settings)
        self._answer = None
        if not self._fault():
            self._ask(self.asked)
        self._draw()

    def _fault(self) -> str:
        return next((f"{key.rpartition('.')[2]} {message}" for key, message in check_layout(self.asked)), "")

    def _draw(self) -> None:
        lines = []
        for at, row in enumerate(ROWS):
            value, before = getattr(self.draft, row), getattr(self._serving.context, row)
            mark = Content.styled("▸ " if at == self._chosen else "  ", "bold $text-primary")
            changed = "" if value == before else f"now {_said(row, before)}"
            line = mark + Content.styled(f"{row:<12}", "$text-muted")
            line = line + Content.styled(f"{_said(row, value):<12}", "bold") + Content.styled(changed, "$text-muted")
            lines.append(line)
        keys = keymap_of(self.app).words(
            "{context_less} {context_more} change · digits type n_ctx · {context_most} the largest n_ctx that fits"
        )
        lines.append(Content.styled(keys, "$text-muted"))
        self.query_one("#settings", Static).update(Content("\n").join(lines))
        self.query_one("#foretold", Static).update(self._foretold())

    def _foretold(self) -> Content:
        fault = self._fault()
        if fault:
            return Content.styled(f"✗ {fault}", "$text-error")
        lines = [] if self.asked != self._serving else [Content.styled("this runs already", "$text-muted")]
        if self._most_asked:
            lines.append(Content.styled("working out the largest n_ctx …", "$text-muted"))
        if self._answer is not None:
            lines.append(Content(forecast_lines(self._answer)))
        if self.draft.n_ctx > self._n_ctx_train > 0:
            lines.append(Content.styled(f"the model was trained with {self._n_ctx_train}", "$text-warning"))
        return Content("\n").join(lines)


def _turned(values: tuple[object, ...], now: object, by: int) -> object:
    return values[(values.index(now) + by) % len(values)]


def _said(row: str, value: object) -> str:
    if row == "n_ctx":
        return str(value or "as trained")
    return {True: "on", False: "off"}.get(value, "") if isinstance(value, bool) else str(value)
