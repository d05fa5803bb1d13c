"""llama-bench on a layout's cards: the reference."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.domain.layout import Layout
from workbench.domain.split import Split


def rows(command: str, layout: Layout, tests: str, repeats: int) -> list[dict[str, Any]]:
    """What it prints, a row a test; `tests` are its options, `-p 512 -n 64`.

    `command` is run by bash, which may know it as a function. RuntimeError with the end of what
    llama-bench said, where it failed.
    """
    done = subprocess.run(
        ["bash", "-c", f"{command} {_options(Path(layout.model), layout.split)} {tests} -r {repeats} -o json"],
        env=_environment(layout.env),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"llama-bench failed: {done.stderr.strip()[-300:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _options(model: Path, split: Split) -> str:
    options = f"-m {model} -ngl 99 -fa 1 -sm {split.split_mode}"
    if split.split_mode != "none" and not isinstance(split.tensor_split, str):
        options += " -ts " + "/".join(f"{share:g}" for share in split.tensor_split)
    return options


def _environment(env: Mapping[str, str | None]) -> dict[str, str]:
    """As a worker has it: cards in the order of their buses."""
    wanted = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **env}
    return {name: value for name, value in wanted.items() if value is not None}
