"""What the commands print to a terminal is text; what is piped is what was said."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.app.hostile import STEERING, hostile
from tests.cli.conftest import Workbench
from tests.runs import made_run
from tests.servers.running import Contract
from tests.terminals import Terminal
from tests.waiting import wait_until
from workbench.cli.failures import Code
from workbench.cli.text import json_text, table
from workbench.domain.text import clean

SAID = "".join(STEERING).replace("\ud800", "")
SHOWN = clean(SAID)


def on_a_terminal(folder: Path, *args: str) -> tuple[int, str]:
    """Exit code and all that the command wrote to a terminal, without what turns lines."""
    terminal = Terminal(folder, *args)
    try:
        code = terminal.process.wait(60)
        wait_until(lambda: terminal.written.endswith(b"\n"))
        return code, terminal.written.decode().replace("\r\n", "\n")
    finally:
        terminal.close()


def is_text(written: str) -> None:
    """Nothing of it could steer a terminal."""
    assert "".join(clean(line) for line in written.split("\n")) == written.replace("\n", ""), ascii(written)


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[Path]:
    """A run of a stranger's."""
    run = made_run(lambda planned: 60.0 + planned.slot, blocks=2, texts={"A": "x", "B": hostile("b", lines=True)[:-2]})
    machine = msgspec.structs.replace(run.header.machine, host=SAID, cpu=SAID, system=SAID)
    build = msgspec.structs.replace(run.header.build, system_info=SAID, versions={SAID: SAID})
    header = msgspec.structs.replace(run.header, machine=machine, build=build)
    folder = tmp_path / "strange"
    folder.mkdir()
    (folder / "run.json").write_bytes(msgspec.json.encode(header))
    samples = (
        msgspec.structs.replace(sample, split=SAID, text=sample.text.replace("\ud800", "")) for sample in run.samples
    )
    loads = (msgspec.structs.replace(load, split=SAID, warnings=(SAID,)) for load in run.loads)
    (folder / "samples.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in (*loads, *samples)))
    yield folder
    shutil.rmtree(folder)


def test_names_of_files_in_errors(folder: Path) -> None:
    name = f"layouts/{SAID.replace('/', '').replace(chr(0), '')}.yaml"
    (folder / name).write_text(f"name: '{hostile('x')[:9]}'\n", errors="replace")
    code, written = on_a_terminal(folder, "check", name)
    assert code == Code.WRONG
    is_text(written)
    assert "\\x1b[2J" in written  # the name can be read off


def test_a_run_of_a_strangers(folder: Path, run_folder: Path, workbench: Workbench) -> None:
    code, written = on_a_terminal(folder, "runs", "export", str(run_folder), "--as", "csv")
    assert code == Code.DONE, written
    is_text(written)
    piped = workbench("runs", "export", str(run_folder), "--as", "csv")
    assert "\x1b]0;owned\x07" in piped.stdout


def test_a_reply_and_a_servers_models(folder: Path, ollama: Contract, workbench: Workbench) -> None:
    ollama.behave(reply=[SAID, " the end"])
    (folder / "layouts" / "there.yaml").write_text(f"name: there\nengine: ollama\nurl: {ollama.url}\nmodel: tiny\n")
    code, written = on_a_terminal(folder, "run", "there", "-p", "hi")
    assert code == Code.DONE, written
    assert f"{SHOWN} the end" in written
    is_text(written.replace("\r", ""))
    piped = workbench("run", "there", "-p", "hi")
    assert piped.stdout == f"{SAID} the end\n"


def test_cells_keep_to_their_columns() -> None:
    lines = table([("card", "name"), (f"漢字{SAID}\nb\tc", "x"), ("a", "y")]).split("\n")
    assert len(lines) == 3
    assert [line.rstrip()[-1] for line in lines] == ["e", "x", "y"]
    value = {"a": SAID}
    assert json_text(value, one_line=True).isprintable()
    assert json.loads(json_text(value)) == value
    assert os.linesep not in json_text(value, one_line=True)
