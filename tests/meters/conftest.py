from collections.abc import Callable, Iterator

import pynvml
import pytest

from tests.meters.fake_nvml import FakeNvmlLib

Plug = Callable[[FakeNvmlLib | None], None]


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plug]:
    """Put a library under the real binding; None takes away the one that is there."""

    def use(lib: FakeNvmlLib | None) -> None:
        pynvml._nvmlGetFunctionPointer_cache.clear()
        monkeypatch.setattr(pynvml, "nvmlLib", lib)

    yield use
    pynvml._nvmlGetFunctionPointer_cache.clear()
