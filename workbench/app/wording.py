"""How events of the session and forecasts are said to people."""

from urllib.parse import urlsplit

from workbench.app.history_rows import cache_types
from workbench.domain.card import format_mib
from workbench.domain.forecast import Forecast
from workbench.domain.layout import Layout
from workbench.domain.servers import is_here
from workbench.lab import events
from workbench.lab.forecast import Answer, said

_DOING = {
    "context": "new context for",
    "load": "loading",
    "resplit": "loading",
    "rollback": "going back to",
    "respawn": "starting again with",
    "unpark": "bringing back",
}


def doing(why: str) -> str:
    """What a load is, in words."""
    return _DOING.get(why, why)


def describe(problem: events.Problem) -> str:
    """One message: what failed, on which card, the MiB, and what serves now."""
    text = problem.message
    if problem.card is not None and problem.card not in text:
        text = f"{problem.card}: {text}"
    if problem.wanted_mib is not None and "MiB" not in text:
        text += f" (asked for {format_mib(problem.wanted_mib)}"
        text += f", free {format_mib(problem.free_mib)})" if problem.free_mib is not None else ")"
    if problem.serving is not None:
        text += f" · {problem.serving} serves on"
    return text


def whereto(layout: Layout) -> str:
    """` at HOST` where what is said leaves this machine; empty where it does not."""
    url = layout.served_by
    return "" if url is None or is_here(url) else f" at {urlsplit(url).hostname}"


def layout_words(layout: Layout) -> str:
    """`layer 20:11, n_ctx 8192`, with a KV type that is not f16."""
    words = [layout.label(), f"n_ctx {layout.context.n_ctx or 'as trained'}"]
    if {layout.context.type_k, layout.context.type_v} != {"f16"}:
        words.append(f"KV {cache_types(layout)}")
    return ", ".join(words)


def forecast_lines(answer: Answer, *, cards: bool = True) -> str:
    """A forecast in up to three lines: each card (unless left out), the verdict and who spoke, the limits once known.

    What past loads taught stands with the limits.
    """
    if not isinstance(answer, Forecast):
        return f"✗ {said(answer)}"
    verdict = f"{'✗' if answer.fits is False else '✓' if answer.fits else '?'} {answer.sentence()}"
    more = " · ".join(filter(None, (answer.limits(), answer.learnt())))
    return "\n".join(filter(None, (answer.figures() if cards else "", f"{verdict} · by {answer.source}", more)))
