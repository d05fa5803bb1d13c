from typing import Literal

import msgspec

from workbench.domain.card import Card, CardKind
from workbench.domain.memory import CardMemory
from workbench.engines.engine import CardProcess, Loaded, ModelInfo
from workbench.engines.llama.wire import Device
from workbench.lab.cards import join, watched
from workbench.meters.board import WatchedGpu, WatchedName, WatchedProcess
from workbench.meters.nvml import Gpu
from workbench.meters.sample import CardSample


def device(name: str, device_id: str | None, type_: Literal["gpu", "igpu", "cpu", "accel"] = "gpu") -> Device:
    return Device(name=name, description="NVIDIA H200", type=type_, device_id=device_id, total_mib=143000, free_mib=100)


GPUS = (
    Gpu(index=0, pci_bus_id="0000:41:00.0", uuid="GPU-a", name="NVIDIA H200"),
    Gpu(index=1, pci_bus_id="0000:c1:00.0", uuid="GPU-b", name="NVIDIA H200"),
)
SAMPLES = {
    "0000:41:00.0": CardSample(name="", total_mib=143771, used_mib=1000, reserved_mib=615),
    "0000:c1:00.0": CardSample(name="", total_mib=143771, used_mib=2000, reserved_mib=615),
}


def test_cuda_order_is_not_the_order_of_nvidia_smi() -> None:
    cards = join([device("CUDA0", "0000:c1:00.0"), device("CUDA1", "0000:41:00.0")], GPUS, SAMPLES)
    assert [(card.name, card.smi_index, card.uuid) for card in cards] == [("CUDA0", 1, "GPU-b"), ("CUDA1", 0, "GPU-a")]
    assert cards[0].free_mib == 143771 - 2000 - 615
    assert cards[0].pci_bus_id == "0000:c1:00.0"


def test_two_cards_of_llama_cpp_on_one_gpu_are_parts_of_it_and_share_what_is_free() -> None:
    halves = [
        msgspec.structs.replace(device(f"CUDA{i}", f"0000:41:00.0-v{i}"), total_mib=71000.0, free_mib=70000.0)
        for i in range(2)
    ]
    cards = join([*halves, device("CUDA2", "0000:c1:00.0")], GPUS, SAMPLES)
    assert [(card.smi_index, card.pci_bus_id, card.parts) for card in cards] == [
        (0, "0000:41:00.0", 2), (0, "0000:41:00.0", 2), (1, "0000:c1:00.0", 1),
    ]  # fmt: skip
    assert cards[0].free_mib == cards[1].free_mib == min(71000, (143771 - 1000 - 615) / 2)
    assert cards[0].part_of(100_000) == 50_000
    assert cards[2].free_mib == 143771 - 2000 - 615


def test_a_card_that_nvml_does_not_know_keeps_what_llama_cpp_says() -> None:
    assert join([device("Vulkan0", None)], GPUS, SAMPLES) == (
        Card(name="Vulkan0", kind=CardKind.GPU, description="NVIDIA H200", total_mib=143000, free_mib=100),
    )


def test_the_cpu_comes_last_and_helpers_of_the_cpu_are_no_cards() -> None:
    cards = join([device("BLAS", None, "accel"), device("CPU", None, "cpu"), device("CUDA0", None)], (), {})
    assert [(card.name, card.kind) for card in cards] == [("CUDA0", CardKind.CUDA), ("CPU", CardKind.CPU)]


def loaded(*names: str, processes: tuple[CardProcess, ...] = ()) -> Loaded:
    model = ModelInfo(
        path="m.gguf", name="m", arch="llama", quantisation="Q4_1", n_layer=2, n_ctx_train=8, n_params=1, size_mib=1
    )
    memory = [CardMemory(name=name, weights_mib=1, kv_mib=1, compute_mib=1) for name in names]
    return Loaded(
        model=model, cards=tuple(memory), host=CardMemory(name="CPU", weights_mib=1, kv_mib=0, compute_mib=0),
        places=(), n_ctx=8, flash_attn=True, template="chatml", template_is_fallback=False, load_s=1, pid=42,
        card_processes=processes,
    )  # fmt: skip


MACHINE = (
    Card(name="CUDA0", kind=CardKind.CUDA, pci_bus_id="0000:c1:00.0"),
    Card(name="CUDA1", kind=CardKind.CUDA, pci_bus_id="0000:41:00.0"),
    Card(name="CPU", kind=CardKind.CPU, total_mib=24000),
)


def test_before_a_load_all_gpus_are_watched() -> None:
    assert [card.name for card in watched(MACHINE)] == ["CUDA0", "CUDA1"]


def test_the_cards_of_the_split_are_watched_first_and_in_its_order() -> None:
    assert watched(MACHINE, loaded("CUDA1", "RPC0")) == (
        WatchedGpu(name="CUDA1", pci_bus_id="0000:41:00.0", pids=(42,)),
        WatchedName(name="RPC0"),
        WatchedGpu(name="CUDA0", pci_bus_id="0000:c1:00.0"),
    )


def test_a_virtual_card_is_watched_by_its_process() -> None:
    process = CardProcess("RPC0", 77, "127.0.0.1:5", 600)
    assert watched(MACHINE[2:], loaded("RPC0", processes=(process,))) == (
        WatchedProcess(name="RPC0", pid=77, size_mib=600),
    )


def test_a_model_on_no_card_is_the_worker_itself() -> None:
    assert watched(MACHINE[2:], loaded()) == (WatchedProcess(name="CPU", pid=42, size_mib=24000),)
