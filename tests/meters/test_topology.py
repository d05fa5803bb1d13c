from tests.meters.conftest import Plug
from tests.meters.fake_nvml import FakeGpu, FakeLink, FakeNvmlLib
from workbench.domain.topology import Pair
from workbench.meters.nvml import Nvml
from workbench.meters.topology import read_pairs

A, B, C = "00000000:41:00.0", "00000000:42:00.0", "00000000:C1:00.0"


def pairs(plug: Plug, *cards: FakeGpu) -> tuple[Pair, ...]:
    plug(FakeNvmlLib(*cards))
    nvml = Nvml()
    found = read_pairs(nvml)
    nvml.close()
    return found


def test_without_nvlink_the_bridges_tell(plug: Plug) -> None:
    found = pairs(plug, FakeGpu(A, ancestors={B: 10}, peers={B: 0}), FakeGpu(B), FakeGpu(C))
    assert found[0] == Pair(first="0000:41:00.0", second="0000:42:00.0", ancestor=10, peer=True)
    assert found[1].ancestor == 50
    assert (found[1].peer, found[1].refusal) == (False, "the chipset does not support it")
    assert [(pair.first, pair.second) for pair in found] == [
        ("0000:41:00.0", "0000:42:00.0"), ("0000:41:00.0", "0000:c1:00.0"), ("0000:42:00.0", "0000:c1:00.0"),
    ]  # fmt: skip


def test_bridged_pairs_count_the_links_between_them(plug: Plug) -> None:
    to_b, to_a = [FakeLink(remote=B)] * 4, [FakeLink(remote=A), FakeLink(remote=A, active=False)] * 4
    found = pairs(plug, FakeGpu(A, links=to_b), FakeGpu(B, links=to_a), FakeGpu(C))
    assert [(pair.nvlinks, pair.switched) for pair in found] == [(4, False), (0, False), (0, False)]


def test_through_a_switch_all_pairs_are_joined(plug: Plug) -> None:
    switched = [FakeGpu(bus_id, links=[FakeLink()] * 18) for bus_id in (A, B, C)]
    found = pairs(plug, *switched)
    assert [(pair.nvlinks, pair.switched) for pair in found] == [(18, True)] * 3


def test_cards_that_do_not_tell(plug: Plug) -> None:
    silent = FakeGpu(A, errors={"nvmlDeviceGetTopologyCommonAncestor": 3, "nvmlDeviceGetP2PStatus": 3})
    assert pairs(plug, silent, FakeGpu(B)) == (Pair(first="0000:41:00.0", second="0000:42:00.0"),)
