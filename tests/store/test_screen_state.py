"""What the screen was like: never lost, never in the way of a start."""

import os
from pathlib import Path

import pytest

from workbench.store import screen_state
from workbench.store.screen_state import ScreenState, read_screen_state, write_screen_state

STATE = ScreenState(theme="nord", compact=True, meters_off=True, unsent="half a thought", told=("reply",))


def test_it_comes_back_as_it_was_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "screen.json"
    assert read_screen_state(path) == (ScreenState(), None)
    assert write_screen_state(path, STATE) is None
    assert read_screen_state(path) == (STATE, None)
    assert path.stat().st_mode & 0o777 == 0o600


def test_keys_of_an_earlier_or_later_time_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "screen.json"
    path.write_text('{"version": 1, "theme": "nord", "gone": 3}')
    assert read_screen_state(path) == (ScreenState(theme="nord"), None)


def test_an_older_version_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "screen.json"
    path.write_text('{"version": 1, "colours": "nord"}')
    monkeypatch.setattr(screen_state, "VERSION", 3)
    monkeypatch.setitem(screen_state.UPGRADES, 1, lambda raw: {"theme": raw["colours"]})
    assert read_screen_state(path) == (ScreenState(version=3, theme="nord"), None)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00\xff" * 50, b"[]", b"{}", b'{"version": "1"}', b'{"version": true}', b'{"version": 1, "theme": 3}',
     b'{"version": -1}', b"[" * 100_000, b'{"version": 1, "theme": "no'],
)  # fmt: skip
def test_a_damaged_file_is_kept_and_told(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "screen.json"
    for name in ("screen.damaged.json", "screen.damaged-2.json"):
        path.write_bytes(data)
        state, said = read_screen_state(path)
        assert state == ScreenState()
        assert said is not None
        assert "is damaged" in said
        assert name in said
        assert (tmp_path / name).read_bytes() == data
        assert write_screen_state(path, STATE) is None


def test_a_newer_file_is_kept_and_told(tmp_path: Path) -> None:
    path = tmp_path / "screen.json"
    path.write_text('{"version": 7, "theme": {"x": 1}}')
    state, said = read_screen_state(path)
    assert state == ScreenState()
    assert said is not None
    assert "newer workbench (version 7)" in said
    assert (tmp_path / "screen.v7.json").read_text() == '{"version": 7, "theme": {"x": 1}}'


def test_what_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = write_screen_state(tmp_path / "file" / "screen.json", STATE)
    assert said is not None
    assert "cannot be written" in said
    (tmp_path / "screen.json").mkdir()
    assert "cannot be read" in (read_screen_state(tmp_path / "screen.json")[1] or "")


def test_a_file_without_an_end_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "screen.json"
    os.mkfifo(path)
    state, said = read_screen_state(path)
    assert state == ScreenState()
    assert said is not None
    assert "no plain file" in said
