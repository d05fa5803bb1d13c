"""Runs: everything that shapes the samples of one replay or A/B."""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from workbench.domain.faults import Fault
from workbench.domain.layout import Layout, on_one_server
from workbench.domain.memory import CardMemory
from workbench.domain.prompts import PromptSet
from workbench.domain.rules import check_layout, check_prompt_set
from workbench.domain.samples import LARGEST, Arm, LoadRecord, Method, Planned, Sample, plan_ab, plan_replay

VERSION = 1
RunKind = Literal["ab", "replay"]


class CardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of the machine; sizes in MiB, power in W, None where unknown."""

    pci_bus_id: str
    uuid: str | None = None
    name: str | None = None
    total_mib: float | None = None
    power_limit_w: float | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run was made. `cores` are all of the machine's, as its load average counts."""

    host: str
    cpu: str
    cores: int
    memory_mib: float
    system: str
    driver: str | None = None
    cards: tuple[CardFacts, ...] = ()


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """With what a run was made: versions by package, and the engine's own word on its build.

    `llama_cpp` is its version and commit, `backends` are those it was built with; empty where unknown.
    """

    versions: dict[str, str]
    supports_rpc: bool | None = None
    supports_gpu_offload: bool | None = None
    system_info: str = ""
    llama_cpp: str = ""
    backends: tuple[str, ...] = ()


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """The model of an arm: size of all parts in bytes, and the SHA-256 of the first part's header.

    Of a model on a server: its name and address, and what the server tells of size and digest.
    """

    path: str
    size_bytes: int
    header_sha256: str


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """What a layout came to when it was loaded, where the layout leaves it to the engine.

    `server` is what the server calls itself, empty for an engine of our own.
    """

    n_ctx: int
    flash_attn: bool | None
    template: str
    model: ModelFile
    cards: tuple[CardMemory, ...]
    host: CardMemory
    model_name: str
    arch: str
    quantisation: str
    n_layer: int
    n_params: int
    server: str = ""


class ArmHeader(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a run. `env` is the worker's effective environment, of the variables a layout may set.

    `resolved` is None until it was loaded.
    """

    arm: Arm
    layout: Layout
    env: dict[str, str] = {}
    resolved: Resolved | None = None

    @property
    def label(self) -> str:
        """`demo-even (layer 1:1)`."""
        return f"{self.layout.name} ({self.layout.label()})"


def told_apart(layouts: Sequence[Layout]) -> tuple[str, ...]:
    """The layouts' names; where two have the same, each with its split."""
    names = [layout.name for layout in layouts]
    if len(set(names)) == len(names):
        return tuple(names)
    return tuple(f"{layout.name} ({layout.label()})" for layout in layouts)


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The file `run.json`. `created` is seconds since 1970.

    `added` counts the blocks that were added later, each time the result had been seen.
    """

    version: int
    id: str
    created: float
    kind: RunKind
    method: Method
    blocks: int
    warm_ups: int
    arms: tuple[ArmHeader, ...]
    prompts: PromptSet
    machine: Machine
    build: Build
    plan: tuple[Planned, ...]
    added: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What to call the arms, in their order: see `told_apart`."""
        return told_apart([each.layout for each in self.arms])

    def arm(self, arm: Arm) -> ArmHeader:
        """One side. KeyError where the run has no such arm."""
        for each in self.arms:
            if each.arm == arm:
                return each
        raise KeyError(arm)

    def resolved(self, arm: Arm, resolved: Resolved) -> "RunHeader":
        """The same, with what a layout came to."""
        arms = tuple(
            msgspec.structs.replace(each, resolved=resolved) if each.arm == arm else each for each in self.arms
        )
        return msgspec.structs.replace(self, arms=arms)


def check_run(header: RunHeader) -> list[Fault]:
    """What makes a header unusable beyond its types: it is a file like any other, and may be a stranger's."""
    faults = [
        Fault(f"arms[{at}].layout.{key}", message)
        for at, arm in enumerate(header.arms)
        for key, message in check_layout(arm.layout)
    ]
    if not re.fullmatch(r"[\w+-][\w.+-]{0,199}", header.id):
        faults.append(Fault("id", "is no name of a run"))
    faults += [Fault(f"prompts.{key}", message) for key, message in check_prompt_set(header.prompts)]
    arms: tuple[Arm, ...] = ("A", "B") if header.kind == "ab" else ("A",)
    if tuple(arm.arm for arm in header.arms) != arms:
        faults.append(Fault("arms", f"are not those of a run of this kind, {' and '.join(arms)}"))
    if not header.plan:
        faults.append(Fault("plan", "is empty"))
    ids = {prompt.id for prompt in header.prompts.prompts}
    for at, planned in enumerate(header.plan):
        if planned.prompt not in ids or planned.arm not in arms or not 0 <= planned.block < header.blocks:
            faults.append(Fault(f"plan[{at}]", "is of another run"))
    if header.plan and header.blocks != max(planned.block for planned in header.plan) + 1:
        faults.append(Fault("blocks", f"{header.blocks} are not those of the plan"))
    if not 0 <= header.created < LARGEST:
        faults.append(Fault("created", "is no time"))
    return faults


def longer(header: RunHeader, blocks: int) -> RunHeader:
    """The same with `blocks` more; what was planned stays as it was."""
    total, offset = header.blocks + blocks, header.plan[0].salt
    if header.kind == "ab":
        one_server = on_one_server([arm.layout for arm in header.arms])
        plan = plan_ab(header.prompts, total, header.method, offset, one_server=one_server)
    else:
        plan = plan_replay(header.prompts, total, offset)
    return msgspec.structs.replace(header, blocks=total, plan=plan, added=(*header.added, blocks))


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as far as it got. `problems` are lines that could not be used, for people."""

    header: RunHeader
    samples: tuple[Sample, ...] = ()
    loads: tuple[LoadRecord, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[Planned, ...]:
        """What is planned and not there yet."""
        taken = {sample.planned.key for sample in self.samples}
        return tuple(planned for planned in self.header.plan if planned.key not in taken)

    def of(self, arm: Arm) -> tuple[Sample, ...]:
        """The samples of one arm."""
        return tuple(sample for sample in self.samples if sample.planned.arm == arm)
