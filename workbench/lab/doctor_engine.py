"""The part of `workbench doctor` that asks llama.cpp, in a process of its own, and the driver, within a time."""

import contextlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench.domain.card import Card, CardKind, pci_key
from workbench.domain.forecast import FROM_LLAMA
from workbench.domain.report import Facts, Finding, Problem
from workbench.domain.topology import Topology, lay_out
from workbench.engines.engine import EngineDied, EngineError
from workbench.engines.llama import wire
from workbench.engines.llama.client import examine
from workbench.lab.cards import CUDA, join, lacking
from workbench.lab.demo import DEMO_LAYOUT
from workbench.lab.doctor import TookTooLong, version_of, within
from workbench.lab.forecast import Forecasts
from workbench.lab.remedies import Remedies
from workbench.meters.nvml import Nvml
from workbench.meters.topology import read_pairs
from workbench.store.models import ModelError

DRIVER_S = 5.0
ENGINE_S = 30.0
PCI_DEVICES = Path("/sys/bus/pci/devices")
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_CUDART = re.compile(r"libcudart\.so\.(\d+)")


class Driver:
    """NVIDIA's driver as it answers; `nvml` is None where it does not within DRIVER_S, or cannot be asked."""

    def __init__(self) -> None:
        self.nvml: Nvml | None = None
        self.hangs = False
        with contextlib.suppress(ImportError):  # the binding is missing, of which look_at_machine tells
            try:
                self.nvml = within(DRIVER_S, Nvml)
            except TookTooLong:
                self.hangs = True

    @property
    def cards(self) -> int:
        """How many cards it names."""
        return 0 if self.nvml is None else len(self.nvml.gpus)


def look_at_engine(env: Mapping[str, str] = os.environ, remedies: Remedies | None = None) -> list[Finding]:
    """llama.cpp, the driver, how the two see the cards, and how these are joined."""
    remedies = remedies or Remedies()
    driver = Driver()
    with tempfile.TemporaryDirectory(prefix="workbench-doctor-") as folder:
        log = Path(folder) / "engine.log"
        engine, built, devices = _engine(log, driver, remedies)
        complaint = cuda_complaint(log)
    found = [engine, _driver(driver, built, remedies)]
    if devices is not None:
        found += _cards(devices, built, driver, env, remedies, complaint)
        found.append(_forecast())
    return found


# ── the engine ────────────────────────────────────────────────────────────────────────────
def _engine(
    log: Path, driver: Driver, remedies: Remedies
) -> tuple[Finding, wire.Described | None, Sequence[wire.Device] | None]:
    facts: Facts = {"llama-cpp-python": version_of("llama-cpp-python")}
    again = remedies.build(cuda=driver.cards > 0)
    try:
        ready, built, devices = within(ENGINE_S, lambda: examine(log))
    except TookTooLong:
        what = f"llama.cpp does not answer within {ENGINE_S:.0f} s"
        return _ill("engine", facts, what, "sudo reboot" if driver.cards or driver.hangs else again), None, None
    except (EngineDied, OSError) as error:
        if facts["llama-cpp-python"] is None:
            what = "llama-cpp-python is not installed"
        else:
            what = f"llama-cpp-python cannot be imported: {last_line(log) or error}"
        return _ill("engine", facts, what, again), None, None
    facts |= {
        "llama.cpp": built.llama_version,
        "ggml": built.ggml_version,
        "commit": built.commit,
        "backends": list(built.backends),
        "libraries": list(built.libraries),
        "rpc": ready.supports_rpc,
        "nccl": any(name.startswith("libnccl") for name in built.libraries) if CUDA in built.backends else None,
        "system_info": ready.build.strip(" |"),
    }
    problems = []
    if not ready.supports_rpc:
        what = "llama.cpp was built without RPC: no virtual cards, no other machines, no demonstration"
        problems.append(Problem(what=what, fix=again))
    if isinstance(devices, EngineDied):
        said = last_line(log)
        what = f"llama.cpp ends when it looks for devices: {said or devices.reason}"
        problems.append(Problem(what=what, fix=remedies.cuda(said)))
        devices = ()
    return Finding(subject="engine", facts=facts, problems=tuple(problems)), built, devices


def last_line(log: Path) -> str:
    """What the engine's process said last."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def cuda_complaint(log: Path) -> str:
    """Why CUDA did not start, in llama.cpp's words; empty if it said nothing."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in lines if "CUDA" in line and "fail" in line), "")


def _ill(subject: str, facts: Facts, what: str, fix: str) -> Finding:
    return Finding(subject=subject, facts=facts, problems=(Problem(what=what, fix=fix),))


# ── the driver ────────────────────────────────────────────────────────────────────────────
def _driver(driver: Driver, built: wire.Described | None, remedies: Remedies) -> Finding:
    plugged = nvidia_cards()
    facts: Facts = {"nvidia": None, "cuda": None, "cards": driver.cards, "cards_on_pci": plugged}
    if driver.hangs:
        what = f"NVIDIA's driver does not answer within {DRIVER_S:.0f} s"
        return _ill("driver", facts, what, "sudo reboot")
    nvml = driver.nvml
    if nvml is None:
        return Finding(subject="driver", facts=facts)
    facts["nvidia"] = nvml.driver
    facts["cuda"] = None if nvml.cuda is None else f"{nvml.cuda[0]}.{nvml.cuda[1]}"
    facts["missing"] = nvml.missing
    problems = []
    if nvml.missing is not None and "reboot" in nvml.missing:
        problems.append(Problem(what=nvml.missing.removesuffix("; reboot"), fix="sudo reboot"))
    elif nvml.missing is not None and KERNEL_MODULE.exists():
        what = f"{nvml.missing}, though its kernel module is loaded: in a container it must be handed in"
        problems.append(Problem(what=what, fix="docker run --gpus all …"))
    elif nvml.missing is not None and plugged:
        what = f"{plugged} NVIDIA card{'' if plugged == 1 else 's'} on the PCI bus, and {nvml.missing}"
        problems.append(Problem(what=what, fix=remedies.driver()))
    wanted = 0 if built is None else max((int(m[1]) for n in built.libraries if (m := _CUDART.match(n))), default=0)
    if nvml.cuda is not None and wanted > nvml.cuda[0]:
        what = f"the engine was built with CUDA {wanted}, and the driver runs up to {facts['cuda']}"
        problems.append(Problem(what=what, fix=remedies.driver()))
    return Finding(subject="driver", facts=facts, problems=tuple(problems))


def nvidia_cards(devices: Path = PCI_DEVICES) -> int:
    """How many NVIDIA cards the PCI bus has, whatever the driver says."""
    count = 0
    try:
        for device in devices.iterdir():
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            count += vendor == _NVIDIA and kind.startswith(_DISPLAY)
    except (OSError, ValueError):
        return count
    return count


# ── the cards ─────────────────────────────────────────────────────────────────────────────
def _cards(
    devices: Sequence[wire.Device],
    built: wire.Described | None,
    driver: Driver,
    env: Mapping[str, str],
    remedies: Remedies,
    complaint: str,
) -> list[Finding]:
    nvml = driver.nvml
    gpus = () if nvml is None else nvml.gpus
    cards = join(devices, gpus, {})
    names = {gpu.pci_bus_id: gpu.name for gpu in gpus}
    rows: list[Facts] = [
        {
            "llama.cpp": card.name, "nvidia-smi": card.smi_index, "description": card.description,
            "pci_bus_id": card.pci_bus_id, "total_mib": None if card.total_mib is None else round(card.total_mib),
        }
        for card in cards
    ]  # fmt: skip
    seen = {pci_key(card.pci_bus_id or "") for card in cards}
    unseen = [gpu for gpu in gpus if pci_key(gpu.pci_bus_id) not in seen]
    rows += [
        {
            "llama.cpp": None, "nvidia-smi": gpu.index, "description": names[gpu.pci_bus_id],
            "pci_bus_id": gpu.pci_bus_id, "total_mib": None,
        }
        for gpu in unseen
    ]  # fmt: skip
    problems: list[Problem] = []
    if nvml is not None:
        backends = () if built is None else built.backends
        lack = lacking(cards, backends, nvml, dict(env))
        if lack is not None and gpus and CUDA not in backends:
            problems.append(Problem(what=lack.what, fix=remedies.build(cuda=True)))
        elif lack is not None and lack.warning:
            what = f"{lack.what}: {complaint}" if complaint else lack.what
            problems.append(Problem(what=what, fix=remedies.cuda(complaint)))
        elif lack is not None and gpus:
            problems.append(Problem(what=lack.what, fix=lack.helps))
        elif unseen and "CUDA_VISIBLE_DEVICES" not in env:
            what = f"llama.cpp sees {len(gpus) - len(unseen)} of {len(gpus)} NVIDIA cards; its log says why"
            problems.append(Problem(what=what, fix="workbench cards", broken=False))
        elif lack is not None:
            problems.append(Problem(what=lack.what, fix=lack.helps, broken=False))
    ours = [card for card in cards if card.kind is CardKind.CUDA and card.smi_index is not None]
    order = [card.smi_index for card in ours]
    if order != sorted(order, key=lambda index: index or 0):
        what = "CUDA numbers the cards otherwise than nvidia-smi; workbench tells both"
        problems.append(Problem(what=what, fix="export CUDA_DEVICE_ORDER=PCI_BUS_ID", broken=False))
    if len(ours) > 1 and built is not None and not any(name.startswith("libnccl") for name in built.libraries):
        what = "the engine was built without NCCL: tensor mode is slower than it could be"
        problems.append(Problem(what=what, fix=remedies.nccl(), broken=False))
    found = [Finding(subject="cards", facts=tuple(rows), problems=tuple(problems))]
    topology = _topology(ours, driver)
    return found if topology is None else [*found, _joins(topology)]


def _topology(cards: Sequence[Card], driver: Driver) -> Topology | None:
    nvml = driver.nvml
    if len(cards) < 2 or nvml is None:
        return None
    try:
        return lay_out(cards, within(DRIVER_S, lambda: read_pairs(nvml)))
    except TookTooLong:
        return None


def _joins(topology: Topology) -> Finding:
    rows: list[Facts] = [
        {"first": name, "second": topology.names[column], "joint": cell.joint, "peer_to_peer": cell.peer}
        for row, name in enumerate(topology.names)
        for column, cell in enumerate(topology.cells[row])
        if cell is not None and column > row
    ]
    problems = tuple(
        Problem(what=f"no peer to peer, {refusal}", fix="workbench cards --topology", broken=False)
        for refusal in topology.refusals()
    )
    return Finding(subject="topology", facts=tuple(rows), problems=problems)


# ── the forecast ──────────────────────────────────────────────────────────────────────────
def _forecast() -> Finding:
    """Who forecasts: llama.cpp itself, or the model's header where this build cannot."""
    forecasts = Forecasts(lambda layout: ())
    try:
        source = within(ENGINE_S, lambda: forecasts.forecast(DEMO_LAYOUT, limits=False)).source
    except ModelError:
        return Finding(subject="forecast", facts={"source": None})
    except (EngineError, TookTooLong) as error:
        what = f"no forecast can be made: {str(error) or 'no answer'}"
        return Finding(subject="forecast", facts={"source": None}, problems=(Problem(what=what, broken=False),))
    finally:
        forecasts.close()
    problems = []
    if source != FROM_LLAMA:
        what = "this llama.cpp cannot forecast; the model's header is read instead, compute buffers are rough"
        problems.append(Problem(what=what, fix=Remedies().build(cuda=False), broken=False))
    return Finding(subject="forecast", facts={"source": source}, problems=tuple(problems))
