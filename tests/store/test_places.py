"""Documents are found by name or path, nearest folder first."""

from pathlib import Path

import pytest

from workbench.domain.duty import Price
from workbench.domain.layout import Layout
from workbench.domain.prompts import PromptSet
from workbench.store.config import Config
from workbench.store.documents import DocumentError
from workbench.store.places import (
    Places,
    find_layout,
    find_prompt_set,
    list_layouts,
    list_prompt_sets,
    places,
    private_folder,
    read_config,
)

LAYOUT = "name: {}\nmodel: m.gguf\n"
PROMPTS = "name: {}\nprompts: [{{id: a, text: b}}]\n"


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A home of its own, and a current folder beside it."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return places()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_configuration_that_may_not_be_looked_at_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *, follow_symlinks: bool = True) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    at = places({"WORKBENCH_HOME": str(tmp_path)})
    assert read_config(at) == Config()
    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(DocumentError, match=r"config\.yaml: cannot be read: Permission denied"):
        read_config(at)


def test_one_variable_moves_everything(tmp_path: Path) -> None:
    moved = places({"WORKBENCH_HOME": str(tmp_path)})
    for folder in (moved.config, moved.state, moved.log, moved.data, moved.runtime, moved.journals):
        assert folder.is_relative_to(tmp_path)


def test_without_it_the_users_folders_are_taken() -> None:
    usual = places({})
    assert usual.config.is_absolute()
    assert len({usual.config, usual.state, usual.data, usual.runtime}) >= 3
    assert "workbench" in str(usual.state)


def test_the_runtime_folder_is_the_login_sessions_where_that_is_the_users(tmp_path: Path) -> None:
    assert places({"XDG_RUNTIME_DIR": str(tmp_path)}).runtime == tmp_path / "workbench"
    for nothing in ({}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": str(tmp_path / "none")}):
        usual = places(nothing)
        assert usual.runtime == usual.state / "run"


def test_nothing_is_made_before_it_is_needed(at: Places) -> None:
    assert list_layouts() == []
    assert list_prompt_sets() == []
    assert not at.config.exists()
    assert private_folder(at.state).stat().st_mode & 0o777 == 0o700


def test_documents_of_both_folders_are_listed_faulty_ones_too(at: Places) -> None:
    write(Path("layouts/mine.yaml"), LAYOUT.format("mine"))
    write(Path("layouts/bad.yml"), "name: bad\n")
    write(Path("layouts/.hidden.yaml"), "")
    write(Path("layouts/notes.txt"), "")
    write(at.config / "layouts" / "far.yaml", LAYOUT.format("far"))
    bad, mine, far = list_layouts()
    assert isinstance(bad[1], DocumentError)
    assert bad[1].key == "model"
    assert mine == (Path("layouts/mine.yaml"), Layout(name="mine", model="m.gguf"))
    assert far[0] == at.config / "layouts" / "far.yaml"
    write(Path("prompts/a.yaml"), PROMPTS.format("a"))
    write(Path("prompts/b.jsonl"), '{"prompt": "x"}\n')
    assert [document.name for _, document in list_prompt_sets() if isinstance(document, PromptSet)] == ["a", "b"]


def test_a_layout_is_found_by_file_by_name_and_by_path(at: Places) -> None:
    write(Path("layouts/mine.yaml"), LAYOUT.format("a name"))
    write(at.config / "layouts" / "mine.yaml", LAYOUT.format("other"))
    write(at.config / "layouts" / "far.yaml", LAYOUT.format("far"))
    near = Path("layouts/mine.yaml")
    for asked in ("mine", "mine.yaml", "a name", "layouts/mine.yaml", "./layouts/mine.yaml"):
        assert find_layout(asked) == near, asked
    assert find_layout("far") == at.config / "layouts" / "far.yaml"
    write(Path("prompts/quick.jsonl"), '{"prompt": "x"}\n')
    assert find_prompt_set("quick") == Path("prompts/quick.jsonl")


@pytest.mark.parametrize(("asked", "words"), [
    ("demo-evn", ["demo-evn: no layout of that name in layouts and", "did you mean `demo-even`?"]),
    ("zzzzzz", ["there are demo-even"]),
    ("layouts/demo-evn.yaml", ["does not exist", "`demo-even`"]),
    ("demo-evn.yaml", ["no layout of that name", "`demo-even`"]),
])
@pytest.mark.usefixtures("at")
def test_an_unknown_name_lists_near_ones(asked: str, words: list[str]) -> None:
    write(Path("layouts/demo-even.yaml"), LAYOUT.format("demo-even"))
    with pytest.raises(DocumentError) as caught:
        find_layout(asked)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.usefixtures("at")
def test_without_any_document_a_path_is_asked_for() -> None:
    with pytest.raises(DocumentError, match=r"no prompt set of that name in prompts and .*; give the path of one"):
        find_prompt_set("quick")


def test_the_configuration_is_a_strict_document(at: Places) -> None:
    assert read_config().model_folders is None
    path = at.config / "config.yaml"
    write(path, "# nothing yet\n")
    assert read_config().model_folders is None
    write(path, "model_folders: [~/models, /data]\n")
    assert read_config().model_folders == ("~/models", "/data")
    write(path, "model_folder: [x]\n")
    with pytest.raises(DocumentError, match=r"config\.yaml:1: model_folder: .*did you mean `model_folders`"):
        read_config()
    write(path, "model_folders: ['']\n")
    with pytest.raises(DocumentError, match="is no folder's name"):
        read_config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('model_folders: ["a\\0b"]', r"model_folders\[0\]: is no folder's name"),
        ("price: {per_hour: .nan}", "price.per_hour: is nan; a price is above 0"),
        ("price: {per_hour: .inf}", "price.per_hour: is inf; a price is above 0"),
        ('price: {per_hour: 1, currency: "E\\e[31mU"}', "price.currency: is not 1 to 12 letters"),
        ("api_keys: {sk-abc: [https://x.org]}", "api_keys: has a name that no environment variable can have"),
        ("api_keys: {MY_KEY: 'https://x.org'}", r"api_keys.MY_KEY: .* is no list; write \[https://x.org\]"),
    ],
)
def test_what_no_configuration_can_have(at: Places, text: str, said: str) -> None:
    write(at.config / "config.yaml", text + "\n")
    with pytest.raises(DocumentError, match=said):
        read_config()


def test_what_running_costs(at: Places) -> None:
    assert read_config().price is None
    path = at.config / "config.yaml"
    write(path, "price: {currency: CHF, per_hour: 4, per_kwh: 0.3}\n")
    assert read_config().price == Price(currency="CHF", per_hour=4.0, per_kwh=0.3)
    write(path, "price:\n  per_hour: -1\n")
    with pytest.raises(DocumentError, match=r"config\.yaml:2: price\.per_hour: is -1; a price is above 0"):
        read_config()
    write(path, "price: {currency: CHF}\n")
    with pytest.raises(DocumentError, match=r"config\.yaml:1: price: has neither per_hour nor per_kwh"):
        read_config()
    write(path, "price: {per_day: 4}\n")
    with pytest.raises(DocumentError, match=r"price\.per_day"):
        read_config()
