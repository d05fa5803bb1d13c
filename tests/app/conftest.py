from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.terminals import Terminal

OpenTerminal = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[OpenTerminal]:
    """Opens a terminal in an empty folder; all are closed at the end."""
    made: list[Terminal] = []

    def open_terminal(*args: str, **options: object) -> Terminal:
        made.append(Terminal(tmp_path, *args, **options))  # type: ignore[arg-type]
        return made[-1]

    yield open_terminal
    for terminal in made:
        terminal.close()
