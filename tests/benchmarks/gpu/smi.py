"""What nvidia-smi says: its samples beside ours, and its matrix of how the cards are joined."""

import re
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

EVERY_S = 0.5
NEAR_S = 1.2
"""Samples so near in time are of the same moment as far as either samples."""
FIGURES = {
    "used_mib": "memory.used",
    "power_w": "power.draw",
    "sm_clock_mhz": "clocks.sm",
    "temperature_c": "temperature.gpu",
}
"""Ours by nvidia-smi's name."""
COMMAND = ("nvidia-smi", f"--query-gpu=timestamp,uuid,{','.join(FIGURES.values())}", "--format=csv,noheader,nounits")


class Said(msgspec.Struct, frozen=True):
    """One sample of a card: when (seconds since 1970), and the figures under our names."""

    at: float
    uuid: str
    figures: Mapping[str, float]


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over all our samples.

    `beyond` is how far the worst of them lies outside of what nvidia-smi said around it, `apart` how
    far the worst is from the nearest in time; `spread` the most that nvidia-smi's own varied there.
    """

    samples: int
    beyond: float
    apart: float
    spread: float


@contextmanager
def sampling(file: Path) -> Iterator[None]:
    """Ask nvidia-smi again and again meanwhile, and write down what it says."""
    stop = threading.Event()

    def ask() -> None:
        with file.open("wb") as output:
            while not stop.wait(EVERY_S):
                subprocess.run(COMMAND, stdout=output, check=False)

    thread = threading.Thread(target=ask, name="nvidia-smi")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def read_smi(text: str) -> list[Said]:
    """The lines of nvidia-smi's query; what it does not know is left out, and so is a last line cut short."""
    out = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 2 + len(FIGURES) or not line:
            continue
        try:
            at = datetime.strptime(cells[0], "%Y/%m/%d %H:%M:%S.%f").astimezone().timestamp()
            figures = {name: float(cell) for name, cell in zip(FIGURES, cells[2:], strict=True) if _is_number(cell)}
        except ValueError:
            continue
        out.append(Said(at, cells[1], figures))
    return out


def read_ours(text: str) -> list[Said]:
    """The lines of `workbench cards --watch --json`, a sample a card that has a UUID."""
    out = []
    for line in text.splitlines():
        try:
            whole = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        at = datetime.fromisoformat(whole["at"]).timestamp()
        for card in whole["cards"]:
            if card.get("uuid"):
                figures = {name: float(card[name]) for name in FIGURES if card[name] is not None}
                out.append(Said(at, card["uuid"], figures))
    return out


def agreement(ours: Sequence[Said], theirs: Sequence[Said], name: str) -> Agreement | None:
    """How one figure agrees; None where there is nothing to compare."""
    rows = []
    for said in ours:
        near = [
            (other.at - said.at, other.figures[name])
            for other in theirs
            if other.uuid == said.uuid and name in other.figures and abs(other.at - said.at) <= NEAR_S
        ]
        if name in said.figures and _on_both_sides(near):
            mine, values = said.figures[name], [value for _, value in near]
            beyond = max(0.0, min(values) - mine, mine - max(values))
            nearest = min(near, key=lambda each: abs(each[0]))[1]
            rows.append((beyond, abs(mine - nearest), max(values) - min(values)))
    if not rows:
        return None
    beyond, apart, spread = (round(max(row[i] for row in rows), 2) for i in range(3))
    return Agreement(samples=len(rows), beyond=beyond, apart=apart, spread=spread)


def _on_both_sides(near: Sequence[tuple[float, float]]) -> bool:
    """Whether it was asked before and after: a figure that rises or falls lies in between."""
    return bool(near) and min(near)[0] <= 0 <= max(near)[0]


def read_matrix(text: str) -> dict[tuple[int, int], str]:
    """The pairs of `nvidia-smi topo -m` by its numbers of the cards: `NV18`, `SYS`."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t") for line in text.splitlines()]
    head = next((line for line in lines if any(cell.strip() == "GPU0" for cell in line[1:])), [])
    columns = {at: int(cell.strip()[3:]) for at, cell in enumerate(head) if re.fullmatch(r"GPU\d+", cell.strip())}
    pairs = {}
    for line in lines:
        if line is not head and (match := re.fullmatch(r"GPU(\d+)", line[0].strip())):
            row = int(match[1])
            for at, column in columns.items():
                if column > row and at < len(line):
                    pairs[row, column] = line[at].strip()
    return pairs


def matrix() -> dict[tuple[int, int], str]:
    """The same, asked now."""
    return read_matrix(subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True).stdout)


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", cell) is not None


def owner_sums(text: str) -> list[tuple[float, float]]:
    """What is used and what its owners add up to, of each sample of `workbench cards --watch --json`."""
    out = []
    for line in text.splitlines():
        try:
            cards = msgspec.json.decode(line)["cards"]
        except msgspec.DecodeError:
            continue
        out += [(card["used_mib"], sum(one["mib"] for one in card["owners"])) for card in cards if card["owners"]]
    return out
