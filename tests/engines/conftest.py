"""Engines on real parts: workers, virtual cards, the bundled model and tiny ones."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.models import write_model
from workbench.domain.conversation import Message, Sampling
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split, Virtual
from workbench.engines.engine import EngineDied, Loaded, LoadProgress, Reply, Request
from workbench.engines.llama.client import LlamaEngine
from workbench.engines.llama.process import WorkerProcess, worker_environment
from workbench.lab.plan import plan_load
from workbench.store.models import resolve_model

DEMO = "demo:smollm2"
GREEDY = Sampling(temperature=0.0, max_tokens=16)
TWO_CARDS = Virtual(("600MiB", "600MiB"))


def layout(model: str | Path = DEMO, n_ctx: int = 1024, **split: Any) -> Layout:
    """A layout on two virtual cards unless `split` says otherwise."""
    split.setdefault("cards", TWO_CARDS)
    return Layout(name="test", model=str(model), split=Split(**split), context=Context(n_ctx=n_ctx))


def with_context(of: Layout, **context: Any) -> Layout:
    """The layout with other context settings."""
    return msgspec.structs.replace(of, context=msgspec.structs.replace(of.context, **context))


class Opened:
    """An engine of one layout with its worker, and what the tests ask of it."""

    def __init__(self, of: Layout, log: Path) -> None:
        self.deaths: list[EngineDied] = []
        self.progress: list[LoadProgress] = []
        command = plan_load(of, str(resolve_model(of.model)), lambda: ())
        environment = worker_environment(of.env, isinstance(of.split.cards, Virtual))
        self.worker = WorkerProcess(environment, log, self.deaths.append)
        self.engine = LlamaEngine(command, self.worker)
        self.loaded: Loaded

    def load(self) -> Loaded:
        """Load and remember what came of it."""
        self.loaded = self.engine.load(self.progress.append)
        return self.loaded

    def ask(self, *said: str, system: str | None = None, on_text: Callable[[str], None] = lambda _: None,
            **sampling: Any) -> Reply:  # fmt: skip
        """A reply to a conversation: prompts and replies in turn, the last one a prompt. Greedy, 16 tokens."""
        messages = [] if system is None else [Message("system", system)]
        messages += [Message("assistant" if i % 2 else "user", text) for i, text in enumerate(said)]
        request = Request(messages=tuple(messages), sampling=msgspec.structs.replace(GREEDY, **sampling))
        return self.engine.chat(request, on_text)


Open = Callable[..., AbstractContextManager[Opened]]


@contextmanager
def opened(of: Layout, log: Path, *, load: bool = True) -> Iterator[Opened]:
    """An engine, loaded, that is closed at the end."""
    it = Opened(of, log)
    try:
        if load:
            it.load()
        yield it
    finally:
        it.engine.close()


@pytest.fixture
def open_engine(tmp_path: Path) -> Open:
    """Opens engines: `with open_engine(layout(layers=(20, 11))) as it`."""
    return lambda of, **how: opened(of, tmp_path / "engine.log", **how)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The bundled model over two virtual cards, for tests that leave it able to serve."""
    with opened(layout(n_ctx=4096, layers=(16, 15)), tmp_path_factory.mktemp("demo") / "engine.log") as it:
        yield it


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 7 random layers, which loads at once."""
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=1)
