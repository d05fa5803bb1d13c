"""Whether anything stays behind: on the cards and in the screen's process, after many re-splits and at the end."""

import time
from collections.abc import Iterator

from tests.benchmarks.gpu.engines import Gpus
from tests.benchmarks.gpu.room import Figure, Room
from tests.benchmarks.gpu.screen import Resplits, on_screen
from workbench.lab.kit import RealKit

COUNT, QUICK_COUNT, EARLY = 20, 6, 2
GPU_MIB, RESIDENT_MIB = 8.0, 16.0
BACK_S = 5.0


def measure(room: Room) -> Iterator[Figure]:
    """The smaller model: what a re-split leaves behind is no matter of size."""
    model = "8b" if "8b" in room.models else next(iter(room.models))
    count = QUICK_COUNT if room.quick or room.virtual else COUNT
    layout = room.layout(model, room.split("layer"))
    kit = RealKit(spare=False)
    gpus = Gpus(layout, kit)
    kit.close()
    before = sum(gpus.used_mib().values())
    seen = on_screen(layout, Resplits(there=room.split("layer", room.uneven()), count=count))
    early = next(held for held in seen.held if held.resplits == EARLY)
    late = seen.held[-1]
    case = f"{model}, {count} re-splits over those of {EARLY}"
    rows = [
        {"resplits": held.resplits, "gpus": held.on_gpus_mib, "resident": round(held.resident_mib, 1)}
        for held in seen.held
    ]
    if early.on_gpus_mib is None or late.on_gpus_mib is None:
        yield Figure(part="leak", what="memory of the cards", case=case, note="not measured: no GPU")
    else:
        grown = late.on_gpus_mib - early.on_gpus_mib
        note = f"{early.on_gpus_mib:.0f} → {late.on_gpus_mib:.0f} MiB"
        yield Figure.at_most(
            round(grown, 1), GPU_MIB, part="leak", what="memory of the cards", case=case, unit="MiB", note=note,
            detail={"rows": rows},
        )  # fmt: skip
        yield _back(gpus, before, model)
    grown = late.resident_mib - early.resident_mib
    note = f"{early.resident_mib:.0f} → {late.resident_mib:.0f} MiB"
    yield Figure.at_most(
        round(grown, 1), RESIDENT_MIB, part="leak", what="resident memory of the screen's process", case=case,
        unit="MiB", note=note, detail={"rows": rows},
    )  # fmt: skip


def _back(gpus: Gpus, before: float, model: str) -> Figure:
    """What is held after the screen has ended, against before it began; the driver may take a moment."""
    begun = time.monotonic()
    while (more := sum(gpus.used_mib().values()) - before) > GPU_MIB and time.monotonic() - begun < BACK_S:
        time.sleep(0.05)
    seconds = time.monotonic() - begun
    return Figure.at_most(
        round(more, 1), GPU_MIB, part="leak", what="memory of the cards after the end, over before", case=model,
        unit="MiB", note=f"read {seconds:.1f} s after the end",
    )  # fmt: skip
