"""Models for the lab's tests."""

from pathlib import Path

import pytest

from tests.models import write_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 7 random layers, which loads at once."""
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=1)
