"""The real binding on a library that is a Python object."""

import os

import psutil
import pynvml
import pytest

from tests.meters.conftest import Plug
from tests.meters.fake_nvml import FakeGpu, FakeNvmlLib
from workbench.meters.nvml import Gpu, Nvml
from workbench.meters.sample import CardSample

LONG_ID, SHORT_ID = "00000000:C1:00.0", "0000:c1:00.0"


def opened(plug: Plug, *gpus: FakeGpu) -> tuple[Nvml, FakeNvmlLib]:
    lib = FakeNvmlLib(*gpus)
    plug(lib)
    return Nvml(), lib


def test_a_card_is_found_by_the_short_spelling_of_its_bus_id(plug: Plug) -> None:
    gpu = FakeGpu(LONG_ID, uuid="GPU-abc")
    nvml, _ = opened(plug, FakeGpu("00000000:41:00.0"), gpu)
    assert nvml.gpus[1] == Gpu(index=1, pci_bus_id=SHORT_ID, uuid="GPU-abc", name="NVIDIA H200")
    assert nvml.sample("CUDA0", SHORT_ID) == CardSample(
        name="CUDA0", total_mib=143771, used_mib=30000, reserved_mib=615, utilisation=52,
        power_w=432, power_limit_w=700, temperature_c=48, sm_clock_mhz=1980, memory_clock_mhz=3201, throttle=(),
    )  # fmt: skip


def test_who_holds_memory_on_a_card_the_largest_first(plug: Plug) -> None:
    gpu = FakeGpu(LONG_ID)
    nvml, _ = opened(plug, gpu)
    assert nvml.processes(SHORT_ID) == ()
    me = os.getpid()
    gpu.processes = {me: 500, 2**30: 29000, 2**30 + 1: None}
    gpu.drawing = {me: 700}
    found = nvml.processes(SHORT_ID)
    assert found is not None
    assert [(process.pid, process.mib) for process in found] == [(2**30, 29000), (me, 700), (2**30 + 1, None)]
    assert [process.name for process in found] == [None, psutil.Process().name(), None]
    for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"):
        gpu.errors[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert nvml.processes(SHORT_ID) is None


def test_what_slows_a_card_is_named_and_idling_is_not(plug: Plug) -> None:
    gpu = FakeGpu(LONG_ID)
    nvml, _ = opened(plug, gpu)
    assert nvml.driver == "580.95.05"
    gpu.throttle = 0x1 | 0x4 | 0x40
    assert nvml.sample("CUDA0", SHORT_ID).throttle == ("power cap", "hardware thermal")
    gpu.errors["nvmlDeviceGetCurrentClocksThrottleReasons"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert nvml.sample("CUDA0", SHORT_ID).throttle is None


def test_energy_and_the_work_of_others(plug: Plug) -> None:
    gpu = FakeGpu(LONG_ID)
    nvml, _ = opened(plug, gpu)
    gpu.energy_mj = 7_500
    assert nvml.energy_j(SHORT_ID) == 7.5
    assert nvml.energy_j("0000:99:00.0") is None
    assert nvml.foreign_percent(SHORT_ID, {77}, 0) is None
    gpu.busy = {77: 90, 5: 20, 6: 4}
    assert nvml.foreign_percent(SHORT_ID, {77}, 0) == 24
    assert nvml.foreign_percent(SHORT_ID, {78}, 0) is None


def test_all_ones_and_more_than_all_of_the_time_are_no_figures(plug: Plug) -> None:
    ones = 2**32 - 1
    gpu = FakeGpu(LONG_ID, utilisation=101, power_mw=ones, celsius=ones, clock_mhz=ones, energy_mj=2**64 - 1)
    nvml, _ = opened(plug, gpu)
    sample = nvml.sample("CUDA0", SHORT_ID)
    assert (sample.utilisation, sample.power_w, sample.temperature_c, sample.sm_clock_mhz) == (None,) * 4
    assert nvml.energy_j(SHORT_ID) is None
    gpu.power_mw = 432_000
    assert nvml.sample("CUDA0", SHORT_ID).power_w == 432


def test_free_memory_leaves_out_what_the_driver_reserves(plug: Plug) -> None:
    nvml, _ = opened(plug, FakeGpu(LONG_ID))
    assert nvml.sample("CUDA0", SHORT_ID).free_mib == 143771 - 30000 - 615


@pytest.mark.parametrize(
    "code",
    [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND],
)
def test_a_metric_that_is_not_supported_is_asked_once(plug: Plug, code: int) -> None:
    gpu = FakeGpu(LONG_ID)
    gpu.errors["nvmlDeviceGetPowerUsage"] = code
    nvml, lib = opened(plug, gpu)
    before = lib.calls["nvmlDeviceGetPowerUsage"]
    samples = [nvml.sample("CUDA0", SHORT_ID) for _ in range(3)]
    assert [sample.power_w for sample in samples] == [None, None, None]
    assert samples[0].utilisation == 52
    gpu.errors.clear()
    assert nvml.sample("CUDA0", SHORT_ID).power_w is None
    assert lib.calls["nvmlDeviceGetPowerUsage"] == before + 1


def test_a_passing_error_is_asked_again(plug: Plug) -> None:
    gpu = FakeGpu(LONG_ID)
    gpu.errors["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_TIMEOUT
    nvml, _ = opened(plug, gpu)
    assert nvml.sample("CUDA0", SHORT_ID).power_w is None
    gpu.errors.clear()
    assert nvml.sample("CUDA0", SHORT_ID).power_w == 432


def test_a_function_that_an_old_driver_lacks(plug: Plug) -> None:
    lib = FakeNvmlLib(FakeGpu(LONG_ID))
    lib.without = {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetEnforcedPowerLimit"}
    plug(lib)
    sample = Nvml().sample("CUDA0", SHORT_ID)
    assert (sample.used_mib, sample.reserved_mib, sample.power_limit_w) == (30615, None, None)


def test_a_lost_card_is_lost_and_the_others_go_on(plug: Plug) -> None:
    first, second = FakeGpu(LONG_ID), FakeGpu("00000000:41:00.0")
    nvml, lib = opened(plug, first, second)
    first.errors["*"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.sample("CUDA0", SHORT_ID) == CardSample(name="CUDA0", lost=True)
    assert nvml.sample("CUDA1", "0000:41:00.0").used_mib == 30000
    asked = lib.calls.total()
    assert nvml.sample("CUDA0", SHORT_ID).lost
    assert lib.calls.total() == asked


def test_a_card_that_is_lost_from_the_start_hides_no_other(plug: Plug) -> None:
    first = FakeGpu(LONG_ID)
    first.errors["nvmlDeviceGetHandleByIndex_v2"] = pynvml.NVML_ERROR_GPU_IS_LOST
    nvml, _ = opened(plug, first, FakeGpu("00000000:41:00.0"))
    assert [gpu.index for gpu in nvml.gpus] == [1]
    assert nvml.sample("CUDA0", SHORT_ID) == CardSample(name="CUDA0")


def test_unknown_figures_are_none(plug: Plug) -> None:
    gpu = FakeGpu(LONG_ID)
    nvml, _ = opened(plug, gpu)
    assert nvml.sample("CUDA9", "0000:99:00.0") == CardSample(name="CUDA9")
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        gpu.errors[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert nvml.sample("CUDA0", SHORT_ID).free_mib is None


def test_a_machine_without_a_driver_has_no_cards(plug: Plug, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    plug(None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    nvml = Nvml()
    assert nvml.gpus == ()
    assert nvml.missing == "no NVIDIA driver is installed"
    assert nvml.sample("CUDA0", SHORT_ID) == CardSample(name="CUDA0")
    nvml.close()


def test_a_driver_that_does_not_answer_is_named(plug: Plug) -> None:
    plug(FakeNvmlLib(init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    assert Nvml().missing == "NVIDIA's driver does not answer (DriverNotLoaded)"


def test_a_closed_nvml_reads_nothing(plug: Plug) -> None:
    nvml, lib = opened(plug, FakeGpu(LONG_ID))
    nvml.close()
    nvml.close()
    assert lib.calls["nvmlShutdown"] == 1
    assert nvml.sample("CUDA0", SHORT_ID) == CardSample(name="CUDA0")
