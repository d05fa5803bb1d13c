"""Files as memory: mapped when they are needed, or before."""

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from workbench.engines.llama.child import mapped

SIZE = 3 * 2**20 + 5


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "state"
    path.write_bytes(bytes(SIZE))
    yield path
    mapped.expect(path, 0)
    mapped.drop()


def address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def mappings(path: Path) -> list[int]:
    """Where this process has it."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [int(line.split("-")[0], 16) for line in lines if line.endswith(str(path))]


def test_what_is_written_is_the_file_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "new"
    ctypes.memset(mapped.writable(path, SIZE), 7, SIZE)
    assert path.read_bytes() == b"\7" * SIZE
    assert path.stat().st_mode & 0o777 == 0o600
    assert ctypes.string_at(mapped.readable(path, SIZE), SIZE) == b"\7" * SIZE
    assert len(mappings(path)) == 2
    mapped.drop()
    assert not mappings(path)


@pytest.mark.parametrize("use", [mapped.writable, mapped.readable])
def test_what_is_expected_is_mapped_once_and_used_once(use: Any, file: Path) -> None:
    mapped.expect(file, SIZE)
    wait_until(lambda: mappings(file))
    there = mappings(file)
    assert address(use(file, SIZE - 100)) == there[0]
    assert mappings(file) == there
    mapped.drop()
    assert not mappings(file)
    assert address(use(file, os.path.getsize(file)))
    assert len(mappings(file)) == 1


def test_a_file_that_is_shorter_in_the_end_ends_where_it_is_said(file: Path) -> None:
    mapped.expect(file, SIZE)
    ctypes.memset(mapped.writable(file, 10), 7, 10)
    assert file.read_bytes() == b"\7" * 10


def test_more_than_was_expected_is_mapped_anew(file: Path) -> None:
    mapped.expect(file, 4096)
    ctypes.memset(mapped.writable(file, SIZE), 7, SIZE)
    assert len(mappings(file)) == 1
    assert file.read_bytes() == b"\7" * SIZE


def test_what_is_not_needed_after_all_is_let_go(file: Path) -> None:
    mapped.expect(file, SIZE)
    mapped.expect(file, SIZE)
    mapped.expect(file, 0)
    wait_until(lambda: not mappings(file))


def test_where_no_thread_is_to_be_had_it_is_mapped_when_it_is_needed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = ThreadPoolExecutor(1)
    ended.shutdown()
    monkeypatch.setattr(mapped, "_ahead", ended)
    mapped.expect(file, SIZE)
    assert not mappings(file)
    monkeypatch.setattr(mapped, "ThreadPoolExecutor", lambda _: ended)
    ctypes.memset(mapped.writable(file, SIZE), 7, SIZE)
    assert file.read_bytes() == b"\7" * SIZE


def test_what_cannot_be_mapped_beforehand_is_an_error_when_it_is_needed(tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    mapped.expect(missing, SIZE)
    with pytest.raises(FileNotFoundError):
        mapped.readable(missing, SIZE)
