import os
from pathlib import Path

import pytest

from workbench.meters.pagecache import cached_share, model_files

MIB = 2**20


def test_what_was_just_written_is_cached_and_what_was_dropped_is_not(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    with model.open("wb") as file:
        file.write(os.urandom(8 * MIB))
        file.flush()
        os.fsync(file.fileno())
        assert cached_share([model]) == pytest.approx(1.0)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = cached_share([model])
    if share == 1.0:
        pytest.skip("this file system keeps its files in memory")
    assert share is not None
    assert share < 0.9


def test_what_the_kernel_does_not_tell_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "m.gguf"
    assert cached_share([model]) is None
    model.write_bytes(b"")
    assert cached_share([model]) is None
    model.write_bytes(b"x" * 4096)
    assert cached_share([model]) is not None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cached_share([model]) is None
    assert cached_share([]) is None


def test_a_model_in_parts_is_all_of_them(tmp_path: Path) -> None:
    for name in ("big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "other-00001-of-00002.gguf", "big.gguf"):
        (tmp_path / name).touch()
    assert [path.name for path in model_files(str(tmp_path / "big-00001-of-00002.gguf"))] == [
        "big-00001-of-00002.gguf",
        "big-00002-of-00002.gguf",
    ]
    assert model_files(str(tmp_path / "big.gguf")) == (tmp_path / "big.gguf",)
