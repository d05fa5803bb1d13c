"""What every test gets: folders of its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configuration, state, logs, data and runtime files in a temporary place."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("WORKBENCH_HOME", str(home))
    return home
