"""What the meters cost, and whether what they say is so: by the counters read by hand, and by nvidia-smi."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu import smi
from tests.benchmarks.gpu.engines import opened
from tests.benchmarks.gpu.room import Figure, Room
from tests.benchmarks.gpu.served import bench_on, known_cards, tokens_for
from tests.benchmarks.meters import decode_ratio, decode_timing
from tests.gpu.bench import Bench, core_share, energy_j
from tests.waiting import wait_until
from workbench.domain.card import Card
from workbench.domain.comparison import compare
from workbench.domain.layout import Layout
from workbench.domain.samples import ORDERS, Planned, Sample

PART = "meters"
NO_GPU = "not measured: a rehearsal without a GPU"
TOKENS, LONG = 512, 1280
"""Of replies in turn on one worker, and of the one reply of each load."""
CORE_SHARE, EIGHT = 0.03, 8
ENERGY_S, SMI_S = 4.5, 7.0
"""How long the replies are of which the energy is counted, and beside which nvidia-smi runs."""
BEYOND = {"used_mib": 2.0, "power_w": 15.0, "sm_clock_mhz": 30.0, "temperature_c": 1.0}
"""How far a reading may lie outside of what nvidia-smi says within a second: a step or two of each figure."""
UNITS = {"used_mib": "MiB", "power_w": "W", "sm_clock_mhz": "MHz", "temperature_c": "°C"}


def measure(room: Room) -> Iterator[Figure]:
    """The overhead first, then one session with its meters."""
    layout = room.layout("8b", n_ctx=4096)
    known = known_cards(room, layout)
    yield _interleaved(layout, 3 if room.quick else 8, 32 if room.virtual else TOKENS)
    yield _fresh(layout, known, 1 if room.quick else 3, 32 if room.virtual else LONG)
    yield _core(known, 4.0 if room.quick else 20.0)
    yield from _serving(room, layout, known)


def _interleaved(layout: Layout, pairs: int, tokens: int) -> Figure:
    found = decode_ratio(layout, pairs, tokens)
    case = f"8b {layout.split.label()}, alternating on one worker"
    return Figure.at_least(found["decode_ratio"], 0.995, part=PART, what="decode with meters over without", case=case,
                           detail=found)  # fmt: skip


def _fresh(layout: Layout, known: tuple[Card, ...], blocks: int, tokens: int) -> Figure:
    """The same by blocks of four loads, judged as an A/B is: without the meters is A."""
    samples: list[Sample] = []
    for block in range(blocks):
        for slot, arm in enumerate(ORDERS[block % 2]):
            with opened(layout) as (engine, loaded):
                decode_timing(engine, loaded, known, -1, 32, metered=False)
                salt = block * 2 + slot // 2
                timing = decode_timing(engine, loaded, known, salt, tokens, metered=arm == "B")
                planned = Planned(block=block, slot=slot, arm=arm, prompt="rivers", repeat=0, salt=salt)
                load = len(ORDERS[0]) * block + slot
                samples.append(Sample(planned=planned, load=load, at=time.time(), split="", timing=timing))
    effect = next(effect for effect in compare(samples) if effect.metric == "decode")
    most = effect.high if effect.high is not None else effect.ratio
    assert effect.ratio is not None
    interval = "" if effect.low is None else f"95 % interval {effect.low:.4f} to {effect.high:.4f}, {effect.verdict}"
    return Figure(
        part=PART,
        what="decode with meters over without",
        case=f"8b {layout.split.label()}, fresh loads, {blocks} blocks",
        value=round(effect.ratio, 4),
        limit="≥ 0.995, within its interval",
        holds=most is not None and most >= 0.995,
        note=interval,
        detail={"by_block": effect.by_block, "floor": effect.floor, "low": effect.low, "high": effect.high},
    )


def _core(known: tuple[Card, ...], seconds: float) -> Figure:
    about: dict[str, Any] = {"part": PART, "what": f"part of a core that reading {EIGHT} cards takes"}
    if not known:
        return Figure(note=NO_GPU, **about)
    count = len({card.pci_bus_id for card in known})
    host, whole = core_share((), seconds), core_share(known, seconds)
    each = max(0.0, whole - host) / count
    detail = {"host": round(host, 5), "each_gpu": round(each, 5), "gpus": count}
    case = f"host and {EIGHT} times what one of {count} takes"
    return Figure.at_most(round(host + EIGHT * each, 4), CORE_SHARE, case=case, detail=detail, **about)


def _serving(room: Room, layout: Layout, known: tuple[Card, ...]) -> Iterator[Figure]:
    """What needs a session: joules, whose memory it is, and nvidia-smi beside a reply."""
    with bench_on(layout, known) as bench:
        yield _joules(bench, known, tokens_for(bench, 2.0 if room.virtual else ENERGY_S))
        yield _owners(bench, layout)
        yield from _beside_smi(room, bench)


def _joules(bench: Bench, known: tuple[Card, ...], tokens: int) -> Figure:
    about: dict[str, Any] = {"part": PART, "what": "joules a token against the counter read by hand, relative error"}
    before = energy_j(known) if known else 0.0
    duty = bench.reply(tokens)
    if not known:
        return Figure(note=NO_GPU, **about)
    by_hand = (energy_j(known) - before) / duty.tokens
    told = duty.per_token(duty.joules)
    detail = {"told": told, "by_hand": by_hand, "tokens": duty.tokens, "seconds": duty.seconds,
              "by_card": {card.name: duty.per_token(card.joules) for card in duty.cards}}  # fmt: skip
    if told is None:
        return Figure(note="the meters told no energy", holds=False, detail=detail, **about)
    case = f"{duty.tokens} tokens in {duty.seconds:.1f} s, {told:.2f} J a token"
    return Figure.at_most(round(abs(told / by_hand - 1), 4), 0.05, case=case, detail=detail, **about)


def _owners(bench: Bench, layout: Layout) -> Figure:
    """Weights, KV, compute and the rest against what is used, on each card."""
    loaded = bench.session.loaded
    assert loaded is not None
    off, detail = 0.0, dict[str, dict[str, float]]()
    for memory in loaded.cards:
        used, owners = bench.card(memory.name).used_mib, bench.owners(memory.name)
        assert used is not None
        off = max(off, abs(sum(owner.mib for owner in owners) - used))
        detail[memory.name] = {"used": used, **{owner.kind: round(owner.mib, 1) for owner in owners}}
    case = f"8b {layout.split.label()}"
    return Figure.at_most(round(off, 2), 1.0, part=PART, what="sum of the owners of memory against what is used",
                          case=case, unit="MiB", detail=detail)  # fmt: skip


def _beside_smi(room: Room, bench: Bench) -> Iterator[Figure]:
    """`workbench cards --watch` and nvidia-smi write down the same seconds, in which a reply is made."""
    ours_file, theirs_file = room.out / "cards.jsonl", room.out / "nvidia-smi.csv"
    tokens = tokens_for(bench, 2.0 if room.virtual else SMI_S)
    with _watched(ours_file), nullcontext() if room.virtual else smi.sampling(theirs_file):
        wait_until(lambda: ours_file.read_text().count("\n") > 1)
        bench.reply(tokens)
        count = ours_file.read_text().count("\n")
        wait_until(lambda: ours_file.read_text().count("\n") > count + 2)
    ours = smi.read_ours(ours_file.read_text())
    theirs = [] if room.virtual else smi.read_smi(theirs_file.read_text())
    for name, beyond in BEYOND.items():
        found = smi.agreement(ours, theirs, name)
        about: dict[str, Any] = {"part": PART, "what": f"{smi.FIGURES[name]} outside of nvidia-smi's within a second",
                                 "unit": UNITS[name]}  # fmt: skip
        if room.virtual:
            yield Figure(note=NO_GPU, **about)
        elif found is None:
            yield Figure(note="nothing to compare", holds=False, **about)
        else:
            case = f"{found.samples} samples; nvidia-smi's own vary by up to {found.spread:g}"
            detail = {"apart_from_the_nearest": found.apart, "spread": found.spread}
            yield Figure.at_most(found.beyond, beyond, case=case, detail=detail, **about)
    yield _watched_owners(room, ours_file)


def _watched_owners(room: Room, ours_file: Path) -> Figure:
    """The owners of the command's samples, whose model is another process to it."""
    what = "sum of the owners in `cards --watch --json` against what is used"
    rows = smi.owner_sums(ours_file.read_text())
    if room.virtual:
        return Figure(part=PART, what=what, note=NO_GPU)
    off = max((abs(used - owned) for used, owned in rows), default=None)
    if off is None:
        return Figure(part=PART, what=what, note="no sample has owners", holds=False)
    return Figure.at_most(round(off, 2), 1.0, part=PART, what=what, case=f"{len(rows)} samples", unit="MiB")


@contextmanager
def _watched(file: Path) -> Iterator[None]:
    """`workbench cards --watch` writes to a file meanwhile."""
    with file.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "workbench", "cards", "--json", "--watch", "1"],
            stdout=output,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()
