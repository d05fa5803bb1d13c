"""What is free on a card, where two of llama.cpp's cards are parts of one GPU."""

from pathlib import Path

from tests.lab.test_cards import device
from tests.meters.conftest import Plug, plug
from tests.meters.fake_nvml import FakeGpu, FakeNvmlLib
from workbench.domain.layout import Layout
from workbench.engines.llama.wire import WireCard
from workbench.lab.cards import join
from workbench.lab.rooms import DRIVER_CONTEXT_MIB, Rooms
from workbench.meters.nvml import Nvml
from workbench.store.load_errors import LoadErrors

__all__ = ["plug"]
LAYOUT = Layout(name="a", model="m.gguf")
CARDS = tuple(WireCard(name=f"CUDA{i}", device=f"CUDA{i}") for i in range(2))


def rooms(plug: Plug, tmp_path: Path, *ids: str) -> Rooms:
    plug(FakeNvmlLib(FakeGpu("00000000:41:00.0", used_mib=43_000), FakeGpu("00000000:C1:00.0", used_mib=1_000)))
    nvml = Nvml()
    cards = join([device(f"CUDA{i}", device_id) for i, device_id in enumerate(ids)], nvml.gpus, {})
    nvml.close()
    return Rooms(lambda layout: cards, LoadErrors(tmp_path))


def test_whole_gpus_have_what_nvml_says(plug: Plug, tmp_path: Path) -> None:
    whole = rooms(plug, tmp_path, "0000:41:00.0", "0000:c1:00.0")
    assert whole.free_mib(LAYOUT, CARDS) == {"CUDA0": 143771 - 43615, "CUDA1": 143771 - 1615}
    assert whole.used_mib(LAYOUT, CARDS) == {"CUDA0": 43_000, "CUDA1": 1_000}
    whole.close()


def test_the_parts_of_one_gpu_share_what_is_free_there(plug: Plug, tmp_path: Path) -> None:
    halves = rooms(plug, tmp_path, "0000:41:00.0-v0", "0000:41:00.0-v1")
    assert halves.free_mib(LAYOUT, CARDS) == {"CUDA0": (143771 - 43615) / 2, "CUDA1": (143771 - 43615) / 2}
    assert halves.used_mib(LAYOUT, CARDS) == {}
    halves.close()


def test_no_part_is_freer_than_it_is_large(plug: Plug, tmp_path: Path) -> None:
    halves = rooms(plug, tmp_path, "0000:41:00.0-v0", "0000:41:00.0-v1")
    card = halves._cards(LAYOUT)[0]
    assert card.part_of(400_000) == card.total_mib


def test_the_drivers_context_is_shared_by_the_parts_of_which_nothing_is_learnt(plug: Plug, tmp_path: Path) -> None:
    whole = rooms(plug, tmp_path, "0000:41:00.0", "0000:c1:00.0")
    halves = rooms(plug, tmp_path, "0000:41:00.0-v0", "0000:41:00.0-v1")
    assert whole._other(LAYOUT, CARDS[0], "layer") == (DRIVER_CONTEXT_MIB, 0)
    assert halves._other(LAYOUT, CARDS[0], "layer") == (DRIVER_CONTEXT_MIB / 2, 0)
    keys = {halves.key(LAYOUT, card) for card in CARDS}
    assert keys == {"GPU-1/2"}
    assert whole.key(LAYOUT, CARDS[0]) == "GPU-1"
    # What one part took nobody can tell, so nothing is learnt of it.
    assert [each.apart(LAYOUT, card) for each in (whole, halves) for card in CARDS] == [True, True, False, False]
    whole.close()
    halves.close()


def test_without_nvml_a_card_is_as_free_as_llama_cpp_says(plug: Plug, tmp_path: Path) -> None:
    plug(FakeNvmlLib())
    cards = join([device("CUDA0", "0000:41:00.0")], (), {})
    blind = Rooms(lambda layout: cards, LoadErrors(tmp_path))
    assert blind.free_mib(LAYOUT, CARDS[:1]) == {"CUDA0": 100}
    blind.close()
