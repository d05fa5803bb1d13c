"""Figures in a file, a line each as they become known, and the page that is made of them."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.benchmarks.gpu.room import Figure
from workbench.store.appending import ends_whole

FIGURES, RESULTS, PAGE = "figures.jsonl", "results.json", "table.md"
PARTS = (
    *("parity", "forecast", "resplit", "memory_ends", "cancel", "meters"),
    *("ab", "links", "replay", "leak", "order", "scaling"),
)
"""In the order of the page, and of a run."""
TOOK = "how long it took"
"""What each part ends with; it does not hold where the part was cut or failed."""
HEAD = ("| what | case | figure | asked | holds | note |", "|---|---|---|---|---|---|")


class Machine(msgspec.Struct, frozen=True, kw_only=True, tag="machine"):
    """What the figures after it in a file were measured on. `parts` cards are one GPU, 0 where cards are virtual."""

    cards: tuple[str, ...]
    parts: int = 1
    memory_mib: tuple[float | None, ...] = ()
    joined: str = ""
    driver: str | None = None
    cuda: str | None = None
    versions: dict[str, str] = {}
    build: str = ""
    cpu: str = ""
    commit: str = ""
    date: str = ""
    command: str = ""

    @property
    def place(self) -> str:
        """`2 × NVIDIA H200`, `NVIDIA H200 in 2 parts`, `2 virtual cards, a rehearsal`."""
        if not self.parts or not self.cards:
            return f"{len(self.cards)} virtual cards, a rehearsal"
        counted = ", ".join(f"{self.cards.count(name)} × {name}" for name in dict.fromkeys(self.cards))
        return counted if self.parts == 1 else f"{self.cards[0]} in {self.parts} parts"


Line = Machine | Figure
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one place; of each the newest that was measured. `machine` is the newest, `commands` are all."""

    machine: Machine
    figures: tuple[Figure, ...]
    commands: tuple[str, ...] = ()

    def done(self) -> set[str]:
        """The parts that came to their end."""
        return {figure.part for figure in self.figures if figure.what == TOOK and figure.holds is not False}

    def short(self) -> tuple[Figure, ...]:
        """Those that are not what is asked."""
        return tuple(figure for figure in self.figures if figure.holds is False)


def append(path: Path, line: Line) -> None:
    """Add a line, a new one behind what a killed writer left."""
    begin = b"" if not path.exists() or ends_whole(path) else b"\n"
    with path.open("ab") as file:
        file.write(begin + _encoder.encode(line) + b"\n")


def read(folders: Iterable[Path]) -> tuple[Sheet, ...]:
    """The sheets of all folders together, the older first; damaged lines are left out."""
    runs: list[tuple[Machine, list[Figure]]] = []
    for folder in folders:
        path = folder / FIGURES
        for text in path.read_bytes().split(b"\n") if path.exists() else ():
            try:
                line = _decoder.decode(text)
            except msgspec.DecodeError:
                continue
            if isinstance(line, Machine):
                runs.append((line, []))
            elif runs:
                runs[-1][1].append(line)
    places: dict[str, list[tuple[Machine, list[Figure]]]] = {}
    for run in sorted(runs, key=lambda run: run[0].date):
        places.setdefault(run[0].place, []).append(run)
    return tuple(_sheet(runs) for runs in places.values())


def _sheet(runs: Sequence[tuple[Machine, Sequence[Figure]]]) -> Sheet:
    newest: dict[tuple[str, str, str], Figure] = {}
    for _, found in runs:
        for figure in found:
            key = figure.part, figure.what, figure.case
            if not figure.unmeasured or key not in newest:
                newest[key] = figure
    figures = [figure for figure in newest.values() if not _gives_way(figure, newest.values())]
    return Sheet(
        machine=runs[-1][0],
        figures=tuple(sorted(figures, key=_in_order)),
        commands=tuple(dict.fromkeys(machine.command for machine, found in runs if found)),
    )


def _gives_way(figure: Figure, others: Iterable[Figure]) -> bool:
    """Whether it was not measured, for want of a model, and its model was in another run."""
    if not figure.unmeasured or not figure.case:
        return False
    return any(other.part == figure.part and other.case.startswith(f"{figure.case},") for other in others)


def _in_order(figure: Figure) -> tuple[int, bool]:
    return PARTS.index(figure.part) if figure.part in PARTS else len(PARTS), figure.what == TOOK


def write(folder: Path, sheets: Sequence[Sheet]) -> None:
    """Both files, as JSON and for people."""
    data = [{"place": sheet.machine.place, **msgspec.to_builtins(sheet)} for sheet in sheets]
    (folder / RESULTS).write_bytes(msgspec.json.format(_encoder.encode(data)))
    (folder / PAGE).write_text("\n".join(page(sheets)) + "\n", encoding="utf-8")


def page(sheets: Sequence[Sheet]) -> list[str]:
    """The lines of the page in Markdown."""
    out = ["# On real cards"]
    for sheet in sheets:
        out += ["", f"## {sheet.machine.place}", "", _about(sheet.machine), ""]
        out += [f"- `{command}`" for command in sheet.commands]
        for part in dict.fromkeys(figure.part for figure in sheet.figures):
            out += ["", f"### {part}", "", *HEAD]
            out += [_row(figure) for figure in sheet.figures if figure.part == part]
        short = sheet.short()
        asked = sum(1 for figure in sheet.figures if figure.holds is not None)
        out += ["", f"{asked - len(short)} of {asked} figures with a limit hold."]
        out += [f"- falls short: {figure.part}, {figure.what} {figure.case}".rstrip() for figure in short]
    return out


def _about(machine: Machine) -> str:
    sizes = sorted({round(size / 1024) for size in machine.memory_mib if size})
    said = [
        " and ".join(f"{size} GiB" for size in sizes),
        machine.joined,
        machine.driver and f"driver {machine.driver}",
        machine.cuda and f"CUDA {machine.cuda}",
        *(f"{name} {version}" for name, version in machine.versions.items()),
        machine.commit and f"commit {machine.commit}",
        machine.cpu,
        machine.date,
    ]
    return " · ".join(text for text in said if text)


def _row(figure: Figure) -> str:
    holds = {True: "yes", False: "**no**", None: "–"}[figure.holds]
    cells = (figure.what, figure.case, said(figure), figure.limit, holds, figure.note)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def said(figure: Figure) -> str:
    """The figure with its unit, or yes or no; a dash where it was not measured."""
    if figure.value is None:
        return {True: "yes", False: "no", None: "–"}[figure.holds]
    return f"{number(figure.value)} {figure.unit}".rstrip()


def number(value: float) -> str:
    """Four digits, and no more than three behind the point."""
    if value == round(value):
        return f"{value:.0f}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"


def without_folders(text: Any) -> str:
    """Absolute paths down to their last name: a page names no folder of a machine."""
    return re.sub(r"(?<![\w:/.])~?/(?:[^\s/,:'\"`]+/)*(?=[^\s/])", "", str(text))
