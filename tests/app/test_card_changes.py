"""What a change did to the memory of the cards, in a line."""

import pytest

from workbench.app.panes.change import card_changes
from workbench.domain.memory import CardMemory


def cards(*mib: float) -> list[CardMemory]:
    return [
        CardMemory(name=f"CUDA{number}", weights_mib=weights, kv_mib=0, compute_mib=0)
        for number, weights in enumerate(mib)
    ]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((100, 100), (130, 70), "CUDA0 +30 MiB, CUDA1 −30 MiB"),
        ((100, 100, 100), (100, 130, 70), "CUDA1 +30 MiB, CUDA2 −30 MiB"),
        ((50,) * 6, (51, 40, 50, 70, 48, 41), "CUDA1 −10 MiB, CUDA3 +20 MiB, CUDA4 −2 MiB, CUDA5 −9 MiB and 1 more"),
        ((100,), (100, 2048), "CUDA1 +2.0 GiB"),
        ((100, 100), (100.2, 100), "the same memory on every card"),
        ((), (), ""),
    ],
)  # fmt: skip
def test_cards_that_changed_and_of_many_those_that_changed_most(
    before: tuple[float, ...], after: tuple[float, ...], said: str
) -> None:
    assert card_changes(cards(*before), cards(*after)) == said
