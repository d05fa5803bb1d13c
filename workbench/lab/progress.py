"""What a run tells its listener, from its own thread."""

from pathlib import Path

import msgspec

from workbench.domain.outcome import Outcome
from workbench.domain.samples import Arm, LoadRecord, Sample


class RunBegan(msgspec.Struct, frozen=True, kw_only=True):
    """The run is on: `done` of `total` samples are there from before."""

    folder: Path
    done: int
    total: int


class LoadBegan(msgspec.Struct, frozen=True, kw_only=True):
    """An arm is being loaded, for a block (from 0)."""

    arm: Arm
    split: str
    block: int


class LoadMoved(msgspec.Struct, frozen=True):
    """The load goes on: 0 … 1, and what is being done."""

    fraction: float
    stage: str


class LoadEnded(msgspec.Struct, frozen=True):
    """An arm is loaded, or does not load."""

    load: LoadRecord


class SampleTaken(msgspec.Struct, frozen=True, kw_only=True):
    """One more sample is in the log. `left_s` is about how long the rest takes, None if unknown."""

    sample: Sample
    done: int
    total: int
    left_s: float | None


class BlockDone(msgspec.Struct, frozen=True):
    """A block is whole: the result so far, with its effects and intervals."""

    block: int
    outcome: Outcome


class RunEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The run is over, or was cancelled: the result, and where its record is."""

    outcome: Outcome
    folder: Path
    cancelled: bool


class RunBroke(msgspec.Struct, frozen=True):
    """The run cannot go on; what was taken is in its folder."""

    message: str


RunEvent = RunBegan | LoadBegan | LoadMoved | LoadEnded | SampleTaken | BlockDone | RunEnded | RunBroke
