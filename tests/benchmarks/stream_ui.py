"""How much the screen costs while a reply streams: `python -m tests.benchmarks.stream_ui`.

A reply of prose and code comes at 400 tok/s, in a real pty of 80 × 24. The whole app, with the
settings that it gives itself over SSH, is held against a plain app with a MarkdownStream that is
written once a token, each in a process of its own, in alternating pairs. Prints JSON: the medians
of CPU seconds and of the event loop's lag (p99), the medians of their ratios (ours / plain), and
whether every token arrived, in order.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Markdown

from tests.benchmarks.terminal import run_in_pty
from workbench.app.abilities import SLOW_LINK
from workbench.app.outside import Outside
from workbench.app.panes.markdown import Answer
from workbench.app.run import spare_collector
from workbench.domain.layout import Context
from workbench.domain.text import clean
from workbench.engines.scripted import TOKEN, Script

TOK_S = 400.0
TOKENS = 4000
LAG_EVERY_S = 0.01


def reply(tokens: int) -> str:
    """Prose and code in turn, each token with a number of its own."""
    pieces = []
    for number in range(tokens):
        place = number % 400
        word = f"w{number}"
        if place == 0:
            word = f"\n\n## Part {word}\n\n"
        elif place == 250:
            word = f"\n\n```python\n{word} = 1\n"
        elif 250 < place < 349:
            word = f"{word} = {place}\n" if place % 4 == 0 else f"{word} + "
        elif place == 349:
            word = f"{word} = 0\n```\n\n"
        elif place % 60 == 59:
            word = f"{word}.\n\n"
        else:
            word = f"**{word}** " if place % 17 == 3 else f"{word} "
        pieces.append(word)
    return "".join(TOKEN.findall("".join(pieces))[:tokens])


class Lag:
    """How late the event loop wakes, sampled while it runs."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self._cpu = time.process_time()

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self.late.append(max(0.0, time.perf_counter() - due))

    def result(self, shown: str, wanted: str) -> dict[str, Any]:
        late = sorted(self.late)
        return {
            "cpu_s": time.process_time() - self._cpu,
            "lag_p99_ms": 1000 * late[int(0.99 * (len(late) - 1))],
            "complete": shown.split() == clean(wanted).split(),
        }


async def feed(text: str, take: Any) -> None:
    """Hand the reply over token by token, on time."""
    began = time.perf_counter()
    for number, token in enumerate(TOKEN.findall(text)):
        pause = began + number / TOK_S - time.perf_counter()
        if pause > 0:
            await asyncio.sleep(pause)
        await take(token)


class PlainApp(App[dict[str, Any]]):
    """A MarkdownStream, written once a token."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Markdown()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).anchor()
        self.run_worker(self._run())

    async def _run(self) -> None:
        markdown = self.query_one(Markdown)
        stream = Markdown.get_stream(markdown)
        lag = Lag()
        watching = asyncio.create_task(lag.watch())
        await feed(self._text, stream.write)
        await stream.stop()
        watching.cancel()
        self.exit(lag.result(markdown.source, self._text))


def run_plain(text: str) -> dict[str, Any] | None:
    return PlainApp(text).run()


def run_ours(text: str) -> dict[str, Any] | None:
    """The whole app: session, inbox, chat pane, on a scripted engine."""
    from tests.app.stage import LAYOUT, make_app

    first = msgspec.structs.replace(LAYOUT, context=Context(n_ctx=16384))
    app = make_app(Script(reply=text, tok_s=TOK_S), Outside(when_ready=spare_collector), first=first)
    result: dict[str, Any] = {}

    async def measure() -> None:
        while app.session.loaded is None or app.session.history[-1].probe is None:
            await asyncio.sleep(0.02)
        lag = Lag()
        watching = asyncio.create_task(lag.watch())
        app.session.send("go")
        log = app.main.chat.log_view
        while not log.turns or log.turns[-1].turn is None:
            await asyncio.sleep(0.02)
        watching.cancel()
        result.update(lag.result(log.turns[-1].query_one(Answer).text, text))
        app.exit()

    app.call_later(lambda: app.run_worker(measure()))
    app.run()
    app.session.close()
    return result


def in_pty(which: str, tokens: int, out: Path) -> dict[str, Any]:
    """Run one side in a process with a terminal of 80 × 24, read as fast as it writes."""
    env = {**os.environ, **(SLOW_LINK if which == "ours" else {})}
    command = [sys.executable, "-m", "tests.benchmarks.stream_ui", "--side", which, "--out", str(out)]
    run_in_pty([*command, "--tokens", str(tokens)], env)
    answer: dict[str, Any] = json.loads(out.read_text())
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--side", choices=["ours", "plain"])
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / f"stream-ui-{os.getpid()}.json")
    options = parser.parse_args()
    if options.side:
        run = run_ours if options.side == "ours" else run_plain
        options.out.write_text(json.dumps(run(reply(options.tokens))))
        return
    sides: dict[str, list[dict[str, Any]]] = {"ours": [], "plain": []}
    for pair in range(options.pairs):
        for which in ("ours", "plain") if pair % 2 == 0 else ("plain", "ours"):
            sides[which].append(in_pty(which, options.tokens, options.out))
    options.out.unlink(missing_ok=True)
    report: dict[str, Any] = {"pairs": options.pairs, "tokens": options.tokens, "tok_s": TOK_S}
    for figure in ("cpu_s", "lag_p99_ms"):
        for which, results in sides.items():
            report[f"{which}_{figure}"] = round(statistics.median(result[figure] for result in results), 3)
    for name, figure in (("cpu_ratio", "cpu_s"), ("lag_ratio", "lag_p99_ms")):
        ratios = [ours[figure] / plain[figure] for ours, plain in zip(sides["ours"], sides["plain"], strict=True)]
        report[name] = round(statistics.median(ratios), 3)
    report["tokens_complete"] = all(result["complete"] for result in sides["ours"])
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
