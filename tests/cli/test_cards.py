"""`workbench cards`: what it tells of samples, and until when."""

import json
import signal
import subprocess
import sys
import time
from datetime import datetime
from queue import Queue

import msgspec

from tests.cli.conftest import Workbench
from tests.cli.test_usage import assert_one_message
from workbench.cli.cards import keep, told, topology_json, topology_table
from workbench.cli.failures import Code
from workbench.domain.card import Card, CardKind
from workbench.domain.topology import Pair, lay_out
from workbench.meters.sample import CardSample, GpuProcess, HostSample, NvLink, Snapshot

HOST = HostSample(cpu_percent=None, total_mib=64000.0, available_mib=48000.0)
CARDS = tuple(
    Card(name=f"CUDA{i}", kind=CardKind.CUDA, smi_index=1 - i, uuid=f"GPU-{i}", pci_bus_id=f"0000:0{i}:00.0")
    for i in range(2)
)
SAMPLE = CardSample(
    name="CUDA0", total_mib=143771, used_mib=30000, reserved_mib=615, utilisation=52, power_w=432, energy_j=9.5,
    energy_at=1.0, nvlink=NvLink(links=18),
    processes=(GpuProcess(pid=7, name="workbench worker", mib=29000), GpuProcess(pid=8)),
)  # fmt: skip
SNAPSHOT = Snapshot(at=1.0, cards=(SAMPLE, CardSample(name="CUDA1", lost=True)), host=HOST)


def test_a_sample_is_one_json_object_on_a_line_and_its_owners_add_up() -> None:
    (line,) = told([SNAPSHOT], CARDS, as_json=True)
    assert "\n" not in line
    sample = json.loads(line)
    assert sample["at"].startswith("20")
    first, second = sample["cards"]
    assert (first["name"], first["smi_index"], first["uuid"], first["power_w"]) == ("CUDA0", 1, "GPU-0", 432)
    assert (first["energy_j"], first["nvlink"]["links"], first["free_mib"]) == (9.5, 18, 143771 - 30615)
    assert sum(owner["mib"] for owner in first["owners"]) == first["used_mib"]
    assert first["owners"][0] == {"kind": "process", "mib": 29000, "pid": 7, "name": "workbench worker"}
    assert second["lost"] is True
    assert (second["used_mib"], second["owners"]) == (None, None)
    assert sample["host"]["available_mib"] == 48000


def test_a_sample_bears_the_time_at_which_it_was_read_and_an_absent_reader_costs_no_memory() -> None:
    read = msgspec.structs.replace(SNAPSHOT, at=time.monotonic() - 60)
    (line,) = told([read], CARDS, as_json=True)
    assert 59 < time.time() - datetime.fromisoformat(json.loads(line)["at"]).timestamp() < 120
    samples: Queue[Snapshot] = Queue(2)
    for _ in range(9):
        keep(samples, SNAPSHOT)
    assert samples.qsize() == 2


def test_without_json_a_sample_is_a_line_a_card() -> None:
    head, rows = told([SNAPSHOT], CARDS, as_json=False)
    first, second, host = rows.split("\n")
    assert head.split() == ["time", "card", "used", "total", "use", "power", "clock", "heat", "why", "slower"]
    assert first.split()[1:] == ["CUDA0", "29.3", "GiB", "140.4", "GiB", "52%", "432", "W", "–", "–"]
    assert second.endswith("lost")
    assert host.split()[:3] == ["host", "15.6", "GiB"]


def test_the_head_comes_once_a_screenful_and_when_cards_change_and_columns_stay() -> None:
    idle = msgspec.structs.replace(SAMPLE, used_mib=3, power_w=None, utilisation=0)
    fewer = msgspec.structs.replace(SNAPSHOT, cards=(idle,))
    said = [*told([SNAPSHOT, *[fewer] * 13], CARDS, as_json=False)]
    heads = [at for at, text in enumerate(said) if text.startswith("time")]
    assert heads == [0, 2, 14]
    lines = "\n".join(said).split("\n")
    assert len({line.index("140.4 GiB") for line in lines if "CUDA0" in line}) == 1
    assert {line.index("power") for line in lines if line.startswith("time")} == {lines[1].index("432 W")}


def test_the_topology_as_a_matrix_and_as_pairs() -> None:
    refused = Pair(first="0000:00:00.0", second="0000:01:00.0", ancestor=50, peer=False, refusal="not supported")
    topology = lay_out(CARDS, [refused])
    assert topology_table(topology).split("\n") == [
        "       CUDA0  CUDA1",
        "CUDA0  ·      SYS ✗",
        "CUDA1  SYS ✗  ·",
        "SYS: between NUMA nodes",
        "✗ not supported: CUDA0–CUDA1",
    ]
    assert json.loads(topology_json(topology)) == [
        {"first": "CUDA0", "second": "CUDA1", "joint": "SYS", "peer": False, "refusal": "not supported"}
    ]


def test_samples_come_until_ctrl_c() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "workbench", "cards", "--watch", "0.1", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert all(json.loads(line)["host"]["total_mib"] > 0 for line in lines)
    assert process.returncode == Code.CANCELLED


def test_wrong_usage(workbench: Workbench) -> None:
    assert_one_message(workbench("cards", "--watch", "0"), Code.WRONG, "--watch", "0.1")
    assert_one_message(workbench("cards", "--watch", "1", "--topology"), Code.WRONG, "do not go together")
