"""What is used has owners, and they add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.domain.memory import CardMemory
from workbench.domain.owners import Holder, Owner, divide

SIZES = st.floats(min_value=0, max_value=200_000)
MEMORY = CardMemory(name="CUDA0", weights_mib=20_000, kv_mib=1_000, compute_mib=300)


def parts(owners: tuple[Owner, ...]) -> list[tuple[str, float]]:
    return [(owner.kind, owner.mib) for owner in owners]


@given(
    used=SIZES,
    memory=st.none() | st.builds(CardMemory, name=st.just("x"), weights_mib=SIZES, kv_mib=SIZES, compute_mib=SIZES),
    holders=st.lists(st.builds(Holder, pid=st.integers(1, 5), mib=st.none() | SIZES), max_size=6),
    ours=st.sets(st.integers(1, 5)),
)
def test_the_owners_add_up_to_what_is_used_and_none_is_negative(
    used: float, memory: CardMemory | None, holders: list[Holder], ours: set[int]
) -> None:
    owners = divide(used, memory, holders, ours)
    assert sum(owner.mib for owner in owners) == pytest.approx(used, abs=1e-6)
    assert all(owner.mib > 0 for owner in owners)


def test_what_our_process_holds_beyond_the_model_is_its_context() -> None:
    holders = [Holder(pid=7, name="workbench worker", mib=21_900), Holder(pid=8, name="jupyter", mib=500)]
    assert parts(divide(22_500, MEMORY, holders, {7})) == [
        ("weights", 20_000), ("kv", 1_000), ("compute", 300), ("context", 600), ("process", 500), ("unknown", 100),
    ]  # fmt: skip
    assert divide(22_500, MEMORY, holders, {7})[4] == Owner(kind="process", mib=500, pid=8, name="jupyter")


def test_where_the_pids_are_the_hosts_the_smallest_process_that_could_hold_the_model_is_ours() -> None:
    holders = [Holder(pid=901, mib=60_000), Holder(pid=902, mib=21_900), Holder(pid=903, mib=40)]
    owners = divide(82_000, MEMORY, holders, {7})
    assert ("context", 600) in parts(owners)
    assert [owner.pid for owner in owners if owner.kind == "process"] == [901, 903]


def test_without_a_model_every_process_is_another() -> None:
    assert parts(divide(500, None, [Holder(pid=8, mib=400)])) == [("process", 400), ("unknown", 100)]
    assert parts(divide(0, None)) == []


def test_a_process_that_does_not_tell_takes_nothing() -> None:
    assert parts(divide(500, None, [Holder(pid=8)])) == [("unknown", 500)]
