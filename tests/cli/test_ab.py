"""`workbench ab`, `replay` and `runs` on the real engine."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Workbench
from tests.models import write_model
from tests.runs import made_run
from tests.waiting import wait_until
from workbench.cli.failures import Code, CommandFailed
from workbench.cli.runs import export_run
from workbench.domain.run import VERSION
from workbench.store.runs import RunLog, read_run

LAYOUT = """\
name: {name}
model: {model}
split:
  tensor_split: {shares}
  cards: {{virtual: [200MiB, 200MiB]}}
context: {{n_ctx: {n_ctx}}}
"""
PROMPTS = """\
name: two
defaults: {max_tokens: 6}
prompts:
  - {id: rivers, text: Write on rivers.}
  - {id: made, synthetic: {prompt_tokens: 40, max_tokens: 4}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", seed=1)


@pytest.fixture
def bench(folder: Path, model: Path) -> Path:
    """A folder with the layouts `even`, `uneven` and `huge`, which does not load, and a prompt set `two`."""
    for name, shares, n_ctx in (("even", "[1, 1]", 512), ("uneven", "[3, 1]", 512), ("huge", "[1, 1]", 200_000)):
        text = LAYOUT.format(name=name, model=model, shares=shares, n_ctx=n_ctx)
        (folder / "layouts" / f"{name}.yaml").write_text(text)
    (folder / "prompts").mkdir()
    (folder / "prompts" / "two.yaml").write_text(PROMPTS)
    return folder


def test_an_ab_from_plan_to_report(workbench: Workbench, bench: Path, own_home: Path) -> None:
    done = workbench("ab", "even", "uneven", "--prompts", "two", "--blocks", "2", "--json")
    assert done.returncode == Code.DONE, done.stderr
    value = json.loads(done.stdout)
    assert (value["taken"], value["planned"]) == (16, 16)
    assert list(value["effects"]) == ["prefill", "decode", "ttft"]
    decode = value["effects"]["decode"]
    assert decode["low"] < decode["ratio"] < decode["high"]
    assert decode["verdict"] in ("faster", "slower", "can't tell apart")
    assert [arm["name"] for arm in value["arms"]] == ["even", "uneven"]
    assert [peak["name"] for peak in value["arms"][0]["peaks"]] == ["RPC0", "RPC1"]
    folder = Path(value["run"])
    assert folder.parent == own_home / "data" / "runs"
    assert "block 2 of 2: decode, B " in done.stderr
    header = read_run(folder).header
    assert header.build.supports_rpc is True
    assert header.arm("A").resolved is not None

    listed = workbench("runs", "list")
    assert folder.name in listed.stdout
    assert "16/16" in listed.stdout
    assert json.loads(workbench("runs", "list", "--json").stdout)[0]["id"] == folder.name
    shown = workbench("runs", "show", "last")
    assert "first token" in shown.stdout
    assert json.loads(workbench("runs", "show", folder.name, "--json").stdout)["effects"] == value["effects"]
    report = workbench("runs", "export", "last", "--out", "report.md")
    assert report.returncode == Code.DONE
    said = (bench / "report.md").read_text()
    assert said.startswith(("### uneven (layer 3:1) is ", "### even (layer 1:1) and uneven (layer 3:1) can't be told"))
    assert re.search(r"^- llama\.cpp .*built with .*RPC.*CPU", said, re.MULTILINE)
    assert "- B, cards: virtual, of 200MiB, 200MiB: " in said
    bench_fields = json.loads(workbench("runs", "export", "last", "--as", "llama-bench").stdout)
    assert {row["tensor_split"] for row in bench_fields} == {"1/1", "3/1"}
    assert {row["n_prompt"] for row in bench_fields} >= {40, 0}
    assert len(workbench("runs", "export", "last", "--as", "csv").stdout.splitlines()) == 17

    # Two copies, edited to be of two machines.
    for host in ("north", "south"):
        copy = own_home / "data" / "runs" / host
        copy.mkdir()
        for file in folder.iterdir():
            (copy / file.name).write_text(file.read_text().replace(json.dumps(header.machine.host), f'"{host}"'))
    compared = workbench("runs", "compare", "north", "south")
    assert compared.returncode == Code.DONE, compared.stderr
    head, first, *_ = compared.stdout.splitlines()
    assert head.split()[:3] == ["layout", "north", "south"]
    assert first.split()[0] == "even"
    assert "1.000" in first


def test_blocks_are_added_to_a_run(workbench: Workbench, bench: Path) -> None:
    alone = workbench("ab", "even", "uneven", "--prompts", "two", "--more-blocks", "1")
    assert alone.returncode == Code.WRONG
    assert "--more-blocks goes with --resume" in alone.stderr
    first = workbench("ab", "even", "uneven", "--prompts", "two", "--blocks", "1", "--out", "run")
    assert first.returncode == Code.DONE, first.stderr
    assert "too few blocks" in first.stdout
    more = workbench("ab", "--resume", "run", "--more-blocks", "1", "--json")
    assert more.returncode == Code.DONE, more.stderr
    value = json.loads(more.stdout)
    assert (value["taken"], value["planned"], value["blocks"]) == (16, 16, 2)
    assert any("after a look" in caution for caution in value["cautions"])


def test_a_replay(workbench: Workbench, bench: Path) -> None:
    done = workbench("replay", "even", "--prompts", "prompts/two.yaml", "--loads", "1", "--out", "run")
    assert done.returncode == Code.DONE, done.stderr
    assert done.stdout.startswith("even (layer 1:1)\n")
    assert re.search(r"load 1 of 1: [\d.]+ tok/s in decode$", done.stderr, re.MULTILINE)
    assert "block" not in done.stderr
    assert "every sample is in run" in done.stderr
    assert len(read_run(bench / "run").samples) == 2
    again = workbench("replay", "even", "--prompts", "two", "--out", "run")
    assert again.returncode == Code.WRONG
    assert "run is not empty" in again.stderr
    resumed = workbench("replay", "--resume", "run")
    assert resumed.returncode == Code.DONE
    assert resumed.stdout == done.stdout
    assert "2 of 2 samples are there" in resumed.stderr


def test_ctrl_c_keeps_what_is_there_and_the_rest_comes_later(bench: Path) -> None:
    def started(*args: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "workbench", "ab", *args],
            cwd=bench, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
        )  # fmt: skip

    first = started("even", "uneven", "--prompts", "two", "--blocks", "2", "--out", "run", "--json")
    samples = bench / "run" / "samples.jsonl"
    wait_until(lambda: samples.exists() and samples.read_bytes().count(b'"type":"sample"') >= 3)
    children = psutil.Process(first.pid).children(recursive=True)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=60)
    assert first.returncode == Code.CANCELLED, err
    value = json.loads(out)
    assert 3 <= value["taken"] < 16
    assert "cancelled; `workbench ab --resume run` goes on" in err
    assert "Traceback" not in err
    wait_until(lambda: not any(child.is_running() for child in children))
    second = started("--resume", "run", "--json")
    out, err = second.communicate(timeout=120)
    assert second.returncode == Code.DONE, err
    assert json.loads(out)["taken"] == 16
    run = read_run(bench / "run")
    assert {sample.planned for sample in run.samples} == set(run.header.plan)
    assert run.problems == ()


def test_an_arm_that_does_not_load(workbench: Workbench, bench: Path) -> None:
    done = workbench("ab", "even", "huge", "--prompts", "two", "--blocks", "1", "--json")
    assert done.returncode == Code.FAILED
    value = json.loads(done.stdout)
    assert value["arms"][0]["samples"] == 4
    assert value["arms"][1]["failure"]
    assert "B (huge) did not load" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("ab",), ("two layouts", "`workbench ab --help`")),
        (("ab", "even"), ("two layouts",)),
        (("ab", "even", "uneven"), ("--prompts SET",)),
        (("ab", "even", "--resume", "x"), ("--resume goes on",)),
        (("ab", "even", "uneven", "--prompts", "two", "--blocks", "0"), ("--blocks",)),
        (("ab", "even", "uneven", "--prompts", "two", "--blocks", str(10**20)), ("at most 12500 blocks",)),
        (("replay", "even", "--prompts", "two", "--loads", str(10**8)), ("at most 50000 loads",)),
        (("ab", "even", "unevn", "--prompts", "two"), ("unevn", "uneven")),
        (("ab", "even", "uneven", "--prompts", "tow"), ("tow", "two")),
        (("ab", "x" * 300, "uneven", "--prompts", "two"), ("no layout of that name",)),
        (("ab", "even", "uneven", "--prompts", "x" * 300), ("no prompt set of that name",)),
        (("ab", "--resume", "never"), ("no run never",)),
        (("replay",), ("name a layout", "`workbench replay --help`")),
        (("replay", "even", "--prompts", "empty"), ("empty.yaml:2", "prompts", "at least one")),
        (("replay", "even", "--prompts", "long"), ("long.yaml:3", "prompts[1]", "needs 2064 tokens", "n_ctx is 512")),
        (("runs",), ("Usage",)),
        (("runs", "show", "never"), ("no run never",)),
        (("runs", "show", "newer"), ("newer workbench", f"run version {VERSION + 1}")),
        (("runs", "export", "newer", "--as", "docx"), ("docx",)),
        (("ab", "--resume", "newer"), ("newer workbench",)),
    ],
)
def test_bad_input_is_one_message(
    workbench: Workbench, bench: Path, own_home: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    (bench / "prompts" / "empty.yaml").write_text("name: empty\nprompts: []\n")
    made = "  - {id: %s, synthetic: {prompt_tokens: %d, max_tokens: 16}}\n"
    (bench / "prompts" / "long.yaml").write_text("prompts:\n" + made % ("a", 20) + made % ("b", 2048) + "name: long\n")
    newer = own_home / "data" / "runs" / "newer"
    newer.mkdir(parents=True)
    (newer / "run.json").write_text(json.dumps({"version": VERSION + 1}))
    done = workbench(*args)
    assert done.returncode == Code.WRONG, done.stderr
    said = done.stderr or done.stdout
    for word in words:
        assert word in said
    assert "Traceback" not in said
    if words != ("Usage",):
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_damaged_line_is_said_and_the_rest_shown(workbench: Workbench, bench: Path) -> None:
    assert workbench("replay", "even", "--prompts", "two", "--loads", "1", "--out", "run").returncode == Code.DONE
    path = bench / "run" / "samples.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    done = workbench("runs", "show", "run")
    assert done.returncode == Code.DONE
    assert "- samples.jsonl:3: damaged (cut off), left out" in done.stdout
    assert "1, 1" in done.stdout


def test_no_runs_yet(workbench: Workbench) -> None:
    done = workbench("runs", "list")
    assert done.returncode == Code.DONE
    assert "there are no runs yet" in done.stderr
    assert json.loads(workbench("runs", "list", "--json").stdout) == []


def test_an_export_that_finds_no_room_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_run(lambda planned: 50.0 + planned.slot)
    RunLog.create(tmp_path / "run", run.header).close()
    report = tmp_path / "report.md"
    export_run(str(tmp_path / "run"), "md", report)
    assert report.read_text().startswith("### ")
    export_run(str(tmp_path / "run"), "md", Path(os.devnull))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    report.write_text("what a user made")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CommandFailed, match="No space left"):
        export_run(str(tmp_path / "run"), "csv", report)
    assert report.read_text() == "what a user made"
