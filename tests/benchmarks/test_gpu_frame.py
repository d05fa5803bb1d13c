"""The frame of the measurements on real cards: what is kept, what is cut, what the page says."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.benchmarks.gpu import running, table
from tests.benchmarks.gpu.__main__ import arguments
from tests.benchmarks.gpu.room import Figure, Room
from tests.benchmarks.gpu.table import Machine
from workbench.store.appending import open_locked

TWO = Machine(cards=("H200", "H200"), date="2026-11-30 10:00:00", command="python -m …")
PARTED = msgspec.structs.replace(TWO, parts=2)
FAST = Figure.at_least(0.99, 0.98, part="parity", what="decode", case="8b")
SLOW = Figure.at_least(0.91, 0.98, part="parity", what="decode", case="8b")
PARTS = {
    "slow": """
import subprocess, sys, time
from tests.benchmarks.gpu.room import Figure
def measure(room):
    left = subprocess.Popen(["sleep", "300"], start_new_session=True)
    yield Figure(part="slow", what="pid", value=left.pid)
    time.sleep(300)
""",
    "failing": """
from tests.benchmarks.gpu.room import Figure
def measure(room):
    yield Figure(part="failing", what="before", value=1)
    raise ValueError("/home/someone/8b.gguf is | no model")
""",
}


def write(folder: Path, *lines: table.Line) -> Path:
    folder.mkdir(exist_ok=True)
    for line in lines:
        table.append(folder / table.FIGURES, line)
    return folder


def test_of_each_figure_the_newest_counts_wherever_it_was_written(tmp_path: Path) -> None:
    later = msgspec.structs.replace(TWO, date="2026-11-30 11:00:00", commit="abc")
    one = write(tmp_path / "one", TWO, SLOW, running.ended("parity", 480, "cut after 480 s"), PARTED, SLOW)
    two = write(tmp_path / "two", later, FAST, running.ended("parity", 300))
    whole, parted = table.read([two, one])
    assert whole.machine.commit == "abc"
    assert [figure.value for figure in whole.figures] == [0.99, 300]
    assert whole.done() == {"parity"}
    assert not whole.short()
    assert parted.short() == (SLOW,)
    assert parted.done() == set()


def test_a_model_that_was_not_there_gives_way_to_its_figures_of_another_run(tmp_path: Path) -> None:
    missing = Figure(part="parity", what="decode", case="70b", note="not measured: no such model")
    there = Figure(part="parity", what="decode", case="70b, layer 1:1", value=1.0)
    one, two = write(tmp_path / "one", TWO, missing), write(tmp_path / "two", TWO, there)
    assert [sheet.figures for sheet in table.read([one])] == [(missing,)]
    assert [sheet.figures for sheet in table.read([one, two])] == [(there,)]


def test_what_a_later_run_did_not_measure_leaves_what_an_earlier_one_found(tmp_path: Path) -> None:
    later = msgspec.structs.replace(TWO, date="2026-11-30 11:00:00")
    missing = msgspec.structs.replace(FAST, value=None, holds=None, note="not measured: no such model")
    one, two = write(tmp_path / "one", TWO, FAST), write(tmp_path / "two", later, missing)
    assert [sheet.figures for sheet in table.read([one, two])] == [(FAST,)]


def test_a_part_that_was_cut_is_not_done_and_a_torn_line_costs_itself(tmp_path: Path) -> None:
    folder = write(tmp_path / "out", TWO, FAST, running.ended("parity", 480, "cut after 480 s"), running.ended("ab", 9))
    with (folder / table.FIGURES).open("ab") as file:
        file.write(b'{"type":"figure","part":"lea')
    (sheet,) = table.read([folder])
    assert sheet.done() == {"ab"}
    assert FAST in sheet.figures


def test_what_is_added_behind_a_torn_line_is_not_part_of_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "out", TWO, FAST)
    with (folder / table.FIGURES).open("ab") as file:
        file.write(b'{"type":"figure","part":"lea')
    write(folder, PARTED, SLOW)
    assert [(sheet.machine.place, sheet.figures) for sheet in table.read([folder])] == [
        ("2 × H200", (FAST,)), ("H200 in 2 parts", (SLOW,))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "nan"], "write minutes above 0"),
        (["--within", "0"], "write minutes above 0"),
        (["--cards", "-1"], "from 2 to 64"),
        (["--cards", "1"], "from 2 to 64"),
        (["--join", "/nowhere"], "there is no figures.jsonl in it"),
        (["--parts", "party"], "there is no part party"),
        (["--model", "8b"], "write NAME=FILE"),
    ],
)
def test_what_cannot_be_asked_says_what_can(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["out", "--rehearse", *words])
    assert said in capsys.readouterr().err


def test_a_folder_that_is_none_or_in_use_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "used").mkdir()
    with open_locked(tmp_path / "used" / "lock", os.O_CREAT, 0o600):
        for name, said in (("file", "give a folder that can be written"), ("used", "another run writes to")):
            command = [sys.executable, "-m", "tests.benchmarks.gpu", str(tmp_path / name), "--rehearse"]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            assert ended.returncode == 1
            assert said in ended.stderr
            assert len(ended.stderr.splitlines()) == 1


def test_the_page_names_the_place_and_what_falls_short(tmp_path: Path) -> None:
    unmeasured = Figure(part="ab", what="P2P on over off", note="not measured: a | in it")
    folder = write(tmp_path / "out", PARTED, unmeasured, SLOW)
    table.write(folder, table.read([folder]))
    page = (folder / table.PAGE).read_text()
    assert "## H200 in 2 parts" in page
    assert "| decode | 8b | 0.910 | ≥ 0.98 | **no** |  |" in page
    assert "| P2P on over off |  | – |  | – | not measured: a \\| in it |" in page
    assert "- falls short: parity, decode 8b" in page
    assert page.index("### parity") < page.index("### ab")
    assert msgspec.json.decode((folder / table.RESULTS).read_bytes())[0]["place"] == "H200 in 2 parts"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu /tmp/out --model 8b=/mnt/x/8b.gguf --parts a,b", "gpu out --model 8b=8b.gguf --parts a,b"),
        ("No such file: '/home/me/8b.gguf'", "No such file: '8b.gguf'"),
        ("57 tok/s, layer 1:1, 3/1", "57 tok/s, layer 1:1, 3/1"),
    ],
)
def test_no_folder_of_a_machine_is_named(text: str, said: str) -> None:
    assert table.without_folders(text) == said


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    package = tmp_path / "odd_parts"
    package.mkdir()
    for name, text in PARTS.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    room = Room(out=tmp_path, models={"8b": tmp_path / "8b.gguf"}, cards=("CUDA0",), env={"GGML_CUDA_P2P": None})
    assert running.decode(running.encode(room)) == room
    table.append(tmp_path / table.FIGURES, TWO)
    return room


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_part_that_is_cut_keeps_its_figures_and_leaves_no_process(room: Room) -> None:
    for limit_s in (0.8, 4, 20):  # the machine may be busy
        running.run("slow", room, limit_s, "odd_parts", grace_s=0.1)
        (sheet,) = table.read([room.out])
        if len(sheet.figures) > 1:
            break
    pid, took = sheet.figures
    assert "cut" in took.note
    assert took.holds is False
    assert not runs(int(pid.value or 0))


def test_a_part_that_fails_says_why_in_one_figure(room: Room) -> None:
    running.run("failing", room, 60, "odd_parts")
    (sheet,) = table.read([room.out])
    before, took = sheet.figures
    assert before.what == "before"
    assert took.note == "failed: ValueError: 8b.gguf is | no model"
    assert took.holds is False
