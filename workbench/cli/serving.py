"""What can be said on the command line about other programs: servers, and the forms in which they want a layout."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from workbench.cli.completing import layouts

if TYPE_CHECKING:
    from workbench.domain.export import ExportForm

FORMS = ("llama-server", "llama-bench", "llama-cpp-python", "ollama", "llama-swap")


@click.command()
@click.argument("layout", shell_complete=layouts)
@click.option("--as", "form", type=click.Choice(FORMS), required=True, help="For which program.")
def export(layout: str, form: "ExportForm") -> None:
    """Print LAYOUT as another program runs it.

    A command line for llama-server and llama-bench, a script for llama-cpp-python, a model for
    Ollama with the environment of its server, a configuration for llama-swap. What it prints
    runs as it is.

    \b
    Examples:
      workbench export two-cards-3-1 --as llama-server
      workbench export demo-single --as llama-bench | sh
    """
    from workbench.cli.export import print_export

    print_export(layout, form)


@click.command("import", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--name", metavar="NAME", help="Name the layout.")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Save the layout instead of printing it.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-] | llama-server …")
def import_(name: str | None, out: Path | None, command: tuple[str, ...]) -> None:
    """Make a layout of a llama-server command line.

    It is given as it is, in quotes, or on stdin; import's own options go before it. Options that
    no layout has are named on stderr.

    \b
    Examples:
      workbench import llama-server -m model.gguf -ngl 81 -ts 61,20 -c 8192
      workbench import --out layouts/mine.yaml - < start.sh
    """
    from workbench.cli.importing import print_import

    print_import(command, name, out)


@click.command()
@click.argument("layout", shell_complete=layouts)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def models(layout: str, as_json: bool) -> None:
    """List the models of the server that LAYOUT names.

    \b
    Examples:
      workbench models ollama-here
    """
    from workbench.cli.models import print_models

    print_models(layout, as_json=as_json)
