"""What can be said on the command line about replays, A/Bs and their runs."""

from pathlib import Path

import click

from workbench.cli.completing import layouts, prompt_sets
from workbench.cli.completing import runs as complete_runs
from workbench.domain.samples import DEFAULT_BLOCKS

LOADS = 3


@click.command()
@click.argument("a", required=False, metavar="A", shell_complete=layouts)
@click.argument("b", required=False, metavar="B", shell_complete=layouts)
@click.option("--prompts", metavar="SET", help="The prompt set, a file or a name.", shell_complete=prompt_sets)
@click.option("--blocks", metavar="N", type=click.IntRange(min=1), default=DEFAULT_BLOCKS, show_default=True,
              help="Blocks of four loads, ABBA and BAAB in turn.")
@click.option("--resident", is_flag=True, help="Load both at once, once: quick, and indicative only.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Keep the run in this folder.")
@click.option("--resume", metavar="RUN", help="Go on with a run, given by id or folder.", shell_complete=complete_runs)
@click.option("--more-blocks", metavar="N", type=click.IntRange(min=0), default=0,
              help="With --resume: add N blocks to the run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ab(
    a: str | None,
    b: str | None,
    prompts: str | None,
    blocks: int,
    resident: bool,
    out: Path | None,
    resume: str | None,
    more_blocks: int,
    as_json: bool,
) -> None:
    """Tell whether layout B is faster than A.

    Both are files or names, and a prompt set is replayed through both. Each load is a new
    worker, unless --resident. Tells for prefill, decode and first token whether B is faster or
    slower than A, with a 95 % interval and the noise of equal loads. Ctrl-C keeps what was taken
    and prints the result so far.

    \b
    Examples:
      workbench ab demo-single demo-tensor --prompts quick
      workbench ab demo-even demo-3-1 --prompts quick --resident
      workbench ab A B --prompts SET --blocks 8 --json
      workbench ab --resume last --more-blocks 2
    """
    from workbench.cli.ab import check_usage, resume_run, run_layouts

    check_usage((a, b), prompts, resume)
    if more_blocks and resume is None:
        raise click.UsageError("--more-blocks goes with --resume RUN; a new run takes --blocks")
    if resume is not None:
        resume_run(resume, more_blocks=more_blocks, as_json=as_json)
    elif a is not None and b is not None and prompts is not None:
        run_layouts((a, b), prompts, resident=resident, blocks=blocks, out=out, as_json=as_json)


@click.command()
@click.argument("layout", required=False, shell_complete=layouts)
@click.option("--prompts", metavar="SET", help="The prompt set, a file or a name.", shell_complete=prompt_sets)
@click.option("--loads", metavar="N", type=click.IntRange(min=1), default=LOADS, show_default=True,
              help="How often the layout is loaded anew.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Keep the run in this folder.")
@click.option("--resume", metavar="RUN", help="Go on with a run, given by id or folder.", shell_complete=complete_runs)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(
    layout: str | None, prompts: str | None, loads: int, out: Path | None, resume: str | None, as_json: bool
) -> None:
    """Replay a prompt set through LAYOUT, a file or a name.

    It is loaded anew several times, for two loads of one layout differ.

    \b
    Examples:
      workbench replay demo-single --prompts quick
      workbench replay demo-single --prompts long-context --loads 1 --out ./measured
    """
    from workbench.cli.ab import check_usage, resume_run, run_layouts

    check_usage((layout,), prompts, resume)
    if resume is not None:
        resume_run(resume, as_json=as_json)
    elif layout is not None and prompts is not None:
        run_layouts((layout,), prompts, resident=False, blocks=loads, out=out, as_json=as_json)


@click.group()
def runs() -> None:
    """List, show, export and compare what was measured before.

    RUN is an id, the beginning of one, a folder, or `last`.

    \b
    Examples:
      workbench runs list
      workbench runs show last
      workbench runs export last --as csv --out samples.csv
      workbench runs compare here there
    """


@runs.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_(as_json: bool) -> None:
    """List all runs, the newest first.

    \b
    Examples:
      workbench runs list --json
    """
    from workbench.cli.runs import print_runs

    print_runs(as_json=as_json)


@runs.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(run: str, as_json: bool) -> None:
    """Show what a run came to.

    \b
    Examples:
      workbench runs show last
    """
    from workbench.cli.runs import print_run

    print_run(run, as_json=as_json)


@runs.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--as", "form", type=click.Choice(["md", "csv", "jsonl", "llama-bench"]), default="md",
              show_default=True, help="md is a report; llama-bench is JSON under its field names.")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Write to a file.")
def export(run: str, form: str, out: Path | None) -> None:
    """Print a run in another form.

    \b
    Examples:
      workbench runs export last > report.md
      workbench runs export last --as llama-bench --out bench.json
    """
    from workbench.cli.runs import export_run

    export_run(run, form, out)


@runs.command()
@click.argument("first", shell_complete=complete_runs)
@click.argument("second", shell_complete=complete_runs)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(first: str, second: str, as_json: bool) -> None:
    """Compare two runs that were made on different machines.

    Layouts are joined by name, prompts where they are the same in both.

    \b
    Examples:
      workbench runs compare last ./from-the-other-machine
    """
    from workbench.cli.runs import compare_runs

    compare_runs(first, second, as_json=as_json)
