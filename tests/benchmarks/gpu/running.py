"""One part of the measurements in a process of its own: `python -m tests.benchmarks.gpu.running MODULE FIGURES`.

The room comes on stdin. Each figure is appended to FIGURES and printed as soon as it is known.
Whatever ends the part, nothing that it started goes on.
"""

import contextlib
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import psutil

from tests.benchmarks.gpu import table
from tests.benchmarks.gpu.room import Figure, Measure, Room
from workbench.store.places import HOME_VARIABLE

PARTS_PACKAGE = "tests.benchmarks.gpu.parts"
FAILED = 1
"""The code of a part that said itself why it failed."""
GRACE_S = 3.0
"""So long what a part started may take to end by itself once the part is gone."""


def there(part: str) -> bool:
    """Whether the part is written."""
    return importlib.util.find_spec(f"{PARTS_PACKAGE}.{part}") is not None


def run(part: str, room: Room, limit_s: float, package: str = PARTS_PACKAGE, grace_s: float = GRACE_S) -> None:
    """Measure a part; its figures are in `room.out` then, the last of them saying how it ended."""
    figures, begun = room.out / table.FIGURES, time.monotonic()
    with TemporaryDirectory(ignore_cleanup_errors=True) as home, (room.out / f"{part}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.gpu.running", f"{package}.{part}", str(figures)],
            stdin=subprocess.PIPE,
            stderr=log,
            env={**os.environ, HOME_VARIABLE: home},
            start_new_session=True,
        )
        how = ""
        try:
            process.communicate(encode(room), timeout=limit_s)
            if process.returncode not in (0, FAILED):
                how = f"failed: ended with code {process.returncode}, see {part}.log"
        except subprocess.TimeoutExpired:
            how = f"cut after {limit_s:.0f} s: what was known by then stands here"
        except BaseException:
            how = "cut from outside: what was known by then stands here"
            raise
        finally:
            kill_group(process)
            left = end_all(home, grace_s)
            if how or left:
                how = how or f"{left} processes were left over and were ended"
                keep(figures, ended(part, time.monotonic() - begun, how))


def ended(part: str, seconds: float, how: str = "") -> Figure:
    """How a part ended, which `how` says unless it simply came to its end."""
    return Figure(
        part=part, what=table.TOOK, value=round(seconds, 1), unit="s", note=how, holds=False if how else None
    )


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def left_over(home: str) -> list[psutil.Process]:
    """Processes that carry this home: workers have sessions of their own, and outlive a group."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(HOME_VARIABLE) == home and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_all(home: str, grace_s: float) -> int:
    """End what is left of a part; how many did not end by themselves once it was gone."""
    alive = _wait(home, grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    _wait(home, GRACE_S)
    return len(alive)


def _wait(home: str, limit_s: float) -> list[psutil.Process]:
    """What is left when the time is over, or nothing."""
    deadline = time.monotonic() + limit_s
    while (left := left_over(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def encode(room: Room) -> bytes:
    """For stdin; paths as text."""
    return msgspec.json.encode(room, enc_hook=str)


def decode(data: bytes) -> Room:
    """The room of `encode`."""
    return msgspec.json.decode(data, type=Room, dec_hook=lambda kind, text: kind(text))


def measure(module: str, room: Room, figures: Path) -> int:
    """In the part's process: take its figures one by one; the exit code."""
    part, begun = module.rpartition(".")[2], time.monotonic()
    try:
        take: Measure = importlib.import_module(module).measure
        for figure in take(room):
            keep(figures, figure)
    except Exception as error:
        traceback.print_exc()
        reason = table.without_folders(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
        keep(figures, ended(part, time.monotonic() - begun, f"failed: {reason}"))
        return FAILED
    keep(figures, ended(part, time.monotonic() - begun))
    return 0


def keep(figures: Path, figure: Figure) -> None:
    """To the file and to whoever watches."""
    table.append(figures, figure)
    holds = {True: "holds", False: "DOES NOT HOLD", None: ""}[figure.holds]
    words: Sequence[Any] = (figure.part, figure.what, figure.case, table.said(figure), figure.limit, holds, figure.note)
    with contextlib.suppress(BrokenPipeError):  # whoever watched has gone, and the file has it
        print(" · ".join(word for word in words if word), flush=True)


if __name__ == "__main__":
    sys.exit(measure(sys.argv[1], decode(sys.stdin.buffer.read()), Path(sys.argv[2])))
