"""What replaying costs: a replay over `workbench run`, by pairs of fresh loads."""

from collections.abc import Iterator

from tests.benchmarks.gpu.room import Figure, Room
from tests.benchmarks.replay_cost import replay_cost


def measure(room: Room) -> Iterator[Figure]:
    """The smaller model in layer mode."""
    layout = room.layout("8b", n_ctx=2048)
    found = replay_cost(layout, 2 if room.quick else 12, 16 if room.virtual else 512)
    case = f"8b {layout.split.label()}, {found['tokens']} tokens, {found['pairs']} pairs of fresh loads"
    note = "95 % interval {:.4f} to {:.4f}".format(*found["interval"])
    yield Figure.at_least(found["ratio"], 0.99, part="replay", what="decode in a replay over `workbench run`",
                          case=case, note=note, detail=found)  # fmt: skip
