"""Real CUDA cards: all of this machine's, or two virtual ones of the only one there is.

`WORKBENCH_TEST_GGUF` names a model to use instead of a tiny random one.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.models import write_model
from workbench.domain.card import Card, CardKind
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split
from workbench.lab.cards import inventory

MakeLayout = Callable[..., Layout]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)


def used_mib() -> list[float]:
    """What NVML says is used on each GPU of the machine, in its order."""
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    return [pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20 for handle in handles]


@pytest.fixture(scope="session")
def cuda_env() -> dict[str, str | None]:
    """The environment that gives at least two CUDA cards."""
    pynvml.nvmlInit()
    return {} if pynvml.nvmlDeviceGetCount() > 1 else {"GGML_CUDA_DEVICES": "2"}


@pytest.fixture(scope="session")
def cuda_cards(cuda_env: dict[str, str | None]) -> tuple[Card, ...]:
    return tuple(card for card in inventory(cuda_env).cards if card.kind is CardKind.CUDA)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("WORKBENCH_TEST_GGUF"):
        return Path(given)
    return write_model(tmp_path_factory.mktemp("gpu") / "tiny.gguf", seed=1)


@pytest.fixture
def layout(model: Path, cuda_env: dict[str, str | None]) -> MakeLayout:
    """Layouts on the first two cards."""

    def make(n_ctx: int = 2048, context: dict[str, Any] | None = None, **split: Any) -> Layout:
        split.setdefault("cards", ("CUDA0", "CUDA1"))
        split.setdefault("tensor_split", (1.0, 1.0))
        return Layout(
            name="gpu",
            model=str(model),
            split=Split(**split),
            context=Context(n_ctx=n_ctx, **(context or {})),
            env=cuda_env,
        )

    return make
