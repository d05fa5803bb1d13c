"""The sampler's thread, with real processes."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from tests.meters.conftest import Plug
from tests.meters.fake_nvml import FakeGpu, FakeNvmlLib
from tests.waiting import wait_until
from workbench.meters import sampler as sampler_module
from workbench.meters.board import Watched, WatchedGpu, WatchedName, WatchedProcess, Watching
from workbench.meters.sample import CardSample, Snapshot
from workbench.meters.sampler import Pace, Sampler

HOLD_40_MIB = "import sys; held = bytearray(b'x') * (40 << 20); print(flush=True); sys.stdin.read()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_40_MIB], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def these(*cards: Watched) -> Watching:
    return Watching(cards=cards)


class Heard:
    """A listener that keeps what it heard."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []

    def __call__(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)

    def card(self, name: str) -> CardSample | None:
        return next((card for card in self.snapshots[-1].cards if card.name == name), None) if self.snapshots else None


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def sampler(heard: Heard) -> Iterator[Sampler]:
    sampler = Sampler(heard, interval_s=0.02)
    sampler.start()
    yield sampler
    sampler.close()


def test_a_virtual_card_is_its_process(sampler: Sampler, heard: Heard, child: subprocess.Popen[bytes]) -> None:
    sampler.watch(these(WatchedProcess(name="RPC0", pid=child.pid, size_mib=600)))
    wait_until(lambda: (card := heard.card("RPC0")) and card.utilisation is not None)
    card = heard.card("RPC0")
    assert card is not None
    assert card.used_mib is not None
    assert abs(card.used_mib - psutil.Process(child.pid).memory_info().rss / 2**20) < 8
    assert card.used_mib > 40
    assert card.free_mib is not None
    assert card.free_mib == pytest.approx(600 - card.used_mib)


def test_a_dead_process_is_a_lost_card_even_before_it_is_reaped(
    sampler: Sampler, heard: Heard, child: subprocess.Popen[bytes]
) -> None:
    sampler.watch(these(WatchedProcess(name="RPC0", pid=child.pid), WatchedName(name="RPC1")))
    wait_until(lambda: heard.card("RPC0"))
    child.kill()
    wait_until(lambda: (card := heard.card("RPC0")) and card.lost)
    assert heard.card("RPC1") == CardSample(name="RPC1")


def test_the_host_is_always_there(sampler: Sampler, heard: Heard) -> None:
    wait_until(lambda: len(heard.snapshots) >= 2)
    first, second = heard.snapshots[:2]
    assert first.host.cpu_percent is None
    assert second.host.cpu_percent is not None
    assert 0 < second.host.available_mib < second.host.total_mib
    assert second.at > first.at


def test_cards_keep_the_order_in_which_they_are_watched(sampler: Sampler, heard: Heard, plug: Plug) -> None:
    plug(FakeNvmlLib(FakeGpu("00000000:41:00.0"), FakeGpu("00000000:C1:00.0")))
    sampler.watch(
        these(
            WatchedGpu(name="CUDA1", pci_bus_id="0000:c1:00.0"),
            WatchedGpu(name="CUDA0", pci_bus_id="0000:41:00.0"),
        )
    )
    wait_until(lambda: heard.card("CUDA0"))
    assert [(card.name, card.used_mib) for card in heard.snapshots[-1].cards] == [("CUDA1", 30000), ("CUDA0", 30000)]


def test_a_listener_that_fails_is_called_again() -> None:
    calls = threading.Semaphore(0)

    def listener(snapshot: Snapshot) -> None:
        calls.release()
        raise RuntimeError("the screen is gone")

    sampler = Sampler(listener, interval_s=0.01)
    sampler.start()
    assert all(calls.acquire(timeout=20) for _ in range(3))
    sampler.close()


def test_after_close_nothing_is_heard(heard: Heard) -> None:
    sampler = Sampler(heard, interval_s=0.01)
    sampler.start()
    wait_until(lambda: heard.snapshots)
    sampler.close()
    count = len(heard.snapshots)
    sampler.watch(these())
    assert len(heard.snapshots) == count


def test_a_mark_is_in_the_next_snapshot_and_reads_the_energy(
    heard: Heard, sampler: Sampler, plug: Plug
) -> None:
    gpu = FakeGpu("00000000:41:00.0", energy_mj=1_000)
    plug(FakeNvmlLib(gpu))
    sampler.watch(these(WatchedGpu(name="CUDA0", pci_bus_id="0000:41:00.0")))
    wait_until(lambda: (card := heard.card("CUDA0")) and card.energy_j == 1)
    gpu.energy_mj = 5_000
    mark = sampler.mark()
    wait_until(lambda: heard.snapshots[-1].mark == mark)
    first = next(snapshot for snapshot in heard.snapshots if snapshot.mark == mark)
    assert first.cards[0].energy_j == 5


def test_off_means_off_until_something_is_marked(heard: Heard) -> None:
    sampler = Sampler(heard, interval_s=0.005)
    sampler.pace = Pace.OFF
    sampler.start()
    sampler.watch(these())
    mark = sampler.mark()
    wait_until(lambda: heard.snapshots)
    assert [snapshot.mark for snapshot in heard.snapshots] == [mark]
    sampler.pace = Pace.FULL
    wait_until(lambda: len(heard.snapshots) > 2)
    sampler.close()


def test_a_call_that_hangs_is_named_and_does_not_hold_up_the_end(
    heard: Heard, plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "HANGS_S", 0.01)
    lib, go_on = FakeNvmlLib(FakeGpu("00000000:41:00.0")), threading.Event()

    def wait(name: str) -> None:
        if name == "nvmlDeviceGetPowerUsage":
            go_on.wait(20)

    lib.before = wait
    plug(lib)
    sampler = Sampler(heard, interval_s=0.01)
    sampler.watch(these(WatchedGpu(name="CUDA0", pci_bus_id="0000:41:00.0")))
    sampler.start()
    try:
        wait_until(sampler.hanging)
        hanging = sampler.hanging()
        assert hanging is not None
        assert (hanging.pci_bus_id, hanging.metric) == ("0000:41:00.0", "power")
        assert heard.snapshots == []
        go_on.set()
        wait_until(lambda: heard.card("CUDA0"))
        assert sampler.hanging() is None
        go_on.clear()
        wait_until(sampler.hanging)
        sampler.close()
        count = len(heard.snapshots)
    finally:
        go_on.set()
    assert len(heard.snapshots) == count
