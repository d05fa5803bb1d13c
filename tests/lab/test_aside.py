"""Where a conversation's state is between two engines."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from workbench.domain.memory import CardMemory
from workbench.engines.engine import Loaded
from workbench.engines.scripted import MODEL
from workbench.lab import aside
from workbench.lab.aside import Aside, size_of_state
from workbench.store.places import places


def test_it_is_set_aside_beforehand_and_another_process_writes_there() -> None:
    room = Aside(100_000)
    try:
        assert room.path.stat().st_size == 100_000
        subprocess.run([sys.executable, "-c", f"open({str(room.path)!r}, 'r+b').write(b'state')"], check=True)
        assert room.path.read_bytes()[:5] == b"state"
    finally:
        room.close()
    assert not room.path.exists()


def test_what_does_not_fit_in_memory_goes_to_the_runtime_folder_without_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aside, "SHARE_OF_FREE", 0.0)
    room = Aside(4096)
    try:
        folder = places().runtime
        assert Path(os.readlink(room.path)).is_relative_to(folder)
        assert not list(folder.iterdir())
        room.path.write_bytes(b"state")
        assert room.path.read_bytes() == b"state"
    finally:
        room.close()


def test_about_as_large_as_its_part_of_the_cache() -> None:
    held = CardMemory(name="CUDA0", weights_mib=9, kv_mib=64, compute_mib=9)
    host = CardMemory(name="CPU", weights_mib=9, kv_mib=0, compute_mib=9)
    loaded = Loaded(model=MODEL, cards=(held, held), host=host, places=(), n_ctx=1000, flash_attn=True, template="",
                    template_is_fallback=False, load_s=1, pid=1)  # fmt: skip
    assert 32 * 2**20 <= size_of_state(loaded, 250) < 34 * 2**20
    assert 128 * 2**20 <= size_of_state(loaded, 9999) < 132 * 2**20
    assert size_of_state(msgspec.structs.replace(loaded, n_ctx=0), 250) == 0
