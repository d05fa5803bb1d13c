"""The speeds that are reported for OpenAI-compatible servers over the servers' own.

`python -m tests.benchmarks.served [--replies 20] [--tokens 48]` prints one JSON object. llama-cpp-python's server
tells no times, so its replies are timed here, and compared with a clock at its generator (its log counts the decoding
alone, without what goes on from one token to the next). llama-server, where WORKBENCH_TEST_LLAMA_BIN names its folder,
tells them, and its log has them too: `reported` are these, `timed_here` what would be said without them. `ratio` is
that of the means of all replies' tok/s, `median` and `worst` are of the single replies.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from tests.servers.running import llama_cpp_server
from tests.waiting import wait_until
from workbench.domain.conversation import Message, Sampling
from workbench.domain.layout import Layout
from workbench.engines import openai
from workbench.engines.engine import Filler, Request
from workbench.store.models import resolve_model

LOG_RATE = re.compile(r"(?<!prompt) eval time = .*?([\d.]+) tokens per second")
START_S = 60.0


@contextmanager
def serving(command: Sequence[str], ready: str, log: Path) -> Iterator[None]:
    """The server, once its log says that it serves."""
    env = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # threads that spin would take the cores from this side
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
    try:
        wait_until(lambda: ready in log.read_text() or process.poll() is not None, START_S)
        if process.poll() is not None:
            sys.exit(f"{command[0]} did not start:\n{log.read_text()[-1000:]}")
        yield
    finally:
        process.terminate()
        process.wait(10)


def ratios(url: str, own: Callable[[], Sequence[float]], replies: int, tokens: int) -> dict[str, float]:
    """The reported tok/s of so many replies over the server's `own`, which grow with each."""
    layout = Layout(name="there", engine="openai", model="tiny", url=url)
    engine = openai.OpenAIEngine.open(layout)
    engine.load(lambda _: None)
    before = len(own())
    ours: list[float] = []
    for number in range(replies):
        request = Request(
            messages=(Message("user", f"No. {number}. Write a long story about a river."),),
            sampling=Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True),
            filler=Filler(salt=number),
        )
        ours.append(engine.chat(request, lambda _: None).timing.decode_tok_s or 0.0)
    wait_until(lambda: len(own()) == before + replies)
    theirs = own()[before:]
    each = [our / their for our, their in zip(ours, theirs, strict=True)]
    worst = max(each, key=lambda ratio: abs(ratio - 1))
    return {
        "ratio": round(statistics.fmean(ours) / statistics.fmean(theirs), 4),
        "median": round(statistics.median(each), 4),
        "worst": round(worst, 4),
        "tok_s": round(statistics.fmean(ours), 1),
    }


def clock(url: str) -> list[float]:
    """The rates at the generator of llama-cpp-python's server."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/clock", timeout=10) as answer:
        rates: list[float] = json.load(answer)
    return rates


def llama_server(folder: str, model: str, log: Path, replies: int, tokens: int) -> dict[str, dict[str, float]]:
    """What is reported of its replies, and what would be without its word, over its log."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = [f"{folder}/llama-server", "--model", model, "--alias", "tiny", "--ctx-size", "1024", "--port", str(port)]

    def own() -> list[float]:
        return [float(rate) for rate in LOG_RATE.findall(log.read_text())]

    with serving(command, "listening on", log):
        url = f"http://127.0.0.1:{port}"
        reported = ratios(url, own, replies, tokens)
        with mock.patch.object(openai, "server_timing", return_value=None):
            here = ratios(url, own, replies, tokens)
    return {"reported": reported, "timed_here": here}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replies", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    model = str(resolve_model("demo:smollm2"))
    found: dict[str, object] = {"replies": given.replies, "tokens": given.tokens}
    folder = os.environ.get("WORKBENCH_TEST_LLAMA_BIN")
    with llama_cpp_server(model) as url:
        found["llama_cpp_python"] = {
            "timed_here": ratios(url, lambda: clock(url), given.replies, given.tokens)
        }
    if folder is not None:
        with TemporaryDirectory() as place:
            found["llama_server"] = llama_server(folder, model, Path(place) / "log", given.replies, given.tokens)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
