"""What only GPUs of their own can show: whose turn it is, what goes over the link, and what the link is worth."""

from collections.abc import Iterator

import msgspec

from tests.benchmarks.gpu import smi
from tests.benchmarks.gpu.parts import ab
from tests.benchmarks.gpu.room import Figure, Room
from tests.benchmarks.gpu.served import bench_on, known_cards, lacks_two, tokens_for
from tests.gpu.bench import Bench
from workbench.domain.card import Card, CardKind
from workbench.lab.cards import find_topology

PART = "links"
SHARE = "part of the work of the first card less that of its weights"
TRAFFIC = "NVLink traffic of the first card"
JOINED = "pairs joined as nvidia-smi says"
SWITCHES = (
    ("P2P of the cards on over off, tensor mode", "GGML_CUDA_P2P", None, "1"),
    ("NCCL's P2P on over off, tensor mode", "NCCL_P2P_DISABLE", "1", None),
)
"""What is said of it, its variable, and what that is for A and for B."""
TRAFFIC_S = 7.0
"""How long the reply is whose traffic is read."""


def measure(room: Room) -> Iterator[Figure]:
    """Duty and traffic, then A/Bs of the switches of the link."""
    lack = lacks_two(room)
    if lack:
        yield from (Figure(part=PART, what=what, note=lack) for what in (SHARE, TRAFFIC, JOINED))
        yield from (Figure(part=PART, what="decode", case=case, note=lack) for case, *_ in SWITCHES)
        return
    uneven = room.layout("8b", room.split(shares=room.uneven()), n_ctx=4096)
    known = known_cards(room, uneven)
    yield _joined(known)
    with bench_on(uneven, known) as bench:
        yield _share(bench)
    tensor = room.layout("8b", room.split("tensor"), n_ctx=4096)
    with bench_on(tensor, known) as bench:
        yield _traffic(bench)
    effort = msgspec.structs.replace(ab.Effort.of(room), repeats=4, bench_blocks=1)
    for case, variable, a, b in SWITCHES:
        arms = [
            msgspec.structs.replace(ab.named(tensor, name), env={**room.env, variable: value})
            for name, value in (("off", a), ("on", b))
        ]
        yield from ab.compared(room, effort, PART, case, *arms)


def _share(bench: Bench) -> Figure:
    bench.reply(64)
    duty = bench.reply(1200)
    shares = {card.name: {"share": card.share, "of weights": card.ideal, "busy": card.busy} for card in duty.cards}
    first = duty.cards[0]
    apart = None if first.share is None or first.ideal is None else round(first.share - first.ideal, 3)
    return Figure(part=PART, what=SHARE, case="8b layer 3:1", value=apart, detail={"cards": shares, "idle": duty.idle})


def _traffic(bench: Bench) -> Figure:
    tokens = tokens_for(bench, TRAFFIC_S)
    since = len(bench.snapshots)
    bench.reply(tokens)
    name = bench.cards[0].name
    links = [card.nvlink for snapshot in bench.snapshots[since:] for card in snapshot.cards if card.name == name]
    sent = [link.sent_mib_s for link in links if link is not None and link.sent_mib_s is not None]
    if not any(links):
        return Figure(part=PART, what=TRAFFIC, case="8b tensor", note="the cards have no NVLink")
    most = max(sent, default=0.0)
    return Figure(part=PART, what=TRAFFIC, case="8b tensor", value=round(most, 1), unit="MiB/s", limit="> 0",
                  holds=most > 0, detail={"readings": sent})  # fmt: skip


def _joined(known: tuple[Card, ...]) -> Figure:
    topology, said = find_topology(known), smi.matrix()
    rows = {}
    for row, one in enumerate(known):
        for column in range(row + 1, len(known)):
            cell, other = topology.cells[row][column], known[column]
            if one.kind is CardKind.CUDA and cell is not None and None not in (one.smi_index, other.smi_index):
                low, high = sorted((one.smi_index or 0, other.smi_index or 0))
                rows[f"{one.name}–{other.name}"] = (cell.joint, said.get((low, high)))
    same = sum(ours == theirs for ours, theirs in rows.values())
    return Figure(part=PART, what=JOINED, value=same, limit=f"all {len(rows)}", holds=bool(rows) and same == len(rows),
                  detail={"pairs": rows})  # fmt: skip
