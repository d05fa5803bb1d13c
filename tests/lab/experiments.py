"""Runs on real workers for tests: a tiny model, virtual cards, few tokens."""

from collections.abc import Sequence
from pathlib import Path

import psutil

from workbench.domain.conversation import Sampling
from workbench.domain.layout import Context, Layout
from workbench.domain.prompts import Prompt, PromptSet
from workbench.domain.run import ArmHeader, Build, Machine
from workbench.domain.samples import Arm, Method
from workbench.domain.split import Split, Virtual
from workbench.lab.ab import Experiment, meter_reader
from workbench.lab.kit import RealKit
from workbench.lab.progress import RunEvent
from workbench.lab.provenance import Provenance

SHORT = PromptSet(
    name="short",
    defaults=Sampling(max_tokens=6),
    prompts=(Prompt(id="rivers", text="Write on rivers."), Prompt(id="tides", text="Why two tides?")),
)


def layout(model: Path, name: str = "even", n_ctx: int = 512, **split: object) -> Layout:
    """A layout over two virtual cards."""
    cards = Virtual(("200MiB", "200MiB"))
    return Layout(name=name, model=str(model), split=Split(cards=cards, **split), context=Context(n_ctx=n_ctx))  # type: ignore[arg-type]


def describe(layouts: Sequence[Layout]) -> Provenance:
    """A made-up machine, so that no worker is asked for its build."""
    names: tuple[Arm, Arm] = ("A", "B")
    arms = tuple(ArmHeader(arm=arm, layout=layout) for arm, layout in zip(names, layouts, strict=False))
    machine = Machine(host="here", cpu="", cores=64, memory_mib=1, system="")
    return Provenance(machine=machine, build=Build(versions={"workbench": "1"}), arms=arms)


class Heard(list[RunEvent]):
    """A listener that remembers."""

    def __call__(self, event: RunEvent) -> None:
        self.append(event)


def begin(
    layouts: Sequence[Layout], prompts: PromptSet = SHORT, *, blocks: int = 1, method: Method = "fresh",
    listener: object = None,
) -> Experiment:  # fmt: skip
    """A new run, not yet started."""
    kit = RealKit(spare=False)
    hear = Heard() if listener is None else listener
    return Experiment.begin(
        kit, layouts, prompts, hear, meter_reader(kit), method=method, blocks=blocks, describe=describe  # type: ignore[arg-type]
    )


def resume(folder: Path) -> Experiment:
    """Go on with a run."""
    kit = RealKit(spare=False)
    return Experiment.resume(kit, folder, Heard(), meter_reader(kit), describe=describe)


def workers() -> list[psutil.Process]:
    """The engine workers of this process."""
    found = []
    for child in psutil.Process().children():
        try:
            if any("child.worker" in part for part in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found
