"""PCI bus ids in any spelling, and sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.domain.card import format_mib, parse_mib, pci_key


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F))
def test_cuda_and_nvml_name_one_card_alike(domain: int, bus: int, device: int) -> None:
    key = (domain, bus, device)
    assert pci_key(f"{domain:04x}:{bus:02x}:{device:02x}.0") == key
    assert pci_key(f"{domain:08X}:{bus:02X}:{device:02X}.0") == key
    assert pci_key(f"{domain:04x}:{bus:02x}:{device:02x}.0-v1") == key


def test_a_bus_id_without_a_domain_and_what_is_none() -> None:
    assert pci_key("c1:00.0") == (0, 0xC1, 0)
    for other in ("CUDA0", "", "GPU-0a1b", "rpc://127.0.0.1:50052", "c1:00"):
        assert pci_key(other) is None


@pytest.mark.parametrize(("text", "mib"), [
    ("600MiB", 600), ("1.5 GiB", 1536), ("2gib", 2048), ("1024KiB", 1), (" 1 MB ", 1e6 / 2**20), ("1GB", 1e9 / 2**20),
])
def test_sizes(text: str, mib: float) -> None:
    assert parse_mib(text) == pytest.approx(mib)


@pytest.mark.parametrize(
    "text", ["", "600", "MiB", "-1MiB", "0MiB", "0.0GiB", "1,5GiB", "1TiBs", "1e3MiB", "nanMiB", "1MiB2"])
def test_what_is_no_size_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"600MiB or 1\.5GiB"):
        parse_mib(text)


@given(st.integers(1, 10**6))
def test_whole_sizes_read_exactly(mib: int) -> None:
    assert parse_mib(f"{mib}MiB") == mib


def test_sizes_for_people() -> None:
    assert format_mib(640) == "640 MiB"
    assert format_mib(30.2 * 1024) == "30.2 GiB"
    assert format_mib(-9.4 * 1024) == "-9.4 GiB"
