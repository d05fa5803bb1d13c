import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Workbench = Callable[..., "subprocess.CompletedProcess[str]"]

LAYOUT = """\
name: small
model: demo:smollm2
split:
  layers: [20, 11]
  cards: {virtual: [600MiB, 600MiB]}
context: {n_ctx: 512}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `layouts/small.yaml`."""
    (tmp_path / "layouts").mkdir()
    (tmp_path / "layouts" / "small.yaml").write_text(LAYOUT)
    return tmp_path


@pytest.fixture
def workbench(folder: Path) -> Workbench:
    """Runs the command in `folder` without a terminal."""

    def run(*args: str, stdin: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "workbench", *args],
            cwd=folder, input=stdin, capture_output=True, text=True, env={**os.environ, **env}, timeout=120,
        )  # fmt: skip

    return run
