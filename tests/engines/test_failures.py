"""What cannot be loaded: one message that says what is wrong and what would be right, and no process left."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engines.conftest import DEMO, Open, layout, with_context
from tests.models import write_model
from tests.waiting import wait_until
from workbench.domain.layout import Layout
from workbench.domain.split import Virtual
from workbench.engines.engine import EngineDied, EngineError, LoadFailed
from workbench.engines.llama.client import inspect_models
from workbench.engines.llama.wire import Inspected
from workbench.lab.kit import RealKit
from workbench.store.models import ModelError

SMALL = Virtual(("600MiB", "24MiB"))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert left == []


def failure(of: Layout, open_engine: Open) -> EngineError:
    with pytest.raises(EngineError) as caught, open_engine(of):
        pass
    return caught.value


# ── memory ───────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_weights_that_do_not_fit_name_the_card_and_the_mib(mode: str, open_engine: Open) -> None:
    error = failure(layout(split_mode=mode, tensor_split=(1, 1), cards=SMALL), open_engine)
    assert isinstance(error, LoadFailed)
    assert error.card == "RPC1"
    assert error.wanted_mib is not None
    assert error.free_mib is not None
    assert 24 < error.wanted_mib < 100
    assert 0 <= error.free_mib <= 24
    assert "RPC1 has no room for its weights" in error.reason
    assert "fewer layers" in error.reason


@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_a_context_beyond_memory_names_the_card_and_the_mib(mode: str, tiny: Path, open_engine: Open) -> None:
    of = layout(tiny, n_ctx=200_000, split_mode=mode, tensor_split=(1, 1), cards=Virtual(("60MiB", "60MiB")))
    error = failure(of, open_engine)
    assert isinstance(error, LoadFailed if mode == "layer" else EngineDied)
    assert error.card in ("RPC0", "RPC1")
    assert error.wanted_mib is not None
    assert error.wanted_mib > 400
    assert error.free_mib is not None
    assert error.free_mib < 60
    assert error.key == "context.n_ctx"
    assert "smaller n_ctx" in error.reason


def test_more_cards_than_the_library_takes(tiny: Path, open_engine: Open) -> None:
    error = failure(layout(tiny, cards=Virtual(("40MiB",) * 16)), open_engine)
    assert "15 cards beside the CPU" in error.reason
    assert error.key == "split.cards"


def test_a_new_context_beyond_memory_is_a_failure_too(tiny: Path, open_engine: Open) -> None:
    of = layout(tiny, n_ctx=256, layers=(4, 4), cards=Virtual(("60MiB", "60MiB")))
    with open_engine(of) as it, pytest.raises(LoadFailed, match="smaller n_ctx"):
        it.engine.new_context(with_context(of, n_ctx=200_000).context)


def test_virtual_cards_beyond_the_hosts_memory_are_refused_before_anything_starts(open_engine: Open) -> None:
    error = failure(layout(cards=Virtual(("600MiB", "900GiB"))), open_engine)
    assert error.key == "split.cards.virtual"
    assert error.wanted_mib == 600 + 900 * 1024
    assert "this host has" in error.reason
    assert "make them smaller" in error.reason


# ── the model ────────────────────────────────────────────────────────────────────────────
def broken(folder: Path, how: str) -> Path:
    path = folder / "model.gguf"
    if how == "text":
        path.write_text("this is a letter to a friend, and not a model at all")
    elif how == "magic alone":
        path.write_bytes(b"GGUF" + b"\x03\x00\x00\x00" + b"\xff" * 64)
    elif how == "cut":
        write_model(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "cut in the header":
        write_model(path)
        path.write_bytes(path.read_bytes()[:2000])
    elif how == "a folder":
        path.mkdir()
    return path


BROKEN = {
    "text": ("is not a GGUF file", "or give another"),
    "magic alone": ("header cannot be read", "damaged"),
    "cut": ("is truncated: it has", "download it again"),
    "cut in the header": ("header cannot be read", "damaged"),
    "a folder": ("is a folder", "name a GGUF file in it"),
    "missing": ("does not exist", "check the name"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_model_that_is_none_is_named_with_what_is_wrong(how: str, tmp_path: Path) -> None:
    path = broken(tmp_path, how)
    kit = RealKit()
    try:
        with pytest.raises((ModelError, LoadFailed)) as caught:
            kit.open_engine(layout(path), lambda _: None)
    finally:
        kit.close()
    assert isinstance(caught.value, ModelError | LoadFailed)
    assert caught.value.key == "model"
    assert str(path) in str(caught.value)
    for part in BROKEN[how]:
        assert part in str(caught.value)


def test_headers_of_damaged_files_are_read_one_by_one_by_one_worker(tmp_path: Path) -> None:
    """A picker reads whatever lies in a folder: no file may end the reading of the others."""
    data = write_model(tmp_path / "whole.gguf", n_layer=1).read_bytes()
    paths = []
    for i in range(40):
        # Within the header and its tensor list, a byte or a length at a time.
        at = 4 + i * 307 % 12_000
        path = tmp_path / f"{i:03d}.gguf"
        path.write_bytes(data[:at] + bytes([255 - data[at]] * (1 + i % 8)) + data[at + 1 + i % 8 :])
        paths.append(path)
    seen = list(inspect_models([*paths, tmp_path / "whole.gguf"], tmp_path / "engine.log"))
    assert len(seen) == 41
    assert all((one.model is None) == (one.error is not None) for one in seen)
    assert seen[-1].model is not None
    assert sum(one.error is not None for one in seen) > 10


def test_a_name_that_is_no_text_is_one_error_among_the_models(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"odd\xff.gguf")
    paths = [odd, write_model(tmp_path / "whole.gguf", n_layer=1)]
    odd.write_bytes(paths[1].read_bytes())
    seen = list(inspect_models(paths, tmp_path / "engine.log"))
    assert [one.model is not None for one in seen] == [False, True]
    assert seen[0].error == "its name is not UTF-8; rename it"


def test_a_header_that_brings_its_reader_down_is_one_error_among_the_models(tmp_path: Path) -> None:
    """A pipe that nobody writes to holds the reader up until it is killed, as a bad header may crash it."""
    os.mkfifo(tmp_path / "pipe.gguf")
    whole = write_model(tmp_path / "whole.gguf", n_layer=1)
    before = {child.pid for child in psutil.Process().children()}
    seen: list[Inspected] = []
    reading = threading.Thread(
        target=lambda: seen.extend(inspect_models([whole, tmp_path / "pipe.gguf", whole], tmp_path / "engine.log"))
    )
    reading.start()
    wait_until(lambda: seen)
    (reader,) = (child for child in psutil.Process().children() if child.pid not in before)
    reader.kill()
    reading.join(30)
    assert [one.model is not None for one in seen] == [True, False, True]
    assert "SIGKILL" in (seen[1].error or "")


def test_an_unknown_architecture_is_named(tmp_path: Path, open_engine: Open) -> None:
    error = failure(layout(write_model(tmp_path / "m.gguf", arch="lama5")), open_engine)
    assert "lama5" in error.reason
    assert error.key == "model"


# ── the split and its cards ──────────────────────────────────────────────────────────────
REFUSED: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "row": ({"split_mode": "row"}, "split.split_mode", ("row does not work on RPC0", "layer or tensor")),
    "main card": ({"split_mode": "none", "main_gpu": 2}, "split.main_gpu", ("main_gpu 2 is out of range", "0 to 1")),
    "shares": ({"tensor_split": (1, 1, 1)}, "split.tensor_split", ("3 shares", "2 cards")),
    "no shares": ({"tensor_split": (0, 0)}, "split.tensor_split", ("gives nothing to any card",)),
    "negative": ({"tensor_split": (-1, 1)}, "split.tensor_split[0]", ("-1 is not a share", "from 0")),
    "no such card": ({"cards": ("CUDA7",)}, "split.cards[0]", ("there is no card CUDA7", "`workbench cards`")),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_split_that_cannot_be_is_refused_before_anything_starts(why: str, open_engine: Open) -> None:
    split, key, says = REFUSED[why]
    error = failure(layout(**split), open_engine)
    assert isinstance(error, LoadFailed)
    assert error.key == key
    for part in says:
        assert part in error.reason


def test_tensor_mode_on_an_architecture_that_lacks_it(tmp_path: Path, open_engine: Open) -> None:
    model = write_model(tmp_path / "m.gguf", arch="olmo2")
    error = failure(layout(model, split_mode="tensor", tensor_split=(1, 1)), open_engine)
    assert isinstance(error, LoadFailed)
    assert error.key == "split.split_mode"
    assert "architecture olmo2" in error.reason
    assert "write layer" in error.reason


def test_a_quantised_v_cache_without_flash_attention(tiny: Path, open_engine: Open) -> None:
    error = failure(with_context(layout(tiny), type_v="q8_0", flash_attn=False), open_engine)
    assert error.key == "context.type_v"
    assert "flash_attn: auto" in error.reason


def test_an_rpc_endpoint_that_is_down(tiny: Path, open_engine: Open) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        error = failure(layout(tiny, cards=(f"rpc://127.0.0.1:{port}",)), open_engine)
    assert isinstance(error, LoadFailed)
    assert error.key == "split.cards"
    assert f"no RPC server answers at 127.0.0.1:{port}" in error.reason


def test_what_listens_and_is_no_rpc_server_is_named(tiny: Path, open_engine: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        error = failure(layout(tiny, cards=(f"rpc://{endpoint}",)), open_engine)
    assert isinstance(error, LoadFailed)
    assert error.key == "split.cards"
    assert f"what listens at {endpoint} does not answer" in error.reason
    assert "ggml-rpc-server" in error.reason


def test_an_rpc_endpoint_that_speaks_something_else(tiny: Path, open_engine: Open) -> None:
    """A web server on that port, say: it answers, and then hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        port = server.getsockname()[1]
        error = failure(layout(tiny, cards=(f"rpc://127.0.0.1:{port}",)), open_engine)
        assert f"127.0.0.1:{port}" in error.reason


def test_more_layers_than_the_model_has(tiny: Path) -> None:
    kit = RealKit()
    try:
        with pytest.raises(LoadFailed) as caught:
            kit.open_engine(layout(tiny, layers=(5, 5)), lambda _: None)
    finally:
        kit.close()
    assert caught.value.key == "split.layers"
    assert "10 layers are asked for, the model has 8" in caught.value.reason


def test_a_load_tells_how_far_it_is(open_engine: Open) -> None:
    with open_engine(layout(DEMO, layers=(16, 15))) as it:
        fractions = [progress.fraction for progress in it.progress]
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1]) == (0.0, 1.0)
        assert len(set(fractions)) > 20
        assert it.progress[0].stage == "starting cards"


def test_a_model_in_parts_loads_from_its_first(tmp_path: Path, open_engine: Open) -> None:
    first = write_model(tmp_path / "whole.gguf", seed=1, tensors_a_part=20)
    assert first.name == "whole-00001-of-00004.gguf"
    with open_engine(layout(first, n_ctx=256, layers=(4, 4))) as it:
        assert it.loaded.model.n_layer == 7
        assert it.loaded.model.size_mib > 10
        assert it.ask("hello", max_tokens=2, ignore_eos=True).timing.tokens == 2
    (tmp_path / "whole-00003-of-00004.gguf").unlink()
    with pytest.raises(ModelError, match=r"whole-00003-of-00004\.gguf"), open_engine(layout(first)):
        pass
