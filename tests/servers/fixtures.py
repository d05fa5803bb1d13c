"""Servers as fixtures: started once, when the first test asks for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.running import Contract, contract, llama_cpp_server
from workbench.store.models import resolve_model


@pytest.fixture(scope="session")
def ollama_process() -> Iterator[Contract]:
    with contract("ollama") as server:
        yield server


@pytest.fixture(scope="session")
def openai_process() -> Iterator[Contract]:
    with contract("openai") as server:
        yield server


@pytest.fixture
def ollama(ollama_process: Contract) -> Contract:
    """A server that keeps to Ollama's contract, as good as new."""
    ollama_process.anew()
    return ollama_process


@pytest.fixture
def openai(openai_process: Contract) -> Contract:
    """A server that keeps to OpenAI's contract, as good as new."""
    openai_process.anew()
    return openai_process


@pytest.fixture(scope="session")
def llama_cpp() -> Iterator[str]:
    """The address of llama-cpp-python's own server with the bundled model."""
    with llama_cpp_server(resolve_model("demo:smollm2")) as url:
        yield url


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """An https address whose certificate only an authority of its own vouches for, and that authority's file."""
    import trustme  # the tests on CUDA cards do without it

    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    with contract("openai", str(folder / "server.pem")) as server:
        yield server.url.replace("http://127.0.0.1", "https://localhost"), folder / "authority.pem"
