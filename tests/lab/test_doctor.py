"""The doctor, with engine, driver, folders and documents each broken in turn."""

import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.meters.conftest import Plug, plug  # noqa: F401
from tests.meters.fake_nvml import FakeGpu, FakeNvmlLib
from workbench.domain.report import Finding, Mask, Problem, Report
from workbench.engines.engine import EngineDied
from workbench.engines.llama import wire
from workbench.lab import doctor, doctor_engine
from workbench.lab.cards import inventory
from workbench.lab.doctor import look_at_machine, nearest_folder, unwritable, within
from workbench.lab.doctor_engine import cuda_complaint, last_line, look_at_engine, nvidia_cards
from workbench.lab.remedies import Remedies

TWO = (FakeGpu("00000000:41:00.0", uuid="GPU-a"), FakeGpu("00000000:C1:00.0", uuid="GPU-b"))
READY = wire.Ready(pid=1, supports_rpc=True, supports_gpu_offload=True, build="CUDA : ARCHS = 900 | ")
BUILT = wire.Described(
    llama_version="0.5.0", ggml_version="0.25.3", commit="0c1e570", backends=("CUDA", "RPC", "CPU"),
    libraries=("libcuda.so.1", "libcudart.so.13", "libnccl.so.2"),
)  # fmt: skip
UBUNTU = Remedies("ubuntu", nvcc=False)


def device(name: str, device_id: str | None) -> wire.Device:
    return wire.Device(
        name=name, description="NVIDIA H200", type="cpu" if name == "CPU" else "gpu", device_id=device_id,
        total_mib=143000.0, free_mib=1.0,
    )  # fmt: skip


def built_as(
    monkeypatch: pytest.MonkeyPatch,
    devices: Sequence[wire.Device] | EngineDied,
    built: wire.Described = BUILT,
    ready: wire.Ready = READY,
) -> None:
    """Another engine than the one that is installed."""
    seen = devices if isinstance(devices, EngineDied) else tuple(devices)
    monkeypatch.setattr(doctor_engine, "examine", lambda log: (ready, built, seen))
    monkeypatch.setattr(doctor_engine, "_forecast", lambda: Finding(subject="forecast"))


def found(findings: Sequence[Finding], subject: str) -> Finding:
    return next(finding for finding in findings if finding.subject == subject)


def problems(findings: Sequence[Finding]) -> list[Problem]:
    return list(Report(findings=tuple(findings)).problems)


def test_the_installed_engine_is_sound_and_forecasts() -> None:
    findings = look_at_engine({})
    engine = found(findings, "engine").facts
    assert isinstance(engine, dict)
    assert "RPC" in engine["backends"]
    assert engine["llama.cpp"]
    assert found(findings, "forecast").facts == {"source": "llama.cpp"}
    assert not any(problem.broken for problem in problems(findings))


def test_cards_of_llama_cpp_and_of_the_driver_are_brought_together(
    monkeypatch: pytest.MonkeyPatch, plug: Plug  # noqa: F811
) -> None:
    plug(FakeNvmlLib(*TWO))
    built_as(monkeypatch, [device("CUDA0", "0000:c1:00.0"), device("CUDA1", "0000:41:00.0"), device("CPU", None)])
    findings = look_at_engine({}, UBUNTU)
    rows = found(findings, "cards").facts
    assert isinstance(rows, tuple)
    assert [(row["llama.cpp"], row["nvidia-smi"]) for row in rows] == [("CUDA0", 1), ("CUDA1", 0), ("CPU", None)]
    driver = found(findings, "driver").facts
    assert isinstance(driver, dict)
    assert (driver["nvidia"], driver["cards"]) == ("580.95.05", 2)
    assert len(found(findings, "topology").facts) == 1
    order = next(problem for problem in problems(findings) if "otherwise than nvidia-smi" in problem.what)
    assert not order.broken
    assert order.fix == "export CUDA_DEVICE_ORDER=PCI_BUS_ID"


def test_cards_that_the_build_cannot_use(monkeypatch: pytest.MonkeyPatch, plug: Plug) -> None:  # noqa: F811
    plug(FakeNvmlLib(*TWO))
    monkeypatch.setattr(doctor_engine, "_forecast", lambda: Finding(subject="forecast"))
    findings = look_at_engine({}, Remedies("ubuntu", nvcc=False))
    broken = next(problem for problem in problems(findings) if problem.broken)
    assert "2 NVIDIA cards" in broken.what
    assert "built without CUDA" in broken.what
    assert broken.fix is not None
    assert broken.fix.startswith("sudo apt install nvidia-cuda-toolkit && make -C ")
    assert inventory({}).warning == "2 NVIDIA cards, built without CUDA"
    rows = found(findings, "cards").facts
    assert isinstance(rows, tuple)
    assert [row["nvidia-smi"] for row in rows if row["llama.cpp"] is None] == [0, 1]


def test_a_driver_that_hangs_is_told_in_time(monkeypatch: pytest.MonkeyPatch, plug: Plug) -> None:  # noqa: F811
    lib, hang = FakeNvmlLib(*TWO), threading.Event()

    def wait(_name: str) -> None:
        hang.wait()

    lib.before = wait
    plug(lib)
    monkeypatch.setattr(doctor_engine, "DRIVER_S", 0.2)
    built_as(monkeypatch, [device("CPU", None)])
    try:
        findings = look_at_engine({}, UBUNTU)
    finally:
        hang.set()
    assert Problem(what="NVIDIA's driver does not answer within 0 s", fix="sudo reboot") in problems(findings)
    assert found(findings, "cards").facts


@pytest.mark.parametrize(
    ("library", "rpc", "words", "fix"),
    [
        ("libnccl.so.2", False, ("built without RPC",), "make -C "),
        ("libcudart.so.14", True, ("built with CUDA 14", "13.0"), "sudo ubuntu-drivers install"),
        ("libcudart.so.13", True, ("without NCCL",), "sudo apt install libnccl-dev && CMAKE_ARGS"),
    ],
)
def test_what_a_build_lacks(
    monkeypatch: pytest.MonkeyPatch,
    plug: Plug,  # noqa: F811
    library: str,
    rpc: bool,
    words: tuple[str, ...],
    fix: str,
) -> None:
    built, ready = (
        msgspec.structs.replace(BUILT, libraries=(library,)), msgspec.structs.replace(READY, supports_rpc=rpc)
    )  # fmt: skip
    plug(FakeNvmlLib(*TWO))
    built_as(monkeypatch, [device("CUDA0", "0000:41:00.0"), device("CUDA1", "0000:c1:00.0")], built, ready)
    said = problems(look_at_engine({}, Remedies("ubuntu", nvcc=True)))
    one = next(problem for problem in said if words[0] in problem.what)
    assert all(word in one.what for word in words)
    assert one.fix is not None
    assert one.fix.startswith(fix)


def test_a_cuda_that_does_not_start_is_told_apart_from_a_build_without_it(
    monkeypatch: pytest.MonkeyPatch, plug: Plug  # noqa: F811
) -> None:
    plug(FakeNvmlLib(*TWO))
    built_as(monkeypatch, [device("CPU", None)])
    complaint = "ggml_cuda_init: failed to initialize CUDA: system not yet initialized"
    monkeypatch.setattr(doctor_engine, "cuda_complaint", lambda log: complaint)
    broken = next(problem for problem in problems(look_at_engine({}, UBUNTU)) if problem.broken)
    assert broken.what == f"the driver knows 2 NVIDIA cards, but CUDA does not start on them: {complaint}"
    assert broken.fix == "sudo systemctl restart nvidia-fabricmanager"
    seen = wire.Devices((device("CPU", None),), ("CUDA", "CPU"))
    monkeypatch.setattr("workbench.lab.cards.list_devices", lambda env, log: seen)
    assert inventory({}).warning == "2 NVIDIA cards, CUDA does not start"
    assert UBUNTU.cuda("CUDA driver version is insufficient for CUDA runtime version") == UBUNTU.driver()


def test_the_log_is_read_for_what_cuda_said(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    assert cuda_complaint(log) == last_line(log) == ""
    log.write_text("load\nggml_cuda_init: failed to initialize CUDA: unknown error\nlast\n\n")
    assert cuda_complaint(log) == "ggml_cuda_init: failed to initialize CUDA: unknown error"
    assert last_line(log) == "last"
    assert UBUNTU.cuda(cuda_complaint(log)) == "sudo modprobe nvidia-uvm"


def test_hidden_cards_and_an_engine_that_ends_when_it_looks(
    monkeypatch: pytest.MonkeyPatch, plug: Plug  # noqa: F811
) -> None:
    plug(FakeNvmlLib(*TWO))
    built_as(monkeypatch, EngineDied("ended by SIGABRT"))
    said = problems(look_at_engine({"CUDA_VISIBLE_DEVICES": ""}, UBUNTU))
    assert any("ended by SIGABRT" in problem.what and problem.broken for problem in said)
    assert any(problem.fix == "unset CUDA_VISIBLE_DEVICES" and problem.broken for problem in said)


def test_a_card_without_a_driver_is_seen_on_the_bus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plug: Plug  # noqa: F811
) -> None:
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert nvidia_cards(tmp_path) == 1
    assert nvidia_cards(tmp_path / "none") == 0
    plug(None)
    monkeypatch.setattr(doctor_engine, "nvidia_cards", lambda: 1)
    monkeypatch.setattr(doctor_engine, "KERNEL_MODULE", tmp_path / "none")
    built_as(monkeypatch, [device("CPU", None)])
    assert any(problem.fix == "sudo ubuntu-drivers install" for problem in problems(look_at_engine({}, UBUNTU)))
    monkeypatch.setattr(doctor_engine, "KERNEL_MODULE", tmp_path / "a" / "vendor")
    assert any("container" in problem.what for problem in problems(look_at_engine({}, UBUNTU)))


def test_another_distribution_is_told_where_to_read() -> None:
    assert Remedies("nixos", nvcc=False).driver().startswith("# see https://")
    assert "\nmake -C " in Remedies("nixos", nvcc=False).build(cuda=True)
    assert Remedies("nixos", nvcc=True).rebuild(cuda=True).startswith('CMAKE_ARGS="-DGGML_RPC=ON -DGGML_CUDA=ON" ')
    assert "llama-cpp-python==" in Remedies("nixos", nvcc=True).rebuild(cuda=False)


# ── machine and documents ─────────────────────────────────────────────────────────────────
def test_a_folder_that_cannot_be_written_is_broken_and_told_with_its_remedy(own_home: Path) -> None:
    (own_home / "data").write_text("a file")
    said = problems(look_at_machine({"WORKBENCH_HOME": str(own_home)}))
    broken = [problem for problem in said if problem.broken]
    assert [problem.fix for problem in broken] == [f"mv {own_home / 'data'} {own_home / 'data'}.old"]
    assert str(own_home / "data") in broken[0].what


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nearest_folder(tmp_path / "a" / "b") == tmp_path
    assert unwritable(tmp_path / "a", tmp_path) is None
    assert unwritable(tmp_path, tmp_path) is None

    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert unwritable(tmp_path, tmp_path) == ("Read-only file system", f"chmod u+rwx {tmp_path}")


def test_documents_that_are_wrong_are_named_with_their_line(own_home: Path) -> None:
    (own_home / "config" / "layouts").mkdir(parents=True)
    (own_home / "config" / "config.yaml").write_text("price:\n  per_hour: -1\n")
    (own_home / "config" / "layouts" / "bad.yaml").write_text(
        "name: bad\nengine: openai\nmodel: x\nurl: http://127.0.0.1:1\napi_key_env: sk-live-secret\n"
    )
    said = problems(look_at_machine({"WORKBENCH_HOME": str(own_home)}))
    config = next(problem for problem in said if "config.yaml:2" in problem.what)
    assert config.broken
    assert config.fix == f"workbench check {own_home / 'config' / 'config.yaml'}"
    layout = next(problem for problem in said if "bad.yaml" in problem.what)
    assert not layout.broken
    assert layout.fix == f"workbench check {own_home / 'config' / 'layouts' / 'bad.yaml'}"
    assert "bad.yaml:5: api_key_env" in layout.what
    assert "secret" not in str(said)


def test_of_the_environment_only_what_is_listed_is_told(own_home: Path) -> None:
    env = {"WORKBENCH_HOME": str(own_home), "GGML_CUDA_P2P": "0", "API_KEY": "sk-1", "SSH_CONNECTION": "10.0.0.1 2 3"}
    findings = look_at_machine(env)
    facts = found(findings, "environment").facts
    assert facts == {"GGML_CUDA_P2P": "0", "WORKBENCH_HOME": str(own_home)}
    assert any(problem.fix == "unset GGML_CUDA_P2P" for problem in problems(findings))


def test_a_home_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("names no folder" in one.what for one in problems(look_at_machine({"WORKBENCH_HOME": "~nobody-x/y"})))


def test_packages_that_are_missing_are_named(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda package: None if package == "textual" else "1")
    said = problems(look_at_machine({"WORKBENCH_HOME": str(own_home)}))
    (broken,) = [problem for problem in said if problem.broken]
    assert broken.what == "the package textual is not installed"
    assert broken.fix is not None
    assert "-m pip install 'textual==" in broken.fix
    assert any("pynvml is deprecated" in problem.what for problem in said)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert doctor_engine.Driver().nvml is None


def test_names_of_people_and_machines_are_taken_out() -> None:
    hide = Mask(home="/home/ann", user="ann", host="box7")
    assert hide.text("/home/ann/models and /home/anna") == "~/models and /home/anna"
    assert hide.text("/data/ann/x on box7, joann, box70") == "/data/$USER/x on $HOSTNAME, joann, box70"
    assert hide.all({"a": ["/home/ann", 1, None], "b": ({"c": "ann"},)}) == {"a": ["~", 1, None], "b": [{"c": "$USER"}]}
    assert Mask(home="/root", user="root", host=None).text("/root/x of root") == "~/x of root"


def test_an_answer_that_fails_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        within(5.0, lambda: 1 / 0)
