from pathlib import Path

import pytest

from workbench.app.opening import decide
from workbench.cli.failures import CommandFailed
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
    with pytest.raises(CommandFailed, match=r"no layout .*; did you mean `workbench doctor`\?"):
        what_to_open("doctr", ["demo", "doctor"])
    with pytest.raises(CommandFailed, match=r"did you mean `small`\? Or did you mean `workbench smell`\?"):
        what_to_open("smal", ["smell"])
    with pytest.raises(ModelError, match=r"nothing\.gguf"):
        what_to_open("nothing.gguf")
    (folder / "text.gguf").write_text("no model")
    with pytest.raises(ModelError, match="GGUF"):
        what_to_open("text.gguf")


@pytest.mark.parametrize("data", [b"\x00" * 300, b'{"type":"journal","version":9,"started":1}\n'])
def test_what_cannot_be_brought_back_is_said_and_stops_nothing(own_home: Path, data: bytes) -> None:
    journals = own_home / "state" / "journals"
    journals.mkdir(parents=True)
    (journals / "a.jsonl").write_bytes(data)
    layout = Layout(name="x", model="x.gguf")
    for resume, words in ((True, "so this is a new one"), (False, "")):
        start = decide(layout, resume=resume, demo=False)
        assert start.journal is not None
        start.journal.close()
        assert start.layout == layout
        assert not start.conversation.turns
        assert len(start.troubles) == resume
        assert all(words in trouble and str(journals / "a.jsonl") in trouble for trouble in start.troubles)
    assert (journals / "a.jsonl").read_bytes() == data


def test_a_folder_where_no_journal_can_be_kept_is_said(own_home: Path) -> None:
    (own_home / "state").write_text("in the way")
    start = decide(Layout(name="x", model="x.gguf"), resume=False, demo=False)
    assert start.journal is None
    assert "no journal can be kept" in start.troubles[0]
