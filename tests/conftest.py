"""What every test gets: folders of its own, and a card if it asks for one."""

import os
import sys
from pathlib import Path

import pytest

from tests.servers.fixtures import llama_cpp, ollama, ollama_process, openai, openai_process, secure  # noqa: F401
from tools.setup_venv import capabilities, has_nvidia_driver

for _size in ("COLUMNS", "LINES"):  # of the terminal round about, which pytest-xdist tells its workers
    os.environ.pop(_size, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA card where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not (has_nvidia_driver() and capabilities(Path(sys.executable), os.environ).cuda):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA card and a CUDA build"))


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configuration, state, logs, data and runtime files in a temporary place."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("WORKBENCH_HOME", str(home))
    return home
