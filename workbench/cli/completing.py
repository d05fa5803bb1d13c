"""What a shell completes: layouts, prompt sets and runs by name. Nothing here may fail."""

import contextlib
from collections.abc import Iterable, Iterator

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")


def layouts(_ctx: click.Context, _param: click.Parameter | None, begun: str) -> list[CompletionItem]:
    """The names of layouts, and files."""
    return _offered(begun, _documents("layouts"))


def prompt_sets(_ctx: click.Context, _param: click.Parameter | None, begun: str) -> list[CompletionItem]:
    """The names of prompt sets, and files."""
    return _offered(begun, _documents("prompts"))


def runs(_ctx: click.Context, _param: click.Parameter | None, begun: str) -> list[CompletionItem]:
    """The ids of runs, the newest first, and folders."""
    return _offered(begun, _runs())


def _offered(begun: str, names: Iterable[str]) -> list[CompletionItem]:
    found: list[CompletionItem] = []
    with contextlib.suppress(Exception):
        found += [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(begun)]
    return [*found, CompletionItem(begun, type="file")]


def _documents(kind: str) -> Iterator[str]:
    """By their files' names alone: a shell does not wait while they are read."""
    from workbench.store.places import documents, places

    at = places()
    for path in documents(at.layouts if kind == "layouts" else at.prompts):
        yield path.stem


def _runs() -> Iterator[str]:
    from workbench.store.runs import list_runs

    found = [folder.name for folder, _ in list_runs()]
    if found:
        yield "last"
    yield from found


def script(commands: click.Command, shell: str) -> str:
    """What makes a shell complete `workbench`."""
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(commands, {}, "workbench", "_WORKBENCH_COMPLETE").source()
