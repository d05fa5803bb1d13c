"""`workbench runs`: what was measured before."""

import time
from pathlib import Path

import click
import msgspec

from workbench.cli.failures import CommandFailed, say
from workbench.cli.outcome import outcome_json, outcome_text
from workbench.cli.text import json_text, table
from workbench.domain import wording
from workbench.domain.machines import Join, join
from workbench.lab.ab import judge
from workbench.store.exporters import export
from workbench.store.runs import RunError, find_run, list_runs, read_run
from workbench.store.writing import write_atomically


def print_runs(*, as_json: bool) -> None:
    """Print every run, the newest first; what cannot be read goes to stderr."""
    rows = []
    for folder, header in list_runs():
        try:
            if isinstance(header, RunError):
                raise header
            run = read_run(folder)
        except RunError as error:
            say(str(error))
            continue
        rows.append(
            {
                "id": folder.name,
                "created": header.created,
                "kind": header.kind,
                "method": header.method,
                "blocks": header.blocks,
                "layouts": [arm.label for arm in header.arms],
                "prompts": header.prompts.name,
                "planned": len(header.plan),
                "taken": len(run.samples),
            }
        )
    if as_json:
        click.echo(json_text(rows))
    elif not rows:
        say("there are no runs yet; `workbench ab A B --prompts SET` makes one")
    else:
        click.echo(table([("run", "made", "what", "prompts", "samples"), *(_line(row) for row in rows)]))


def _line(row: dict[str, object]) -> tuple[str, ...]:
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(str(row["created"]))))
    layouts = row["layouts"]
    assert isinstance(layouts, list)
    return str(row["id"]), made, " against ".join(layouts), str(row["prompts"]), f"{row['taken']}/{row['planned']}"


def print_run(asked: str, *, as_json: bool) -> None:
    """Print one run's result."""
    folder = find_run(asked)
    outcome = judge(folder)
    click.echo(outcome_json(outcome, folder) if as_json else outcome_text(outcome))


def export_run(asked: str, form: str, out: Path | None) -> None:
    """Print a run in another form, or write it to a file. Raises CommandFailed."""
    folder = find_run(asked)
    text = export(read_run(folder), judge(folder), form)
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        if out.exists() and not out.is_file():
            out.write_text(text, encoding="utf-8")  # a pipe or a device
        else:
            write_atomically(out, text.encode(), overwrite=True)
    except OSError as error:
        raise CommandFailed(f"{out} cannot be written: {error.strerror}; choose another with --out") from None


def compare_runs(first: str, second: str, *, as_json: bool) -> None:
    """Print two runs of different machines side by side."""
    runs = [read_run(find_run(asked)) for asked in (first, second)]
    joined = join(*runs)
    hosts = [run.header.machine.host for run in runs]
    click.echo(join_json(joined, hosts) if as_json else join_text(joined, hosts))


def join_text(joined: Join, hosts: list[str]) -> str:
    """One line a layout and metric, then what to be careful about."""
    rows = wording.join_rows(joined, hosts)
    parts = [table(rows) if rows else "no layout has samples in both runs"]
    parts.append("\n".join(f"- {caution}" for caution in joined.cautions))
    return "\n\n".join(part for part in parts if part)


def join_json(joined: Join, hosts: list[str]) -> str:
    """The same as one object; speeds in tok/s, for the first token in 1/s."""
    value = {"hosts": hosts, **msgspec.to_builtins(joined)}
    return json_text(value)
