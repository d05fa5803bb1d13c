"""What nvidia-smi prints, understood; it runs only beside real cards."""

import pytest

from tests.benchmarks.gpu.smi import Said, agreement, owner_sums, read_matrix, read_ours, read_smi

THEIRS = """\
2026/11/30 12:00:00.100, GPU-a, 1000, 100.00, 1500, 40
2026/11/30 12:00:00.100, GPU-b, 5, [N/A], 300, 30
2026/11/30 12:00:00.600, GPU-a, 1200, 300.50, 1980, 41
2026/11/30 12:00:01.100, GPU-a, 12"""
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\x1b[0m\n"
    "GPU0\t X \tNV18\tSYS\tPIX\t0-15\nGPU1\tNV18\t X \tNODE\tSYS\t0-15\nGPU2\tSYS\tNODE\t X \tSYS\t16-31\n"
    "NIC0\tPIX\tSYS\tSYS\t X \t\n\nLegend:\n\n  X    = Self\n"
)


def test_samples_are_read_and_what_is_not_known_is_left_out() -> None:
    first, second, third = read_smi(THEIRS)
    assert first.figures == {"used_mib": 1000, "power_w": 100, "sm_clock_mhz": 1500, "temperature_c": 40}
    assert "power_w" not in second.figures
    assert third.at - first.at == pytest.approx(0.5)


def test_what_lies_between_their_samples_agrees_and_what_lies_outside_is_told() -> None:
    theirs = read_smi(THEIRS)
    at = theirs[0].at + 0.2
    inside = Said(at, "GPU-a", {"power_w": 200.0, "used_mib": 1210.0})
    found = agreement([inside], theirs, "power_w")
    assert found is not None
    assert (found.samples, found.beyond, found.apart, found.spread) == (1, 0, 100, 200.5)
    beyond = agreement([inside], theirs, "used_mib")
    assert beyond is not None
    assert beyond.beyond == 10
    assert agreement([inside], theirs, "temperature_c") is None


def test_our_own_samples_are_read_with_their_owners() -> None:
    line = (
        '{"at":"2026-11-30T12:00:00.500+00:00","cards":[{"name":"CUDA0","uuid":"GPU-a","used_mib":10.0,"power_w":null,'
        '"sm_clock_mhz":1.0,"temperature_c":2.0,"owners":[{"kind":"process","mib":4.0},{"kind":"unknown","mib":6.0}]}]}'
    )
    (said,) = read_ours(f"{line}\n{line[:20]}")
    assert said.figures == {"used_mib": 10, "sm_clock_mhz": 1, "temperature_c": 2}
    assert owner_sums(f"{line}\n{line[:20]}") == [(10, 10)]


def test_the_matrix_of_cards_is_read_without_colours_and_network_cards() -> None:
    assert read_matrix(TOPOLOGY) == {(0, 1): "NV18", (0, 2): "SYS", (1, 2): "NODE"}
