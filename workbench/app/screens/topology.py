"""How the cards are joined: a matrix of all pairs."""

from collections.abc import Callable
from typing import ClassVar

from rich.cells import cell_len
from textual import work
from textual.app import ComposeResult
from textual.containers import ScrollableContainer, Vertical
from textual.content import Content
from textual.widgets import Static

from workbench.app.keymap import Where, bindings
from workbench.app.screens.dialog import Dialog
from workbench.domain.topology import Cell, Topology


def draw(topology: Topology) -> Content:
    """The matrix with its legend and the reasons why pairs may not read each other's memory."""
    if not topology.names:
        return Content("no card yet")
    head = max(cell_len(name) for name in topology.names)
    width = max(max(cell_len(_text(cell)) for row in topology.cells for cell in row), head) + 2
    lines = [Content(" " * head) + Content("").join(
        Content.styled(name.rjust(width), "bold") for name in topology.names
    )]  # fmt: skip
    for name, row in zip(topology.names, topology.cells, strict=True):
        lines.append(Content.styled(name.ljust(head), "bold") + Content("").join(_cell(cell, width) for cell in row))
    lines.append(Content(""))
    lines += [
        Content.styled(f"{joint:<10}", "bold") + Content.styled(meaning, "$text-muted")
        for joint, meaning in topology.legend()
    ]
    if any(cell is not None and cell.peer is not None for row in topology.cells for cell in row):
        said = Content.styled("peer to peer allowed, or not", "$text-muted")
        lines.append(Content.styled(f"{'✓ ✗':<10}", "bold") + said)
    lines += [Content.styled("✗ ", "bold") + Content(reason) for reason in topology.refusals()]
    return Content("\n").join(lines)


def _cell(cell: Cell | None, width: int) -> Content:
    style = "$text-muted"
    if cell is not None and cell.joint.startswith("NV"):
        style = "bold $text-success"
    elif cell is not None and cell.joint in ("PIX", "PXB", "same board", "same GPU"):
        style = "$text-primary"
    text = _text(cell)
    return Content.styled(" " * (width - cell_len(text)) + text, style)


def _text(cell: Cell | None) -> str:
    return "·" if cell is None else cell.text()


class TopologyScreen(Dialog[None]):
    """Asks on a thread, for the driver may take its time."""

    BINDINGS = bindings("topology")
    where: ClassVar[Where] = "topology"

    def __init__(self, find: Callable[[], Topology]) -> None:
        super().__init__()
        self._find = find
        self.topology: Topology | None = None

    def compose(self) -> ComposeResult:
        """One text that scrolls both ways."""
        with Vertical(classes="dialog wide") as box:
            box.border_title = "Topology"
            box.border_subtitle = "arrows scroll · Esc closes"
            with ScrollableContainer():
                yield Static("asking the driver …", id="topology", markup=False)

    def on_mount(self) -> None:
        """Ask."""
        self._ask()

    @work(thread=True)
    def _ask(self) -> None:
        found = self._find()
        self.app.call_from_thread(self._show, found)

    def _show(self, topology: Topology) -> None:
        self.topology = topology
        self.query_one("#topology", Static).update(draw(topology))
