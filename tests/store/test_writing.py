"""Layouts written are layouts read, and nothing is overwritten unasked."""

import stat
import typing
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.domain.env import ALLOWED, READ_BY_VALUE
from workbench.domain.layout import CacheType, Context, EngineName, Layout
from workbench.domain.rules import check_layout
from workbench.domain.split import MODES, Split, Virtual
from workbench.store.documents import DocumentError, read_layout
from workbench.store.writing import file_name, free_name, layout_yaml, save_layout, save_named

text = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1).filter(str.strip)
shares = st.lists(st.floats(0, 1e6, allow_subnormal=False) | st.integers(0, 99).map(float), min_size=1, max_size=4)
cards = st.none() | st.lists(text.filter(lambda name: not name.lower().startswith("rpc:")), min_size=4, max_size=6,
                             unique_by=lambda name: name.strip().lower()).map(tuple) | st.lists(
    st.integers(1, 9999).map("{}MiB".format), min_size=4, max_size=4).map(lambda sizes: Virtual(tuple(sizes)))
splits = st.builds(
    Split, split_mode=st.sampled_from(MODES), tensor_split=st.just("auto") | shares.map(tuple),
    main_gpu=st.integers(0, 3), n_gpu_layers=st.just("all") | st.integers(0, 200), cards=cards,
) | st.builds(Split, layers=st.lists(st.integers(1, 99), min_size=1, max_size=4).map(tuple), cards=cards)
counts = st.integers(1, 2**31 - 1)
cache_types = st.sampled_from(typing.get_args(CacheType))
layouts = st.builds(
    Layout, name=text, model=text, engine=st.sampled_from(typing.get_args(EngineName)), split=splits,
    context=st.builds(
        Context, n_ctx=st.integers(0, 2**31 - 1), n_batch=counts, n_ubatch=counts, type_k=cache_types,
        type_v=cache_types, n_threads=st.just("auto") | st.integers(1, 512),
        flash_attn=st.sampled_from(["auto", True])),
    env=st.dictionaries(st.sampled_from(sorted(READ_BY_VALUE)), st.none() | text)
    | st.dictionaries(st.sampled_from(sorted(ALLOWED)), st.none() | st.just("1")),
)


@given(layout=layouts)
def test_a_layout_reads_back_exactly(tmp_path_factory: pytest.TempPathFactory, layout: Layout) -> None:
    if check_layout(layout):
        return
    path = tmp_path_factory.mktemp("layout") / "a.yaml"
    save_layout(layout, path)
    assert read_layout(path) == layout


def test_a_saved_layout_is_written_as_people_write_it(tmp_path: Path) -> None:
    layout = Layout(name="mine", model="~/models/*.gguf", env={"GGML_CUDA_P2P": "1"},
                    split=Split(tensor_split=(3.0, 1.5), cards=("CUDA0", "CUDA1")))
    assert layout_yaml(layout) == """\
name: mine
engine: llama.cpp
model: ~/models/*.gguf
split:
  split_mode: layer
  tensor_split: [3, 1.5]
  n_gpu_layers: all
  cards: [CUDA0, CUDA1]
context: {n_ctx: 4096, n_batch: 2048, n_ubatch: 512, n_threads: auto, type_k: f16, type_v: f16, flash_attn: auto}
env: {GGML_CUDA_P2P: "1"}
"""


def test_saving_makes_folders_and_files_that_others_may_read(tmp_path: Path) -> None:
    path = save_layout(Layout(name="a", model="m"), tmp_path / "new" / "a.yaml")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["a.yaml"]


def test_another_document_is_overwritten_only_when_told(tmp_path: Path) -> None:
    path = save_layout(Layout(name="a", model="m"), tmp_path / "a.yaml")
    save_layout(Layout(name="a", model="m"), path)
    with pytest.raises(DocumentError, match=r"exists already; choose another name"):
        save_layout(Layout(name="a", model="other"), path)
    assert read_layout(path).model == "m"
    save_layout(Layout(name="a", model="other"), path, overwrite=True)
    assert read_layout(path).model == "other"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_link_keeps_pointing_at_the_document(tmp_path: Path) -> None:
    path = save_layout(Layout(name="a", model="m"), tmp_path / "a.yaml")
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    save_layout(Layout(name="a", model="other"), link, overwrite=True)
    assert link.is_symlink()
    assert read_layout(path).model == "other"


def test_a_layout_that_would_not_read_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    with pytest.raises(DocumentError, match=r"split\.layers: puts no layer"):
        save_layout(Layout(name="a", model="m", split=Split(layers=(0, 0))), path)
    with pytest.raises(DocumentError, match="UTF-8"):
        save_layout(Layout(name="a", model="m\udcff"), path)
    assert not path.exists()


def test_a_disk_that_refuses_is_one_message_and_leaves_nothing(tmp_path: Path) -> None:
    with mock.patch("os.fsync", side_effect=OSError(28, "No space left on device")), \
            pytest.raises(DocumentError, match="cannot be written: No space left"):
        save_layout(Layout(name="a", model="m"), tmp_path / "a.yaml")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(DocumentError, match="no folder"):
        save_layout(Layout(name="a", model="m"), tmp_path / "file" / "a.yaml")


@pytest.mark.parametrize(("name", "file"), [
    ("my layout/2", "my-layout-2.yaml"), ("../../etc/passwd", "etc-passwd.yaml"), ("…", "unnamed.yaml"),
    ("", "unnamed.yaml"), ("3:1", "3-1.yaml"), (".hidden", "hidden.yaml"), ("x" * 300, "x" * 60 + ".yaml"),
])
def test_names_become_plain_file_names(name: str, file: str) -> None:
    assert file_name(name) == file


@given(name=st.text())
def test_any_name_becomes_one_file_in_its_folder(name: str) -> None:
    file = file_name(name)
    assert Path(file).name == file
    assert not file.startswith((".", "-"))
    assert len(file.encode("utf-8", "replace")) <= 255


def test_a_layout_is_saved_under_a_name_near_by_where_there_is_a_folder_else_in_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    layout = Layout(name="old", model="m.gguf")
    assert save_named(layout, "my split").is_relative_to(own_home)
    (tmp_path / "layouts").mkdir()
    path = save_named(layout, "my split")
    assert path == Path("layouts/my-split.yaml")
    assert read_layout(path).name == "my split"
    with pytest.raises(DocumentError, match="exists already"):
        save_named(msgspec.structs.replace(layout, model="other.gguf"), "my split")


def test_a_free_name_is_that_of_no_file_in_either_folder(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, name in ((tmp_path, "even.yaml"), (own_home / "config", "even-2.yml")):
        (folder / "layouts").mkdir(parents=True)
        (folder / "layouts" / name).touch()
    assert free_name("odd") == "odd"
    assert free_name("even") == "even-3"
