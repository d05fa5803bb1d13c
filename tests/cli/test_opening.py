from pathlib import Path

import pytest

from workbench.cli.opening import what_to_open
from workbench.domain.layout import Layout
from workbench.store.documents import DocumentError
from workbench.store.models import ModelError, resolve_model


def test_a_layout_by_path_and_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    by_name = what_to_open("small")
    assert isinstance(by_name, Layout)
    assert by_name.split.layers == (20, 11)
    assert what_to_open("layouts/small.yaml") == by_name


def test_a_model_becomes_a_layout_of_its_own(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    model.symlink_to(resolve_model("demo:smollm2"))
    assert what_to_open(str(model)) == Layout(name="tiny", model=str(model))


def test_a_folder_is_to_choose_from(tmp_path: Path) -> None:
    assert what_to_open(str(tmp_path)) == tmp_path


def test_what_is_not_there_is_said_before_the_screen_opens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(DocumentError, match="small"):
        what_to_open("smal")
    with pytest.raises(ModelError, match=r"nothing\.gguf"):
        what_to_open("nothing.gguf")
    (folder / "text.gguf").write_text("no model")
    with pytest.raises(ModelError, match="GGUF"):
        what_to_open("text.gguf")
