"""The run log: written line by line, read whatever happened to it, and exported."""

import csv
import errno
import io
import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.runs import made_run, sample
from workbench.domain.outcome import outcome
from workbench.domain.run import VERSION, Run
from workbench.domain.samples import Planned
from workbench.store.exporters import FORMATS, export
from workbench.store.places import places
from workbench.store.runs import Record, RunError, RunLog, RunUnwritable, find_run, list_runs, new_run_id, read_run


def speed(planned: Planned) -> float:
    return 50.0 + planned.slot + planned.block


def write(folder: Path, run: Run, samples: int | None = None) -> Path:
    log = RunLog.create(folder, run.header)
    records: list[Record] = [*run.loads, *run.samples[:samples]]
    for record in records:
        log.append(record)
    log.close()
    return folder


def test_a_run_reads_back_as_it_was(tmp_path: Path) -> None:
    run = made_run(speed)
    assert read_run(write(tmp_path / "run", run)) == run
    assert run.missing == ()


def test_each_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    run = made_run(speed)
    log = RunLog.create(tmp_path / "run", run.header)
    for count, each in enumerate(run.samples[:3], start=1):
        log.append(each)
        assert len(read_run(log.folder).samples) == count
    log.close()


def test_what_is_missing_is_planned_still(tmp_path: Path) -> None:
    run = made_run(speed)
    half = read_run(write(tmp_path / "run", run, samples=5))
    assert half.missing == run.header.plan[5:]


def test_a_cut_line_costs_its_sample_alone_and_the_next_is_whole(tmp_path: Path) -> None:
    run = made_run(speed)
    folder = write(tmp_path / "run", run, samples=4)
    lines = folder / "samples.jsonl"
    lines.write_bytes(lines.read_bytes()[:-30])
    log, before = RunLog.reopen(folder)
    assert len(before.samples) == 3
    assert len(before.problems) == 1
    assert "damaged (cut off), left out" in before.problems[0]
    for planned in before.missing:
        log.append(sample(planned, speed(planned)))
    log.close()
    after = read_run(folder)
    assert {each.planned for each in after.samples} == set(run.header.plan)
    assert len(after.samples) == len(run.header.plan)
    assert after.problems == (before.problems[0].replace(" (cut off)", ""),)


def test_damaged_foreign_and_doubled_lines_are_reported_and_the_rest_used(tmp_path: Path) -> None:
    run = made_run(speed)
    folder = write(tmp_path / "run", run)
    foreign = msgspec.structs.replace(run.samples[0].planned, prompt="other")
    lines = folder / "samples.jsonl"
    text = lines.read_bytes().split(b"\n")
    text[9] = text[9][:40] + b"\xff" + text[9][41:]
    extra = [msgspec.json.encode(sample(foreign, 1.0)), msgspec.json.encode(run.samples[2])]
    lines.write_bytes(b"\n".join([*text[:-1], *extra, b""]))
    read = read_run(folder)
    assert len(read.samples) == len(run.samples) - 1
    assert [problem.split(": ", 1)[1] for problem in read.problems] == [
        "damaged, left out",
        "a sample that this run did not plan, left out",
        "a sample that was there already, left out",
    ]
    assert read.problems[0].startswith("samples.jsonl:10:")
    assert set(read.problems) <= set(outcome(read).cautions)


def test_a_newer_run_is_refused_with_one_message(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", made_run(speed))
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({"version": VERSION + 1, "other": header}))
    with pytest.raises(RunError, match=rf"newer workbench \(run version {VERSION + 1}, this one reads {VERSION}\)"):
        read_run(folder)
    with pytest.raises(RunError, match="newer workbench"):
        RunLog.reopen(folder)


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no run"):
        read_run(tmp_path)
    with pytest.raises(RunError, match="is no run"):
        RunLog.reopen(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        read_run(tmp_path)


def test_a_folder_in_use_is_not_taken(tmp_path: Path) -> None:
    run = made_run(speed)
    log = RunLog.create(tmp_path / "run", run.header)
    with pytest.raises(RunError, match="not empty"):
        RunLog.create(tmp_path / "run", run.header)
    with pytest.raises(RunError, match="another workbench"):
        RunLog.reopen(tmp_path / "run")
    log.close()
    RunLog.reopen(tmp_path / "run")[0].close()


def test_runs_are_found_by_id_beginning_path_and_as_the_last(tmp_path: Path) -> None:
    run = made_run(speed)
    old, new = (write(places().runs / name, run) for name in ("20260101-a", "20260102-b"))
    write(tmp_path / "elsewhere", run)
    assert find_run("20260101-a") == find_run("20260101") == old
    assert find_run("last") == new
    assert find_run(str(tmp_path / "elsewhere")) == tmp_path / "elsewhere"
    assert [folder for folder, _ in list_runs()] == [new, old]
    for no_name in ("", "a" * 300):
        with pytest.raises(RunError, match="there is no run"):
            find_run(no_name)
    with pytest.raises(RunError, match="begins the id of 2 runs"):
        find_run("2026")
    with pytest.raises(RunError, match=r"there is no run 20260103-b.*did you mean `20260102-b`"):
        find_run("20260103-b")


def test_a_run_that_could_not_begin_leaves_nothing_and_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_run(speed)
    good = write(places().runs / "20260101-a", run)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("workbench.store.runs.write_atomically", full)
        with pytest.raises(RunUnwritable, match="No space left"):
            RunLog.create(places().runs / "20260102-b", run.header)
    assert not (places().runs / "20260102-b").exists()
    (places().runs / "20260103-c").mkdir()
    (places().runs / "20260103-c" / "samples.jsonl").touch()
    assert find_run("last") == good
    assert [folder for folder, _ in list_runs()] == [good]


def test_a_run_that_was_deleted_while_it_is_on_takes_no_more_samples(tmp_path: Path) -> None:
    run = made_run(speed)
    log = RunLog.create(tmp_path / "run", run.header)
    log.append(run.loads[0])
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RunUnwritable, match="was deleted"):
        log.append(run.samples[0])
    log.close()


def test_two_that_begin_in_one_folder_at_once_have_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = made_run(speed), made_run(speed, blocks=3)
    log = RunLog.create(tmp_path / "run", first.header)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", lambda _: iter(()))  # the second looked before the first had written
        with pytest.raises(RunError, match="another workbench"):
            RunLog.create(tmp_path / "run", second.header)
        log.close()
        with pytest.raises(RunError, match="is not empty"):
            RunLog.create(tmp_path / "run", second.header)
    assert read_run(tmp_path / "run").header == first.header
    assert (tmp_path / "run" / "samples.jsonl").exists()


def test_the_last_run_is_the_newest_whatever_clock_or_copy_named_its_folder() -> None:
    run = made_run(speed)
    for name, created in (("20260102-by-a-clock-set-back", 300.0), ("20260103-old", 200.0), ("zzz-copy", 100.0)):
        header = msgspec.structs.replace(run.header, created=created)
        write(places().runs / name, msgspec.structs.replace(run, header=header))
    assert [folder.name[:8] for folder, _ in list_runs()] == ["20260102", "20260103", "zzz-copy"]
    assert find_run("last").name == "20260102-by-a-clock-set-back"


def test_ids_sort_by_time() -> None:
    first = new_run_id("x")
    assert first[:8].isdigit()
    assert first[15:18] == "-x-"


# ── exports ───────────────────────────────────────────────────────────────────────────────
def exported(run: Run, form: str) -> str:
    assert form in FORMATS
    return export(run, outcome(run), form)


def test_a_report_has_tables_that_every_row_fits() -> None:
    text = exported(made_run(lambda p: 60.0 + p.slot if p.arm == "B" else 50.0 - p.slot, blocks=3), "md")
    assert re.match(r"### B \(layer auto\) is [\d.]+ % faster than A \(layer auto\) in decode\n", text)
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 2
    for each in tables:
        assert len({line.count("|") - 2 * line.count("\\|") for line in each.splitlines()}) == 1
    assert "<details>" in text


def test_names_cannot_break_a_report() -> None:
    run = made_run(speed)
    arm = run.header.arms[0]
    layout = msgspec.structs.replace(arm.layout, name="a|b<img>*x*")
    header = msgspec.structs.replace(
        run.header, arms=(msgspec.structs.replace(arm, layout=layout), run.header.arms[1])
    )
    text = exported(msgspec.structs.replace(run, header=header), "md")
    assert "a|b" not in text
    assert "<img>" not in text
    assert "a\\|b\\<img\\>\\*x\\*" in text


def test_samples_as_rows() -> None:
    run = made_run(speed)
    spoiled = msgspec.structs.replace(run.samples[0], timing=None, left_out="=cmd()")
    run = msgspec.structs.replace(run, samples=(spoiled, *run.samples[1:]))
    lines = [json.loads(line) for line in exported(run, "jsonl").splitlines()]
    rows = list(csv.DictReader(io.StringIO(exported(run, "csv"))))
    assert len(lines) == len(rows) == len(run.samples)
    assert list(lines[0]) == list(rows[0])
    assert lines[0]["left_out"] == "=cmd()"
    assert rows[0]["left_out"] == "'=cmd()"
    assert rows[0]["decode_s"] == ""
    assert lines[1]["decode_tok_s"] == pytest.approx(speed(run.samples[1].planned))
    assert {"n_ctx", "n_batch", "type_k", "split_mode", "model"} <= set(lines[0])


def test_llama_bench_fields() -> None:
    tests = json.loads(exported(made_run(speed), "llama-bench"))
    assert len(tests) == 8
    prefill, generation = tests[:2]
    assert (prefill["n_prompt"], prefill["n_gen"], prefill["n_depth"]) == (20, 0, 0)
    assert (generation["n_prompt"], generation["n_gen"], generation["n_depth"]) == (0, 10, 20)
    assert len(generation["samples_ts"]) == 4
    assert generation["avg_ts"] == pytest.approx(sum(generation["samples_ts"]) / 4)
    assert generation["samples_ns"][0] == pytest.approx(1e9 * 10 / generation["samples_ts"][0])


def test_an_empty_run_exports() -> None:
    run = made_run(speed)
    empty = Run(header=run.header)
    for form in FORMATS:
        exported(empty, form)
