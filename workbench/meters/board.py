"""All meters of the watched cards, read together; what is dear is read less often."""

import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import psutil

from workbench.meters.gpm import Gpm, GpmReading
from workbench.meters.host import HostMeter
from workbench.meters.links import NvLinkTraffic, PcieTraffic
from workbench.meters.nvml import PCI_DEVICES, Asking, Nvml, asleep
from workbench.meters.sample import CardSample, GpuProcess, Snapshot
from workbench.meters.standing import Standing, read_standing

PERIODS_S = {"processes": 1.0, "traffic": 2.0, "monitors": 5.0, "energy": 10.0, "standing": 10.0, "driver": 10.0}
"""How often each group is read, by what a call costs, the monitors also the card; all else is read each time."""
GROUPS = frozenset(PERIODS_S) - {"driver"}


class WatchedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A card that NVML knows by its PCI bus id; `pids` are our processes that may use it."""

    name: str
    pci_bus_id: str
    pids: tuple[int, ...] = ()


class WatchedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual card: the process behind it and the card's size in MiB."""

    name: str
    pid: int
    size_mib: float | None = None


class WatchedName(msgspec.Struct, frozen=True, kw_only=True):
    """A card of which nothing can be read, such as one on another host."""

    name: str


Watched = WatchedGpu | WatchedProcess | WatchedName


class Watching(msgspec.Struct, frozen=True, kw_only=True):
    """What is read: cards in their order, the files of the model, the engine's own process."""

    cards: tuple[Watched, ...] = ()
    model_files: tuple[Path, ...] = ()
    engine_pid: int | None = None


class _Kept(msgspec.Struct):
    """What was last read of a card in the slower groups."""

    processes: tuple[GpuProcess, ...] | None = None
    traffic: tuple[float | None, float | None] = (None, None)
    monitors: GpmReading = GpmReading()
    energy: tuple[float | None, float | None] = (None, None)
    standing: Standing = Standing()


class Board:
    """Reads; not thread-safe but for `hanging`. Two cards of llama.cpp on one GPU are read once.

    Of what is dear only `groups` are read, from `GROUPS`; the figures of the others stay None.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        pci_devices: Path = PCI_DEVICES,
        groups: Collection[str] = GROUPS,
    ) -> None:
        self._clock = clock
        self._pci_devices = pci_devices
        self._groups = frozenset(groups)
        self._host = HostMeter(clock)
        self._host_mib = psutil.virtual_memory().total / 2**20
        self._next: dict[str, float] = {}
        self._kept: dict[str, _Kept] = {}
        self._nvml: Nvml | None = None
        self._gpm: Gpm | None = None
        self._nvlink: NvLinkTraffic | None = None
        self._pcie: PcieTraffic | None = None

    def read(self, watching: Watching, *, mark: int = 0, energy: bool = False, rarely: bool = False) -> Snapshot:
        """Everything now. `energy` reads counters and monitors before they are due; `rarely` leaves traffic out."""
        now = self._clock()
        gpus = [card for card in watching.cards if isinstance(card, WatchedGpu)]
        pids = {card.pid for card in watching.cards if isinstance(card, WatchedProcess)}
        self._host.forget_all_but(pids | ({watching.engine_pid} if watching.engine_pid is not None else set()))
        awake = [card for card in gpus if not asleep(card.pci_bus_id, self._pci_devices)]
        self._look_after_driver(awake, now)
        due = {group for group in self._groups if self._due(group, now)}
        if energy:
            due |= {"energy", "monitors"} & self._groups
        by_bus: dict[str, CardSample] = {}
        if self._nvml is not None:
            if "standing" in due:
                self._nvml.forget_names()
            for bus_id in dict.fromkeys(card.pci_bus_id for card in awake):
                by_bus[bus_id] = self._read_gpu(bus_id, due, rarely)
            self._watch_pcie([] if rarely or "traffic" not in self._groups else list(by_bus))
        cards = tuple(self._card(card, by_bus, awake) for card in watching.cards)
        return Snapshot(
            at=now,
            cards=cards,
            host=self._host.host(watching.model_files, watching.engine_pid),
            mark=mark,
            missing=self._nvml.missing if self._nvml is not None else None,
        )

    def rest(self) -> None:
        """Nothing is read for a while: the thread that reads PCIe traffic pauses."""
        if self._pcie is not None:
            self._pcie.watch(())

    def hanging(self) -> Asking | None:
        """The driver's call that has run longest, if one runs. From any thread."""
        return None if self._nvml is None else self._nvml.asking

    def close(self) -> None:
        """Let go of the driver; left open if a thread hangs in it."""
        if self._pcie is not None and not self._pcie.close():
            return
        if self._gpm is not None:
            self._gpm.close()
        if self._nvml is not None:
            self._nvml.close()
        self._pcie = self._gpm = self._nvlink = self._nvml = None

    def _due(self, group: str, now: float) -> bool:
        if now < self._next.get(group, float("-inf")):
            return False
        self._next[group] = now + PERIODS_S[group]
        return True

    def _look_after_driver(self, awake: Collection[WatchedGpu], now: float) -> None:
        """Open NVML when a card needs it, and anew when it went away or every card is lost."""
        nvml = self._nvml
        if not awake:
            return
        if nvml is not None:
            dead = nvml.missing is not None or nvml.gone or all(nvml.lost(card.pci_bus_id) for card in awake)
            if not (dead and self._due("driver", now)):
                return
            self.close()
        self._next.clear()
        self._next["driver"] = now + PERIODS_S["driver"]
        self._kept.clear()
        self._nvml = nvml = Nvml(host_mib=self._host_mib)
        self._gpm, self._nvlink, self._pcie = Gpm(nvml, self._clock), NvLinkTraffic(nvml), PcieTraffic(nvml)

    def _watch_pcie(self, bus_ids: list[str]) -> None:
        """A card with monitors of its own tells its traffic for less."""
        if self._pcie is not None and self._gpm is not None:
            self._pcie.watch(bus_id for bus_id in bus_ids if not self._gpm.able(bus_id))

    def _read_gpu(self, bus_id: str, due: set[str], rarely: bool) -> CardSample:
        assert self._nvml is not None
        assert self._gpm is not None
        assert self._nvlink is not None
        assert self._pcie is not None
        sample = self._nvml.sample("", bus_id)
        if sample.lost or self._nvml.missing is not None:
            return sample
        kept = self._kept.setdefault(bus_id, _Kept())
        if "processes" in due:
            kept.processes = self._nvml.processes(bus_id)
        if "energy" in due:
            used = self._nvml.energy_j(bus_id)
            kept.energy = (used, None if used is None else self._clock())
        if "standing" in due:
            kept.standing = read_standing(self._nvml, bus_id)
        unread = "monitors" in self._groups and kept.monitors == GpmReading()  # two readings make the first figure
        if unread or "monitors" in due:
            kept.monitors = self._gpm.read(bus_id)
        gpm = kept.monitors
        links = gpm.nvlink_sent_mib_s, gpm.nvlink_received_mib_s
        if links == (None, None):  # the links' own counters take milliseconds a call
            if "traffic" in due and kept.standing.nvlink is not None and not rarely:
                kept.traffic = self._nvlink.read(bus_id)
            links = kept.traffic
        if self._nvml.lost(bus_id):
            return CardSample(name="", lost=True)
        sent, received = gpm.pcie_sent_mib_s, gpm.pcie_received_mib_s
        if not self._gpm.able(bus_id):
            sent, received = self._pcie.read(bus_id)
        standing, nvlink = kept.standing, kept.standing.nvlink
        return msgspec.structs.replace(
            sample,
            processes=kept.processes,
            dram_percent=gpm.dram_percent,
            tensor_percent=gpm.tensor_percent,
            energy_j=kept.energy[0],
            energy_at=kept.energy[1],
            pcie=msgspec.structs.replace(standing.pcie, sent_mib_s=sent, received_mib_s=received),
            nvlink=None
            if nvlink is None
            else msgspec.structs.replace(nvlink, sent_mib_s=links[0], received_mib_s=links[1]),
            ecc_errors=standing.ecc_errors,
            slices=standing.slices,
        )

    def _card(self, card: Watched, by_bus: dict[str, CardSample], awake: list[WatchedGpu]) -> CardSample:
        if isinstance(card, WatchedProcess):
            return self._host.process(card.name, card.pid, card.size_mib)
        if not isinstance(card, WatchedGpu):
            return CardSample(name=card.name)
        if card not in awake:
            return CardSample(name=card.name, asleep=True)
        sample = by_bus.get(card.pci_bus_id, CardSample(name=card.name))
        return msgspec.structs.replace(sample, name=card.name, ours_mib=_held_by(card.pids, sample.processes))


def _held_by(pids: Collection[int], processes: tuple[GpuProcess, ...] | None) -> float | None:
    """MiB of `pids` on the card; None if the driver lists none of them, as in a container."""
    used = [process.mib for process in processes or () if process.pid in pids and process.mib is not None]
    return sum(used) if used else None
