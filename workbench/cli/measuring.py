"""What can be said on the command line about replays, A/Bs and their runs."""

from pathlib import Path

import click

from workbench.domain.samples import DEFAULT_BLOCKS

LOADS = 3


@click.command()
@click.argument("a", required=False, metavar="A")
@click.argument("b", required=False, metavar="B")
@click.option("--prompts", metavar="SET", help="The prompt set, a file or a name.")
@click.option("--blocks", metavar="N", type=click.IntRange(min=1), default=DEFAULT_BLOCKS, show_default=True,
              help="Blocks of four loads, ABBA and BAAB in turn.")
@click.option("--resident", is_flag=True, help="Load both at once, once: quick, and indicative only.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Keep the run in this folder.")
@click.option("--resume", metavar="RUN", help="Go on with a run, given by id or folder.")
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
    """Compare layouts A and B, files or names, by replaying a prompt set through both.

    Each load is a new worker, unless --resident. Tells for prefill, decode and first token
    whether B is faster or slower than A, with a 95 % interval and the noise of equal loads.
    Ctrl-C keeps what was taken and prints the result so far.
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
@click.argument("layout", required=False)
@click.option("--prompts", metavar="SET", help="The prompt set, a file or a name.")
@click.option("--loads", metavar="N", type=click.IntRange(min=1), default=LOADS, show_default=True,
              help="How often the layout is loaded anew.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Keep the run in this folder.")
@click.option("--resume", metavar="RUN", help="Go on with a run, given by id or folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(
    layout: str | None, prompts: str | None, loads: int, out: Path | None, resume: str | None, as_json: bool
) -> None:
    """Replay a prompt set through LAYOUT, a file or a name."""
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
    """


@runs.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_(as_json: bool) -> None:
    """List all runs, the newest first."""
    from workbench.cli.runs import print_runs

    print_runs(as_json=as_json)


@runs.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(run: str, as_json: bool) -> None:
    """Show what a run came to."""
    from workbench.cli.runs import print_run

    print_run(run, as_json=as_json)


@runs.command()
@click.argument("run")
@click.option("--as", "form", type=click.Choice(["md", "csv", "jsonl", "llama-bench"]), default="md",
              show_default=True, help="md is a report; llama-bench is JSON under its field names.")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Write to a file.")
def export(run: str, form: str, out: Path | None) -> None:
    """Print a run in another form."""
    from workbench.cli.runs import export_run

    export_run(run, form, out)


@runs.command()
@click.argument("first")
@click.argument("second")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(first: str, second: str, as_json: bool) -> None:
    """Compare two runs that were made on different machines.

    Layouts are joined by name, prompts where they are the same in both.
    """
    from workbench.cli.runs import compare_runs

    compare_runs(first, second, as_json=as_json)
