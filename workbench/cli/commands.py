"""What can be said on the command line."""

import contextlib
import math
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from workbench import __version__
from workbench.cli.completing import SHELLS, layouts, script
from workbench.cli.failures import Code, CommandFailed, explain
from workbench.cli.measuring import ab, replay, runs
from workbench.cli.serving import export, import_, models
from workbench.cli.streams import quiet_stdout, ready_streams

if TYPE_CHECKING:
    from workbench.domain.split import SplitMode

TARGET = "[LAYOUT | MODEL.gguf | FOLDER]"


class Number(click.FloatRange):
    """A number of the range, and no nan."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Raises click.BadParameter."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        return number


def print_version(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    """The versions, a line each; the engine is not loaded for it."""
    if not asked or ctx.resilient_parsing:
        return
    click.echo(f"workbench {__version__}")
    with contextlib.suppress(PackageNotFoundError):
        click.echo(f"llama-cpp-python {version('llama-cpp-python')}")
    ctx.exit()


class Commands(click.Group):
    """A group whose unnamed command opens the screen."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `open` before anything that is neither a command nor one of the group's own options."""
        completes_the_first = ctx.resilient_parsing and not args
        named = args and (args[0] in self.commands or args[0] in ("--help", "--version"))
        if not named and not completes_the_first:
            args = ["open", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, options, and what can be opened."""
        return [*super().shell_complete(ctx, incomplete), *layouts(ctx, None, incomplete)]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Both usages."""
        formatter.write(f"Usage: workbench {TARGET} [--resume]\n       workbench COMMAND …\n")


@click.group(cls=Commands, context_settings={"max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=print_version,
              help="Show the versions of workbench and of its engine, and exit.")
def commands() -> None:
    """Chat with a model while moving its layers between cards.

    Without a command, opens the screen: on a layout (a file or a name), on a model, or on a
    folder of models to choose from; without arguments on the last session. --resume brings
    back the last conversation.

    \b
    Examples:
      workbench demo
      workbench ~/models
      workbench ~/models/llama-3.3-70b-instruct-q4_k_m.gguf
      workbench two-cards-3-1 --resume
      workbench run --help

    \b
    Files, in the configuration folder (`workbench doctor` names it):
      config.yaml   where models lie, what running costs
      keymap.yaml   other keys for the screen
      layouts/      layouts, after those in ./layouts
      prompts/      prompt sets, after those in ./prompts

    \b
    Environment:
      WORKBENCH_HOME    one folder for all of workbench's files
      WORKBENCH_ASCII   1 draws with ASCII, 0 never does
      WORKBENCH_SLOW    1 draws less often, as over SSH, 0 never does
      WORKBENCH_MOUSE   0 leaves the mouse to the terminal
      NO_COLOR          set, there are no colours

    \b
    Exit codes:
      0 done   1 failed   2 wrong usage or document   130 cancelled
      128 and its number where another signal ended it
    """


@commands.command("open", hidden=True)
@click.argument("target", required=False, metavar=TARGET, shell_complete=layouts)
@click.option("--resume", is_flag=True, help="Bring back the last conversation.")
def open_screen(target: str | None, resume: bool) -> None:
    """Open the screen."""
    if not has_terminal():
        raise CommandFailed(
            "the screen needs a terminal; `workbench run LAYOUT -p TEXT` answers a prompt without one,"
            " `workbench demo` shows what workbench does",
            Code.WRONG,
        )
    from workbench.cli.opening import what_to_open

    known = [name for name, command in commands.commands.items() if not command.hidden]
    opening = None if target is None else what_to_open(target, known)
    from workbench.app.run import run_app

    sys.exit(run_app(opening, resume=resume))


@commands.command()
def demo() -> None:
    """Try the bundled model on two virtual cards.

    Opens the screen; without a terminal, a demonstration that prints: a prompt, a re-split
    from 1:1 to 3:1, a second prompt, and what that did to speed and memory.

    \b
    Examples:
      workbench demo
      workbench demo | cat
    """
    if has_terminal():
        from workbench.app.run import run_app
        from workbench.lab.demo import DEMO_LAYOUT

        sys.exit(run_app(DEMO_LAYOUT, demo=True))
    from workbench.cli.demo import print_demo

    print_demo()


@commands.command()
@click.argument("layout", shell_complete=layouts)
@click.argument("stdin", required=False, metavar="[-]", type=click.Choice(["-"]))
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt.")
@click.option("-f", "--file", metavar="FILE", type=click.Path(path_type=Path), help="Read the prompt from a file.")
@click.option("--max-tokens", metavar="N", type=click.IntRange(min=1), help="End the reply after N tokens.")
@click.option("--temperature", metavar="T", type=Number(min=0, max=100), help="0 takes the likeliest token.")
@click.option("--seed", metavar="N", type=click.IntRange(0, 2**32 - 1), help="Make a reply repeatable.")
@click.option("--image", "images", metavar="FILE", multiple=True, help="Show it an image; on servers whose model can.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def run(
    layout: str,
    stdin: str | None,
    prompt: str | None,
    file: Path | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    images: tuple[str, ...],
    as_json: bool,
) -> None:
    """Answer one prompt with LAYOUT, a file or a name.

    The prompt is TEXT, a FILE, or with `-` what comes on stdin. The reply goes to stdout as
    it is made, figures go to stderr.

    \b
    Examples:
      workbench run demo-3-1 -p "Write three sentences on rivers." --max-tokens 48
      workbench run layouts/demo-single.yaml -f question.txt > answer.txt
      git diff | workbench run demo-single - --json
    """
    from workbench.cli.run import read_prompt, run_prompt
    from workbench.domain.conversation import Sampling

    text = read_prompt(prompt, file, stdin is not None)
    sampling = Sampling(
        max_tokens=max_tokens or 0,
        temperature=Sampling().temperature if temperature is None else temperature,
        seed=seed,
    )
    run_prompt(layout, text, sampling, images, as_json=as_json)


@commands.command()
@click.argument("layout", shell_complete=layouts)
@click.option("--tensor-split", metavar="3,1", help="Other proportions, or auto.")
@click.option("--split-mode", type=click.Choice(["none", "layer", "tensor", "row"]), help="Another mode.")
@click.option("--n-ctx", metavar="N", type=click.IntRange(min=0), help="Another context size.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def forecast(
    layout: str, tensor_split: str | None, split_mode: "SplitMode | None", n_ctx: int | None, as_json: bool
) -> None:
    """Tell what LAYOUT would take on each card, without loading it.

    Weights, KV and compute by card against what is free, whether it fits, and the largest
    context that would.

    \b
    Examples:
      workbench forecast demo-even
      workbench forecast demo-even --tensor-split 3,1 --n-ctx 8192
      workbench forecast two-cards-3-1 --split-mode tensor --json
    """
    from workbench.cli.forecast import print_forecast

    print_forecast(layout, tensor_split, split_mode, n_ctx, as_json=as_json)


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one object a sample.")
@click.option("--watch", metavar="SECONDS", type=Number(min=0.1, max=86400), help="Read the meters again and again.")
@click.option("--topology", is_flag=True, help="Tell how the cards are joined.")
def cards(as_json: bool, watch: float | None, topology: bool) -> None:
    """List the cards of this machine.

    Each has llama.cpp's name, nvidia-smi's number, its PCI bus id and its UUID. --watch tells
    until Ctrl-C what they do and whose memory it is; a figure that nobody knows is null, or –.

    \b
    Examples:
      workbench cards
      workbench cards --watch 1 --json >> cards.jsonl
      workbench cards --topology
    """
    from workbench.cli.cards import print_cards, print_topology, watch_cards

    if watch is not None and topology:
        raise click.UsageError("--watch and --topology do not go together; the topology does not change")
    if topology:
        print_topology(as_json=as_json)
    elif watch is not None:
        watch_cards(watch, as_json=as_json)
    else:
        print_cards(as_json=as_json)


@commands.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
def check(files: Sequence[str]) -> None:
    """Check layouts, prompt sets, config.yaml and keymap.yaml.

    One line for each fault names file, line and key, and what would be right. No model is
    loaded; of one that is here its header is read, to count its layers.

    \b
    Examples:
      workbench check layouts/*.yaml prompts/*
      workbench check ~/.config/workbench/config.yaml
    """
    from workbench.cli.checking import check_files

    if not check_files(files):
        sys.exit(Code.WRONG)


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Tell what is broken, and what mends it.

    Looks over engine, driver, cards, folders, documents and terminal. Nothing secret is in it,
    so that it can stand in a bug report. Exits with 1 where something is broken.

    \b
    Examples:
      workbench doctor
      workbench doctor --json > doctor.json
    """
    from workbench.cli.doctor import print_doctor

    print_doctor(as_json=as_json)


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def keys(as_json: bool) -> None:
    """List what the screen can do, and with which keys.

    The names are those that keymap.yaml in the configuration folder calls the actions by.

    \b
    Examples:
      workbench keys
      workbench keys --json
    """
    from workbench.cli.keys import print_keys

    print_keys(as_json=as_json)


@commands.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete workbench.

    It completes commands, options, layouts, prompt sets and runs.

    \b
    Examples:
      workbench completion bash >> ~/.bashrc
      workbench completion zsh >> ~/.zshrc
      workbench completion fish > ~/.config/fish/completions/workbench.fish
    """
    click.echo(script(commands, shell))


for command in (ab, replay, runs, export, import_, models):
    commands.add_command(command)


def has_terminal() -> bool:
    """Whether a screen can be shown and typed to; Textual draws on stderr."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def main(args: Sequence[str] | None = None, *, interrupts: bool = False) -> None:
    """Run the command line and exit. With `interrupts`, Ctrl-C is a KeyboardInterrupt from here to the end."""
    ready_streams()
    code: str | int | None
    try:
        if interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        commands.main(args, prog_name="workbench", standalone_mode=False)
        sys.stdout.flush()
        code = Code.DONE
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:
        code = explain(error)
    if interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    quiet_stdout()
    sys.exit(code)
