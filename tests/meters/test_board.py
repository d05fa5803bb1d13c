"""All meters read together, on a fake library and a clock of the test's own."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pynvml
import pytest

from tests.meters.conftest import Plug
from tests.meters.fake_nvml import FakeGpu, FakeLink, FakeNvmlLib
from tests.waiting import wait_until
from workbench.meters import nvml
from workbench.meters.board import PERIODS_S, Board, WatchedGpu, WatchedProcess, Watching
from workbench.meters.sample import CardSample, NvLink, Pcie, Slice, Snapshot

BUS = ("00000000:41:00.0", "00000000:C1:00.0")
SHORT = ("0000:41:00.0", "0000:c1:00.0")
GPM = {pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 61.5, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 12.0,
       pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: 40.0, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 30.0}  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meters(clock: Clock, tmp_path: Path) -> Iterator[Board]:
    made = Board(clock, pci_devices=tmp_path)
    yield made
    made.close()


def gpus(count: int = 1, *, pids: tuple[int, ...] = ()) -> Watching:
    return Watching(cards=tuple(WatchedGpu(name=f"CUDA{i}", pci_bus_id=SHORT[i], pids=pids) for i in range(count)))


def plugged(plug: Plug, *cards: FakeGpu) -> FakeNvmlLib:
    lib = FakeNvmlLib(*cards)
    plug(lib)
    return lib


def again(meters: Board, clock: Clock, watching: Watching, seconds: float = 0.5) -> Snapshot:
    clock.now += seconds
    return meters.read(watching)


def test_what_is_dear_is_read_less_often(meters: Board, clock: Clock, plug: Plug) -> None:
    lib = plugged(plug, FakeGpu(BUS[0], links=[FakeLink()]))
    for _ in range(40):
        again(meters, clock, gpus())
    assert lib.calls["nvmlDeviceGetUtilizationRates"] == 40
    assert lib.calls["nvmlDeviceGetGraphicsRunningProcesses_v3"] == 20
    assert lib.calls["nvmlDeviceGetFieldValues"] == 10
    assert lib.calls["nvmlDeviceGetTotalEnergyConsumption"] == 2
    assert lib.calls["nvmlDeviceGetMaxPcieLinkWidth"] == 2


def test_only_the_groups_that_were_named_are_read(clock: Clock, plug: Plug, tmp_path: Path) -> None:
    lib = plugged(plug, FakeGpu(BUS[0], gpm=GPM, links=[FakeLink()]))
    board = Board(clock, pci_devices=tmp_path, groups={"processes"})
    for _ in range(40):
        clock.now += 0.5
        board.read(gpus(), energy=True)
    assert lib.calls["nvmlDeviceGetUtilizationRates"] == 40
    assert lib.calls["nvmlDeviceGetGraphicsRunningProcesses_v3"] == 20
    dear = {"nvmlGpmSampleGet", "nvmlDeviceGetFieldValues", "nvmlDeviceGetTotalEnergyConsumption",
            "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetPcieThroughput"}  # fmt: skip
    assert not {call for call in dear if lib.calls[call]}
    board.close()


def test_an_energy_reading_that_is_asked_for_is_taken_at_once(meters: Board, clock: Clock, plug: Plug) -> None:
    gpu = FakeGpu(BUS[0], energy_mj=1_000)
    plugged(plug, gpu)
    assert meters.read(gpus()).cards[0].energy_j == 1
    gpu.energy_mj = 9_000
    old = again(meters, clock, gpus()).cards[0]
    assert (old.energy_j, old.energy_at) == (1, 100)
    new = meters.read(gpus(), energy=True, mark=3)
    assert (new.cards[0].energy_j, new.cards[0].energy_at, new.mark) == (9, 100.5, 3)


def test_our_part_of_the_memory_is_that_of_our_processes(meters: Board, plug: Plug) -> None:
    plugged(plug, FakeGpu(BUS[0], processes={7: 29000, 8: 500}))
    sample = meters.read(gpus(pids=(7,))).cards[0]
    assert sample.ours_mib == 29000
    assert [process.mib for process in sample.processes or ()] == [29000, 500]
    assert meters.read(gpus(pids=(9,))).cards[0].ours_mib is None


def test_two_cards_on_one_gpu_read_it_once(meters: Board, plug: Plug) -> None:
    lib = plugged(plug, FakeGpu(BUS[0]))
    parts = Watching(cards=tuple(WatchedGpu(name=f"CUDA{i}", pci_bus_id=SHORT[0]) for i in range(2)))
    snapshot = meters.read(parts)
    assert [card.name for card in snapshot.cards] == ["CUDA0", "CUDA1"]
    assert lib.calls["nvmlDeviceGetPowerUsage"] == 1


def test_bandwidth_and_tensor_cores_where_a_card_has_monitors(meters: Board, clock: Clock, plug: Plug) -> None:
    lib = plugged(plug, FakeGpu(BUS[0], gpm=GPM))
    first = meters.read(gpus()).cards[0]
    assert (first.dram_percent, first.tensor_percent) == (None, None)
    second = again(meters, clock, gpus()).cards[0]
    assert (second.dram_percent, second.tensor_percent) == (61.5, 12.0)
    assert (second.pcie.sent_mib_s, second.pcie.received_mib_s) == (40.0, 30.0)
    assert again(meters, clock, gpus(), 0.01).cards[0].dram_percent == 61.5
    assert lib.calls["nvmlGpmSampleGet"] == 2
    # They cost the card a little speed: seldom, and at both ends of a reply.
    again(meters, clock, gpus(), 1)
    assert lib.calls["nvmlGpmSampleGet"] == 2
    clock.now += 1
    meters.read(gpus(), energy=True)
    assert lib.calls["nvmlGpmSampleGet"] == 3
    again(meters, clock, gpus(), 5)
    assert lib.calls["nvmlGpmSampleGet"] == 4
    assert lib.calls["nvmlDeviceGetPcieThroughput"] == 0
    meters.close()
    assert lib.buffers == 0


def test_pcie_traffic_is_read_on_a_thread_of_its_own(meters: Board, clock: Clock, plug: Plug) -> None:
    plugged(plug, FakeGpu(BUS[0], pcie=(1, 5, 8, 16)))
    meters.read(gpus())
    expected = Pcie(generation=1, max_generation=5, width=8, max_width=16, sent_mib_s=2, received_mib_s=1)
    wait_until(lambda: again(meters, clock, gpus()).cards[0].pcie == expected)


def test_nvlink_traffic_from_counters_on_their_own_time(meters: Board, clock: Clock, plug: Plug) -> None:
    gpu = FakeGpu(BUS[0], links=[FakeLink()] * 18, link_kib=(1024_000, 0), link_at_us=1_000_000)
    plugged(plug, gpu)
    assert meters.read(gpus()).cards[0].nvlink == NvLink(links=18, version="4.0", switched=True)
    gpu.link_kib, gpu.link_at_us = (1024_000 + 2048_000, 1024_000), 3_000_000
    sample = again(meters, clock, gpus(), PERIODS_S["traffic"]).cards[0]
    assert sample.nvlink == NvLink(links=18, version="4.0", switched=True, sent_mib_s=1000, received_mib_s=500)


def test_monitors_tell_the_nvlink_traffic_for_less(meters: Board, clock: Clock, plug: Plug) -> None:
    sent, received = pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC
    told = {sent: 900.0, received: 800.0}
    lib = plugged(plug, FakeGpu(BUS[0], gpm=GPM | told, links=[FakeLink()] * 18))
    for _ in range(10):
        sample = again(meters, clock, gpus()).cards[0]
    assert sample.nvlink == NvLink(links=18, version="4.0", switched=True, sent_mib_s=900, received_mib_s=800)
    assert lib.calls["nvmlDeviceGetFieldValues"] == 1


def test_monitors_that_leave_the_nvlinks_out_leave_them_to_the_counters(
    meters: Board, clock: Clock, plug: Plug
) -> None:
    gpu = FakeGpu(BUS[0], gpm=GPM, links=[FakeLink()], link_kib=(0, 0), link_at_us=1_000_000)
    plugged(plug, gpu)
    for _ in range(5):
        again(meters, clock, gpus())
    gpu.link_kib, gpu.link_at_us = (2048, 1024), 2_000_000
    nvlink = again(meters, clock, gpus(), PERIODS_S["traffic"]).cards[0].nvlink
    assert nvlink is not None
    assert (nvlink.sent_mib_s, nvlink.received_mib_s) == (2, 1)


def test_a_counter_that_wraps_is_unknown_once_and_never_huge(meters: Board, clock: Clock, plug: Plug) -> None:
    gpu = FakeGpu(BUS[0], links=[FakeLink()], link_kib=(2**40, 2**40), link_at_us=1_000_000)
    plugged(plug, gpu)
    meters.read(gpus())
    gpu.link_kib, gpu.link_at_us = (10, 2**40 + 2048), 3_000_000
    wrapped = again(meters, clock, gpus(), 2).cards[0].nvlink
    assert wrapped == NvLink(links=1, version="4.0", switched=True, sent_mib_s=None, received_mib_s=1)
    gpu.link_kib, gpu.link_at_us = (10 + 4096, 2**40 + 2048), 5_000_000
    after = again(meters, clock, gpus(), 2).cards[0].nvlink
    assert after is not None
    assert (after.sent_mib_s, after.received_mib_s) == (2, 0)


def test_slices_of_a_divided_card(meters: Board, plug: Plug) -> None:
    slices = [("NVIDIA H200 MIG 1g.18gb", 16384, 4100), None, ("NVIDIA H200 MIG 3g.71gb", 71000, 0)]
    plugged(plug, FakeGpu(BUS[0], slices=slices))
    assert meters.read(gpus()).cards[0].slices == (
        Slice(index=0, name="NVIDIA H200 MIG 1g.18gb", uuid="MIG-0", total_mib=16384, used_mib=4100),
        Slice(index=2, name="NVIDIA H200 MIG 3g.71gb", uuid="MIG-2", total_mib=71000, used_mib=0),
    )


def test_memory_errors(meters: Board, plug: Plug) -> None:
    plugged(plug, FakeGpu(BUS[0], ecc=(12, 1)))
    assert meters.read(gpus()).cards[0].ecc_errors == (12, 1)


def test_a_card_that_supports_nothing_is_asked_once(meters: Board, clock: Clock, plug: Plug) -> None:
    gpu = FakeGpu(BUS[0])
    lib = plugged(plug, gpu)
    gpu.errors["*"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    gpu.errors["nvmlDeviceGetPciInfo_v3"] = 0
    assert meters.read(gpus()).cards == (CardSample(name="CUDA0"),)
    wait_until(lambda: lib.calls["nvmlDeviceGetPcieThroughput"] == 2)
    asked = lib.calls.copy()
    for _ in range(30):
        again(meters, clock, gpus())
    assert lib.calls == asked


def test_a_card_that_is_lost_is_lost_and_the_other_goes_on(meters: Board, clock: Clock, plug: Plug) -> None:
    first, second = FakeGpu(BUS[0], gpm=GPM), FakeGpu(BUS[1], gpm=GPM)
    plugged(plug, first, second)
    assert not any(card.lost for card in meters.read(gpus(2)).cards)
    first.errors["*"] = pynvml.NVML_ERROR_GPU_IS_LOST
    for seconds in (0.5, 11, 11):
        lost, well = again(meters, clock, gpus(2), seconds).cards
        assert lost == CardSample(name="CUDA0", lost=True)
        assert (well.used_mib, well.dram_percent) == (30000, 61.5)


def test_a_driver_that_went_away_is_noticed_and_so_is_its_return(meters: Board, clock: Clock, plug: Plug) -> None:
    gpu = FakeGpu(BUS[0])
    lib = plugged(plug, gpu)
    assert meters.read(gpus()).cards[0].used_mib == 30000
    gpu.errors["*"] = pynvml.NVML_ERROR_UNINITIALIZED
    lib.init = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert again(meters, clock, gpus()).cards[0].used_mib is None
    gone = again(meters, clock, gpus(), 10)
    assert gone.missing == "NVIDIA's driver does not answer (DriverNotLoaded)"
    assert gone.cards == (CardSample(name="CUDA0"),)
    gpu.errors.clear()
    lib.init = pynvml.NVML_SUCCESS
    back = again(meters, clock, gpus(), 10)
    assert back.missing is None
    assert back.cards[0].used_mib == 30000


def test_a_library_and_a_driver_of_different_versions(meters: Board, plug: Plug) -> None:
    plug(FakeNvmlLib(init=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))
    assert meters.read(gpus()).missing == (
        "the NVIDIA driver was updated while it ran: its library and its kernel module differ; reboot"
    )


def test_a_sleeping_card_is_not_woken(meters: Board, clock: Clock, plug: Plug, tmp_path: Path) -> None:
    lib = plugged(plug, FakeGpu(BUS[0]))
    status = tmp_path / SHORT[0] / "power" / "runtime_status"
    status.parent.mkdir(parents=True)
    status.write_text("suspended\n")
    assert meters.read(gpus()).cards == (CardSample(name="CUDA0", asleep=True),)
    assert lib.calls.total() == 0
    status.write_text("active\n")
    assert again(meters, clock, gpus()).cards[0].used_mib == 30000


def test_a_card_whose_memory_is_the_hosts(meters: Board, plug: Plug) -> None:
    silent = FakeGpu(BUS[0], name="NVIDIA GB10")
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        silent.errors[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    host_mib = int(psutil.virtual_memory().total / 2**20)
    whole = FakeGpu(BUS[1], name="NVIDIA Thor", total_mib=host_mib, reserved_mib=0)
    plugged(plug, silent, whole)
    assert [card.unified for card in meters.read(gpus(2)).cards] == [True, True]


def test_an_ordinary_card_does_not_share_the_hosts_memory(meters: Board, plug: Plug) -> None:
    host_mib = int(psutil.virtual_memory().total / 2**20)
    plugged(plug, FakeGpu(BUS[0]), FakeGpu(BUS[1], total_mib=host_mib, reserved_mib=400))
    assert [card.unified for card in meters.read(gpus(2)).cards] == [False, False]


def test_under_windows_the_library_lies_elsewhere(
    plug: Plug, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded = []
    library = tmp_path / "libnvidia-ml.so.1"
    library.touch()
    plug(None)
    monkeypatch.setattr(nvml, "WSL_LIBRARY", library)
    monkeypatch.setattr("ctypes.CDLL", lambda name: loaded.append(name))
    monkeypatch.setattr(pynvml, "CDLL", lambda name: FakeNvmlLib(FakeGpu(BUS[0])))
    opened = nvml.Nvml()
    assert loaded == [str(library)]
    assert len(opened.gpus) == 1
    opened.close()


def test_a_virtual_card_and_the_engine_are_processes(meters: Board, clock: Clock) -> None:
    watching = Watching(cards=(WatchedProcess(name="RPC0", pid=os.getpid(), size_mib=600),), engine_pid=os.getpid())
    meters.read(watching)
    sum(range(200_000))
    second = again(meters, clock, watching)
    assert second.missing is None
    assert second.cards[0].used_mib is not None
    assert second.host.engine_cores is not None
    assert second.host.engine_cores >= 0


def test_the_part_of_the_model_that_is_cached(meters: Board, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(os.urandom(3 << 20))
    share = meters.read(Watching(model_files=(model,))).host.cached
    assert share is not None
    assert share > 0.99

