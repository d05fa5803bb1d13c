from pathlib import Path

import pytest

from workbench.store.load_errors import KEEP, LONG, RECENT, LoadErrors


def test_errors_are_told_by_card_and_mode_and_the_last_count(tmp_path: Path) -> None:
    errors = LoadErrors(tmp_path / "state")
    assert errors.of("GPU-1", "layer") == []
    for i in range(RECENT + 3):
        errors.add({"GPU-1": float(i), "GPU-2": -1.0}, "layer")
    errors.add({"GPU-1": 950.0}, "tensor")
    assert LoadErrors(tmp_path / "state").of("GPU-1", "layer") == [float(i) for i in range(3, RECENT + 3)]
    assert errors.of("GPU-1", "tensor") == [950.0]
    assert errors.of("GPU-3", "layer") == []


def test_a_line_that_is_no_error_is_passed_over(tmp_path: Path) -> None:
    errors = LoadErrors(tmp_path)
    errors.add({"GPU-1": 600.0}, "layer")
    file = next(tmp_path.iterdir())
    file.write_bytes(file.read_bytes() + b"{half a li\n")
    errors.add({"GPU-1": 601.0}, "layer")
    assert errors.of("GPU-1", "layer") == [600.0, 601.0]


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    errors = LoadErrors(tmp_path)
    errors.add({f"card {i}": 1.0 for i in range(LONG)}, "layer")
    errors.add({"last": 2.0}, "layer")
    assert len(next(tmp_path.iterdir()).read_bytes().splitlines()) == KEEP
    assert errors.of("last", "layer") == [2.0]


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    errors = LoadErrors(tmp_path / "state")
    errors.add({"GPU-1": 600.0}, "layer")
    assert errors.of("GPU-1", "layer") == []


@pytest.mark.parametrize("error", [0.0, -3.25, 12345.68])
def test_what_is_noted_reads_back(tmp_path: Path, error: float) -> None:
    errors = LoadErrors(tmp_path)
    errors.add({"GPU-1": error}, "row")
    assert errors.of("GPU-1", "row") == [error]
