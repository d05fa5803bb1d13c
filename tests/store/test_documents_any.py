"""Whatever is in a file, the answer is a document or a DocumentError."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from workbench.store.documents import DocumentError, check_document, locate, read_layout, read_prompt_set

SOUND = """\
name: a
engine: llama.cpp
model: ~/m.gguf
split:
  split_mode: layer
  layers: [20, 11]
  cards: {virtual: [600MiB, 300MiB]}
context: {n_ctx: 4096, flash_attn: on}
env: {GGML_CUDA_P2P: "1", NCCL_DEBUG: null}
"""
KEYS = ["name", "model", "split", "split_mode", "tensor_split", "layers", "cards", "virtual", "context", "n_ctx",
        "flash_attn", "env", "GGML_CUDA_P2P", "prompts", "defaults", "id", "text", "messages", "role", "content",
        "synthetic", "seed", "", ".", "a[0]", "<<", "\x1b[2J\n"]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(
    ["auto", "all", "layer", "CUDA0", "600MiB", "on", "user"])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(KEYS), inner, max_size=5), max_leaves=20)


def ends_well(path: Path) -> None:
    for read in (read_layout, read_prompt_set):
        try:
            document: Any = read(path)
        except DocumentError as error:
            document = error
        if isinstance(document, DocumentError):
            assert str(document).isprintable()
            assert str(document).startswith(str(path))
        else:
            assert isinstance(document, msgspec.Struct)
    for fault in check_document(path):
        assert fault.line is None or fault.line >= 1


@given(at=st.integers(0, len(SOUND)), cut=st.integers(0, 12), junk=st.text("[]{}:,#&*!|>'\"%@`-? \n\tax0.", max_size=8))
def test_any_slip_of_the_keyboard(tmp_path_factory: pytest.TempPathFactory, at: int, cut: int, junk: str) -> None:
    path = tmp_path_factory.getbasetemp() / "slip.yaml"
    path.write_text(SOUND[:at] + junk + SOUND[at + cut:])
    ends_well(path)


@given(value=values)
def test_any_tree(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.getbasetemp() / "tree.yaml"
    path.write_text(yaml.safe_dump(value), encoding="utf-8", errors="replace")
    ends_well(path)


@given(value=values)
def test_any_line_of_json(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.getbasetemp() / "tree.jsonl"
    path.write_bytes(msgspec.json.encode(value, order="deterministic") + b"\n")
    ends_well(path)


@given(key=st.text(".[]ab0split", max_size=20))
def test_any_key_is_located_somewhere(tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    path = tmp_path_factory.getbasetemp() / "sound.yaml"
    path.write_text(SOUND)
    line = locate(path, key)
    assert line is not None
    assert 1 <= line <= 9
