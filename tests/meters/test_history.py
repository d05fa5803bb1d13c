import pytest

from workbench.meters.history import History, Ring
from workbench.meters.sample import CardSample, HostSample, NvLink, Pcie, Snapshot

HOST = HostSample(cpu_percent=None, total_mib=1, available_mib=1)


def snapshot(at: float, *cards: CardSample) -> Snapshot:
    return Snapshot(at=at, cards=cards, host=HOST)


def test_a_ring_forgets_the_oldest_and_knows_what_is_unknown() -> None:
    ring = Ring(3)
    assert ring.tail(5) == ()
    for at, value in enumerate([1.0, None, 3.0, 4.0]):
        ring.append(float(at), value)
    assert ring.tail(5) == (None, 3.0, 4.0)
    assert ring.tail(1) == (4.0,)
    assert ring.since(2) == [(2.0, 3.0), (3.0, 4.0)]


def test_ten_minutes_of_each_cards_figures() -> None:
    history = History()
    for tick in range(3000):
        history.add(snapshot(tick / 2, CardSample(name="CUDA0", utilisation=float(tick % 100), power_w=400.0)))
    kept = history.since("CUDA0", "utilisation", 600)
    assert len(kept) == 1200
    assert kept[0][0] == pytest.approx(-599.5)
    assert kept[-1] == (0.0, 99.0)
    assert history.tail("CUDA0", "power_w", 2) == (400.0, 400.0)
    assert history.tail("CUDA0", "temperature_c", 2) == (None, None)
    assert history.tail("CUDA9", "power_w", 2) == ()


def test_links_count_both_ways_and_unknown_is_not_zero() -> None:
    history = History()
    history.add(
        snapshot(
            1.0,
            CardSample(name="a", pcie=Pcie(sent_mib_s=3, received_mib_s=4)),
            CardSample(name="b", nvlink=NvLink(links=1, sent_mib_s=5, received_mib_s=None)),
        )
    )
    assert history.tail("a", "pcie_mib_s", 1) == (7.0,)
    assert history.tail("a", "nvlink_mib_s", 1) == (None,)
    assert history.tail("b", "nvlink_mib_s", 1) == (None,)


def test_cards_that_are_no_longer_there_are_forgotten() -> None:
    history = History()
    history.add(snapshot(1.0, CardSample(name="a"), CardSample(name="b")))
    history.keep({"b"})
    assert list(history.latest) == ["b"]
    assert history.tail("a", "power_w", 1) == ()
