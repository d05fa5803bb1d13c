"""What shapes a run's figures beside its layouts: machine, versions, environment, model files."""

import hashlib
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import psutil

from workbench import __version__
from workbench.domain.env import ALLOWED
from workbench.domain.layout import Layout
from workbench.domain.run import ArmHeader, Build, CardFacts, Machine, ModelFile
from workbench.domain.samples import Arm
from workbench.domain.split import Virtual
from workbench.engines.engine import EngineDied, Loaded
from workbench.engines.llama.client import build_facts
from workbench.engines.llama.process import worker_environment
from workbench.meters.nvml import Nvml
from workbench.store.models import parts_of
from workbench.store.places import places

_MIB = 2**20


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what a run is made."""

    machine: Machine
    build: Build
    arms: tuple[ArmHeader, ...]


Describe = Callable[[Sequence[Layout]], Provenance]


def describe(layouts: Sequence[Layout]) -> Provenance:
    """Ask this machine. Takes a second for the engine's word on its build."""
    names: tuple[Arm, Arm] = ("A", "B")
    return Provenance(
        machine=_machine(),
        build=_build(),
        arms=tuple(_arm(arm, layout) for arm, layout in zip(names, layouts, strict=False)),
    )


def _machine() -> Machine:
    nvml = Nvml()
    try:
        cards = []
        for gpu in nvml.gpus:
            sample = nvml.sample(gpu.pci_bus_id, gpu.pci_bus_id)
            cards.append(
                CardFacts(
                    pci_bus_id=gpu.pci_bus_id,
                    uuid=gpu.uuid,
                    name=gpu.name,
                    total_mib=sample.total_mib,
                    power_limit_w=sample.power_limit_w,
                )
            )
        driver = nvml.driver
    finally:
        nvml.close()
    return Machine(
        host=platform.node(),
        cpu=_cpu(),
        cores=psutil.cpu_count() or 1,
        memory_mib=psutil.virtual_memory().total / _MIB,
        system=platform.platform(),
        driver=driver,
        cards=tuple(cards),
    )


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _build() -> Build:
    versions = {"workbench": __version__, "python": platform.python_version()}
    for package in ("llama-cpp-python",):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    try:
        ready, built = build_facts(places().engine_log)
    except EngineDied:
        return Build(versions=versions)
    return Build(
        versions=versions,
        supports_rpc=ready.supports_rpc,
        supports_gpu_offload=ready.supports_gpu_offload,
        system_info=ready.build.strip(" |"),
        llama_cpp=" ".join(
            filter(None, (built.llama_version or built.ggml_version, built.commit and f"commit {built.commit}"))
        ),
        backends=built.backends,
    )


def _arm(arm: Arm, layout: Layout) -> ArmHeader:
    if layout.served_by is not None:
        return ArmHeader(arm=arm, layout=layout)
    env = worker_environment(layout.env, isinstance(layout.split.cards, Virtual))
    return ArmHeader(
        arm=arm, layout=layout, env={name: value for name, value in sorted(env.items()) if name in ALLOWED}
    )


def identify(loaded: Loaded) -> ModelFile:
    """Size of all parts, and the hash of the first part's header; of a server, what it tells. Raises OSError."""
    model = loaded.model
    if loaded.served is not None:
        return ModelFile(
            path=f"{model.path} on {loaded.served.url}",
            size_bytes=round(model.size_mib * _MIB),
            header_sha256=model.digest,
        )
    path, header_bytes = Path(model.path), model.header_bytes
    with path.open("rb") as file:
        header = file.read(header_bytes)
    return ModelFile(
        path=str(path),
        size_bytes=sum(part.stat().st_size for part in parts_of(path)),
        header_sha256=hashlib.sha256(header).hexdigest(),
    )
