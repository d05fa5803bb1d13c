"""The worker against llama-bench on real cards: decode (tg64) and prefill (pp512), alternating in one run.

`python -m tests.benchmarks.parity --model 8b.gguf --cards CUDA0,CUDA1 [--env GGML_CUDA_DEVICES=2]
[--llama-bench COMMAND] [--splits none,layer:1/1,layer:3/1,tensor:1/1] [--rounds 3]` prints a
JSON object a line, one a split. COMMAND is run by bash, which may know it as a function.
"""

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from workbench.domain.conversation import Sampling
from workbench.domain.layout import Context, Layout
from workbench.domain.split import MODES, Split, SplitMode
from workbench.domain.timing import Timing
from workbench.engines.engine import Engine, Filler, Request
from workbench.lab.kit import RealKit
from workbench.store.places import HOME_VARIABLE

PREFILL, DECODE, REPEATS = 512, 64, 5


def llama_bench(command: str, model: Path, split: Split, env: dict[str, str]) -> dict[str, list[float]]:
    """Tokens per second of each repeat, by `prefill` and `decode`."""
    assert not isinstance(split.tensor_split, str)
    shares = "/".join(f"{share:g}" for share in split.tensor_split)
    options = f"-m {model} -ngl 99 -fa 1 -sm {split.split_mode} -p {PREFILL} -n {DECODE} -r {REPEATS} -o json"
    if split.split_mode != "none":
        options += f" -ts {shares}"
    done = subprocess.run(
        ["bash", "-c", f"{command} {options}"], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"llama-bench failed: {done.stderr[-2000:]}")
    rows = json.loads(done.stdout)
    return {"decode" if row["n_gen"] else "prefill": row["samples_ts"] for row in rows}


def worker(engine: Engine) -> dict[str, list[float]]:
    """The same of the worker: a warm-up, then repeats of one kind in a row, each on an empty context."""

    def ask(prompt_tokens: int, max_tokens: int, salt: int) -> Timing:
        filler = Filler(prompt_tokens=prompt_tokens, salt=salt)
        sampling = Sampling(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        return engine.chat(Request(messages=(), sampling=sampling, filler=filler), lambda text: None).timing

    prefills = [ask(PREFILL, 1, salt).prefill_tok_s or 0.0 for salt in range(REPEATS + 1)]
    decodes = [ask(1, DECODE + 1, salt).decode_tok_s or 0.0 for salt in range(REPEATS + 1)]
    return {"prefill": prefills[1:], "decode": decodes[1:]}


def compare(layout: Layout, command: str, rounds: int) -> dict[str, object]:
    theirs: dict[str, list[float]] = {"prefill": [], "decode": []}
    ours: dict[str, list[float]] = {"prefill": [], "decode": []}
    env = {name: value for name, value in layout.env.items() if value is not None}
    for turn in range(rounds):
        for who in ("theirs", "ours") if turn % 2 == 0 else ("ours", "theirs"):
            if who == "theirs":
                for kind, rates in llama_bench(command, Path(layout.model), layout.split, env).items():
                    theirs[kind] += rates
                continue
            kit = RealKit()
            engine = kit.open_engine(layout, lambda error: None)
            kit.close()
            try:
                engine.load(lambda progress: None)
                for kind, rates in worker(engine).items():
                    ours[kind] += rates
            finally:
                engine.close()
    row: dict[str, object] = {"model": Path(layout.model).name, "split": layout.split.label(), "rounds": rounds}
    for kind in ("decode", "prefill"):
        mine, other = statistics.median(ours[kind]), statistics.median(theirs[kind])
        row[kind] = {
            "workbench": round(mine, 1),
            "llama_bench": round(other, 1),
            "ratio": round(mine / other, 4),
            "spread_workbench": [round(min(ours[kind]), 1), round(max(ours[kind]), 1)],
            "spread_llama_bench": [round(min(theirs[kind]), 1), round(max(theirs[kind]), 1)],
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cards", default="CUDA0,CUDA1")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--llama-bench", default="llama-bench")
    parser.add_argument("--splits", default="none,layer:1/1,tensor:1/1")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    env: dict[str, str | None] = dict(pair.split("=", 1) for pair in arguments.env)
    with TemporaryDirectory() as home:
        os.environ[HOME_VARIABLE] = home
        for text in arguments.splits.split(","):
            mode, _, shares = text.partition(":")
            split = Split(
                split_mode=_mode(mode),
                tensor_split=tuple(float(share) for share in shares.split("/")) if shares else (1.0,),
                cards=tuple(arguments.cards.split(",")),
            )
            layout = Layout(
                name="parity",
                model=arguments.model,
                split=split,
                context=Context(n_ctx=1024, flash_attn=True),
                env=env,
            )
            print(json.dumps(compare(layout, arguments.llama_bench, arguments.rounds)), flush=True)


def _mode(text: str) -> SplitMode:
    for mode in MODES:
        if text == mode:
            return mode
    raise SystemExit(f"there is no split mode {text}")


if __name__ == "__main__":
    main()
