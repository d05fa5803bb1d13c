"""`workbench run`: one prompt, one reply, and what they took."""

import contextlib
import io
import sys
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TextIO

import click

from workbench.cli.failures import Code, CommandFailed, describe, say
from workbench.cli.streams import steered
from workbench.cli.text import UNKNOWN, json_text, rate
from workbench.domain.conversation import Sampling, Turn
from workbench.domain.layout import Layout
from workbench.domain.memory import CardMemory, with_sizes
from workbench.domain.text import flat
from workbench.domain.timing import TimingSource
from workbench.engines.engine import EngineDied, Loaded, LoadFailed, Served
from workbench.lab.events import LoadMoved, Notice, Problem, SessionEvent, TurnText
from workbench.lab.kit import RealKit
from workbench.lab.session import Session
from workbench.store.documents import DocumentError, read_layout
from workbench.store.models import ModelError
from workbench.store.places import find_layout

AGAIN_S = 0.05
"""So often what does not end is cancelled."""


def read_prompt(text: str | None, file: Path | None, from_stdin: bool) -> str:
    """The prompt from the one place that was named. Raises click.UsageError, CommandFailed."""
    if (text is not None) + (file is not None) + from_stdin != 1:
        raise click.UsageError("name the prompt once: -p TEXT, -f FILE, or - for stdin")
    if from_stdin or file == Path("-"):
        text = _decoded("stdin", sys.stdin.buffer.read())
    elif file is not None:
        try:
            text = _decoded(str(file), file.read_bytes())
        except OSError as error:
            raise CommandFailed(f"{file}: {error.strerror}; name a text file", Code.WRONG) from None
    if text is None or not text.strip():
        raise CommandFailed("the prompt is empty", Code.WRONG)
    return text


def _decoded(where: str, data: bytes) -> str:
    try:
        return io.TextIOWrapper(io.BytesIO(data), "utf-8-sig").read()
    except UnicodeDecodeError:
        raise CommandFailed(f"{where}: is not UTF-8 text", Code.WRONG) from None


class Printer:
    """Listens to the session: the reply to stdout as it comes, the load's progress to a terminal."""

    def __init__(self, *, quiet: bool, out: TextIO, err: TextIO) -> None:
        self._quiet = quiet
        self._out = out
        self._err = err
        self.broken: OSError | None = None
        self.problem: str | None = None
        self.stop: Callable[[], None] = lambda: None

    def __call__(self, event: SessionEvent) -> None:
        """From the session's thread."""
        match event:
            case TurnText(text) if not self._quiet and not self.broken:
                try:
                    self._out.write(text)
                    self._out.flush()
                except OSError as error:
                    self.broken = error
                    self.stop()
            case LoadMoved(fraction, stage) if self._err.isatty():
                with contextlib.suppress(OSError):
                    steered(self._err).write(f"\r{f'{flat(stage)} {fraction:.0%}':<40}\r")
                    steered(self._err).flush()
            case Problem():
                self.problem = with_sizes(event.message, event.card, event.wanted_mib, event.free_mib)
            case Notice(message):
                say(message)


def run_prompt(
    name: str, prompt: str, sampling: Sampling, images: tuple[str, ...] = (), *, as_json: bool
) -> None:
    """Load the layout, answer, print. Ctrl-C keeps what was said and ends with 130."""
    path = find_layout(name)
    layout = read_layout(path)
    printer = Printer(quiet=as_json, out=sys.stdout, err=sys.stderr)
    session = Session(RealKit(spare=False), printer)
    printer.stop = session.cancel
    try:
        loading, turning = session.load(layout), session.send(prompt, sampling, images)
        loaded, turn = finish(loading, turning, session.cancel)
    except (LoadFailed, EngineDied) as error:
        raise failed_load(path, error) from error
    except ModelError as error:
        raise DocumentError.at(path, error.key, error.message) from error
    finally:
        session.close()
    if printer.broken is not None:
        raise printer.broken
    if as_json:
        click.echo(run_json(layout, loaded, turn))
    else:
        click.echo()
        click.echo(figures(layout, loaded, turn), err=True)
    if turn.stop_reason == "cancelled":
        raise KeyboardInterrupt
    if turn.stop_reason == "died":
        raise CommandFailed(printer.problem or "the reply broke off")


def finish(loading: Future[Loaded], turning: Future[Turn], cancel: Callable[[], None]) -> tuple[Loaded, Turn]:
    """The load and the turn. Once that is loaded Ctrl-C cancels this, begun or not, and takes what it has."""
    try:
        return loading.result(), turning.result()
    except KeyboardInterrupt:
        if not loading.done():
            raise
        while wait([turning], AGAIN_S).not_done:
            cancel()
    return loading.result(), turning.result()


def failed_load(path: Path, error: LoadFailed | EngineDied) -> Exception:
    """The failure with the line of the layout that is to blame, where one is."""
    if error.key is None:
        return error
    where = str(DocumentError.at(path, error.key, describe(error)))
    return CommandFailed(where, Code.WRONG if error.wanted_mib is None else Code.FAILED)


def run_json(layout: Layout, loaded: Loaded, turn: Turn) -> str:
    """The reply and its figures as one object; null where unknown."""
    timing = turn.timing
    value: dict[str, Any] = {
        "text": turn.reply,
        "prompt_tokens": timing and (timing.prompt_tokens or None),
        "tokens": timing and timing.tokens,
        "ttft_s": timing and timing.ttft_s,
        "prefill_tok_s": timing and timing.prefill_tok_s,
        "decode_tok_s": timing and timing.decode_tok_s,
        "stop_reason": turn.stop_reason,
        "split": layout.label(),
        "timed_by": timing and timing.source,
        "cards": [
            {
                "name": card.name,
                "weights_mib": card.weights_mib,
                "kv_mib": card.kv_mib,
                "compute_mib": card.compute_mib,
                "layers": card.layers,
            }
            for card in loaded.cards
        ],
    }
    if loaded.served is not None:
        value["server"] = {
            "name": loaded.served.name,
            "url": loaded.served.url,
            "total_mib": loaded.served.total_mib,
            "on_cards_mib": loaded.served.on_cards_mib,
        }
    return json_text(value, one_line=True)


def figures(layout: Layout, loaded: Loaded, turn: Turn) -> str:
    """The same for people, on a few lines."""
    timing = turn.timing
    parts = [layout.label()]
    if timing is not None:
        parts += [
            f"{rate(timing.decode_tok_s)} tok/s",
            f"first token {timing.ttft_s:.2f} s",
            f"{timing.tokens} tokens",
            f"prompt {timing.prompt_tokens or UNKNOWN}",
        ]
    parts.append(turn.stop_reason)
    lines = [" · ".join(parts), *(card_line(card) for card in loaded.cards)]
    if timing is not None and timing.source in CLOCKS:
        lines.append(CLOCKS[timing.source])
    if loaded.served is not None:
        lines.append(server_line(loaded.served))
    return "\n".join(lines)


CLOCKS: dict[TimingSource, str] = {
    "server": "timed by the server itself",
    "client": "timed here, network and all: the server tells no times",
    "pieces": "timed here, network and all, by the pieces of text that came: the server counts nothing",
}


def server_line(served: Served) -> str:
    """The server, and the memory it says the model takes: `Ollama 0.33.1 at http://…: 93 of 120 MiB on cards`."""
    where = f"{served.name} at {served.url}"
    if served.total_mib is None or served.on_cards_mib is None:
        return where
    return f"{where}: {served.on_cards_mib:.0f} of {served.total_mib:.0f} MiB on cards"


def card_line(card: CardMemory) -> str:
    """One card: `RPC0  23 layers  weights 60.3 + KV 2.1 + compute 90.0 = 152.4 MiB`."""
    layers = "" if card.layers is None else f"{card.layers} layers  "
    return (
        f"{card.name}  {layers}weights {card.weights_mib:.1f} + KV {card.kv_mib:.1f}"
        f" + compute {card.compute_mib:.1f} = {card.total_mib:.1f} MiB"
    )
