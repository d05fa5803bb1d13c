"""Forecast against measured, of one load."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from workbench.app.screens.dialog import Dialog
from workbench.app.text import one_line
from workbench.domain.forecast import CardAccount

_ABOUT = (
    "other: what the load took beyond the engine's own figures, as the driver's context. foreign: what others "
    "hold there. error: measured less forecast; in all, it goes into the next forecast's other."
)


def account_lines(account: CardAccount) -> list[str]:
    """One line a kind, then other, foreign and the error in all; `–` where nobody can tell."""
    other, foreign = account.other_mib, account.foreign_mib
    error = None if other is None else other - account.other_forecast_mib
    return [
        *(_line(kind.kind, kind.forecast_mib, kind.measured_mib, kind.error_mib) for kind in account.kinds),
        _line("other", account.other_forecast_mib, other, error),
        _line("foreign", None, foreign, None),
        _line("in all", None, None, account.error_mib),
    ]


def _line(what: str, forecast: float | None, measured: float | None, error: float | None) -> str:
    said = "–" if error is None else f"{round(error, 1) or 0:+.1f}".replace("-", "−").replace("+0.0", "0.0")
    return f"  {what:<12}{_mib(forecast):>12}{_mib(measured):>12}{said:>12}"


def _mib(mib: float | None) -> str:
    return "–" if mib is None else f"{mib:.1f}"


class AccountsScreen(Dialog[None]):
    """A table by card and kind, in MiB."""

    def __init__(self, label: str, accounts: Sequence[CardAccount]) -> None:
        super().__init__()
        self._label = label
        self._accounts = accounts

    def compose(self) -> ComposeResult:
        """Column heads above, the cards in what scrolls."""
        blocks = [
            Content.styled(account.name, "bold") + Content("\n" + "\n".join(account_lines(account)))
            for account in self._accounts
        ]
        with Vertical(classes="dialog") as box:
            box.border_title = Content(f"Forecast and measured · {one_line(self._label, 40)}")
            box.border_subtitle = "↑ ↓ scroll · Esc closes"
            yield Static(f"  {'MiB':<12}{'forecast':>12}{'measured':>12}{'error':>12}", classes="muted", markup=False)
            with VerticalScroll():
                yield Static(Content("\n").join([*blocks, Content.styled(_ABOUT, "$text-muted")]), markup=False)
