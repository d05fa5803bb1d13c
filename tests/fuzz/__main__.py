"""A coverage-guided search: `python -m tests.fuzz TARGET [--minutes N] [--corpus FOLDER]`.

Needs atheris (`pip install -e '.[fuzz]'`). An input that breaks a rule of `targets.py` ends the
search, and is left in the corpus' folder as `crash-…`, `timeout-…` or `oom-…`.
`python -m tests.fuzz TARGET FILE` runs one input again.
"""

import argparse
import importlib
import random
import sys
from pathlib import Path

NAMES = ("documents", "wire", "logs", "gguf", "streams", "runs", "journal", "screen", "import", "nvml")
CHILDS = {"gguf": ("header", "tensors"), "logs": ("loadlog", "measure", "reasons")}
"""What these look into is imported late, since it brings llama.cpp along."""
ONE_INPUT_S = 10
MEMORY_MIB = 2048
LONGEST_BYTES = 65536


def main() -> None:
    """Search until the time is over or something is found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=NAMES)
    parser.add_argument("input", nargs="?", type=Path, help="run this input and no other")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--corpus", type=Path, help="where inputs are kept; build/fuzz/TARGET")
    asked = parser.parse_args()
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed; `.venv/bin/pip install -e '.[fuzz]'` does that, on Linux")
    with atheris.instrument_imports(include=["workbench"]):
        from tests.fuzz.mutate import mutate
        from tests.fuzz.seeds import SEEDS
        from tests.fuzz.targets import TARGETS

        for module in CHILDS.get(asked.target, ()):
            importlib.import_module(f"workbench.engines.llama.child.{module}")
    if asked.input is not None:
        TARGETS[asked.target](asked.input.read_bytes())
        return
    corpus = asked.corpus or Path("build/fuzz") / asked.target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[asked.target]()):
        (corpus / f"seed-{number}").write_bytes(seed)

    def near(data: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.4:
            found: bytes = atheris.Mutate(data, most)
            return found
        return mutate(data, chance)[:most]

    options = [
        str(corpus), f"-artifact_prefix={corpus}/", f"-max_total_time={round(asked.minutes * 60)}",
        f"-timeout={ONE_INPUT_S}", f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={LONGEST_BYTES}", "-print_final_stats=1",
        "-len_control=0", "-verbosity=1",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options], TARGETS[asked.target], custom_mutator=near)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
