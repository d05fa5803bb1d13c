"""What every test gets: folders of its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configuration, data, state, cache and runtime folders in a temporary place."""
    root = tmp_path_factory.mktemp("home")
    for variable in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{variable}_HOME", str(root / variable.lower()))
    runtime = root / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    return root
