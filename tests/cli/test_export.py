"""Exports run as they are: the script is executed, flags are held against the programs' own, all can be imported."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Workbench
from tests.models import write_reciter
from workbench.cli.failures import Code
from workbench.domain.export import FORMS, CannotExport, bench_flags, export, server_flags
from workbench.domain.importing import import_command
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split, Virtual
from workbench.store.documents import read_layout

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "layouts").glob("*.yaml"))
OURS = [path for path in EXAMPLES if read_layout(path).served_by is None]

LLAMA_SERVER = {
    "--model": r".+\.gguf", "--alias": r".+", "--n-gpu-layers": r"\d+", "--split-mode": "none|layer|row|tensor",
    "--tensor-split": r"[\d.]+(,[\d.]+)*", "--main-gpu": r"\d+", "--device": r"(CUDA|RPC)\d+(,(CUDA|RPC)\d+)*",
    "--rpc": r"[\w.-]+:\d+(,[\w.-]+:\d+)*", "--ctx-size": r"\d+", "--batch-size": r"\d+", "--ubatch-size": r"\d+",
    "--cache-type-k": r"\w+", "--cache-type-v": r"\w+", "--flash-attn": "on|off|auto", "--threads": r"\d+",
    "--host": r".+", "--port": r"\d+",
}  # fmt: skip
"""What llama.cpp's common/arg.cpp takes, read there for b7000 and later."""
LLAMA_BENCH = {
    "--model": r".+\.gguf", "--n-gpu-layers": r"\d+", "--split-mode": "none|layer|row|tensor",
    "--tensor-split": r"[\d.]+(/[\d.]+)*", "--main-gpu": r"\d+", "--device": r"(CUDA|RPC)\d+(/(CUDA|RPC)\d+)*",
    "--rpc": r"[\w.-]+:\d+(,[\w.-]+:\d+)*", "--batch-size": r"\d+", "--ubatch-size": r"\d+", "--cache-type-k": r"\w+",
    "--cache-type-v": r"\w+", "--flash-attn": "on|off|auto", "--threads": r"\d+", "--n-prompt": r"\d+",
    "--n-gen": r"\d+",
}  # fmt: skip
"""What llama.cpp's tools/llama-bench takes; a comma begins another test there."""

FULL = Layout(
    name="all of it",
    model="m.gguf",
    split=Split(split_mode="none", main_gpu=1, n_gpu_layers=20, cards=("CUDA1", "rpc://box:50052", "rpc://bax:50053")),
    context=Context(n_ctx=8192, n_batch=1024, n_ubatch=256, n_threads=8, type_k="q8_0", type_v="q8_0", flash_attn=True),
    env={"GGML_CUDA_P2P": "1", "CUDA_VISIBLE_DEVICES": None},
)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
@pytest.mark.parametrize("program", ["llama-server", "llama-bench"])
def test_every_flag_is_the_programs_own(path: Path, program: str) -> None:
    layout = read_layout(path)
    flags = server_flags(layout, "m.gguf") if program == "llama-server" else bench_flags(layout, "m.gguf")
    known = LLAMA_SERVER if program == "llama-server" else LLAMA_BENCH
    for name, value in flags:
        assert re.fullmatch(known[name], value), (name, value)
    names = [name for name, _ in flags]
    assert len(set(names)) == len(names)
    if "--rpc" in names:  # --device knows the cards that --rpc made known before it
        assert names.index("--rpc") < names.index("--device")


def test_what_cards_layers_and_environment_become() -> None:
    text = export(FULL, "llama-server", "/models/a b.gguf").text
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:5] == ["env", "-u", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "GGML_CUDA_P2P=1"]
    after = dict(zip(words[6::2], words[7::2], strict=True))
    assert after["--model"] == "/models/a b.gguf"
    assert (after["--rpc"], after["--device"]) == ("box:50052,bax:50053", "CUDA1,RPC0,RPC1")
    assert (after["--n-gpu-layers"], after["--main-gpu"], after["--threads"]) == ("20", "1", "8")
    assert "--tensor-split" not in after
    bench = export(FULL, "llama-bench", "m.gguf").text
    assert "--device CUDA1/RPC0/RPC1" in bench


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_what_is_exported_can_be_imported(path: Path) -> None:
    layout = read_layout(path)
    back = import_command(export(layout, "llama-server", layout.model).text).layout
    expected = layout.split
    if isinstance(expected.cards, Virtual):  # they are servers of their own by now
        assert back.split.cards == tuple(f"rpc://127.0.0.1:{50061 + at}" for at in range(len(expected.cards.virtual)))
    else:
        assert back.split.cards == expected.cards
    for name in ("split_mode", "tensor_split", "layers", "main_gpu", "n_gpu_layers"):
        assert getattr(back.split, name) == getattr(expected, name), name
    assert (back.name, back.context) == (layout.name, layout.context)
    assert back.env == layout.env


@pytest.mark.parametrize("name", ["demo-3-1", "demo-even", "demo-single", "demo-tensor", "demo-unequal"])
def test_the_script_runs(name: str, tmp_path: Path, workbench: Workbench) -> None:
    """On the bundled model and its own virtual cards; llama.cpp's own log tells what landed where."""
    path = ROOT / "layouts" / f"{name}.yaml"
    done = workbench("export", str(path), "--as", "llama-cpp-python")
    assert done.returncode == Code.DONE, done.stderr
    script = tmp_path / "chat.py"
    script.write_text(re.sub(r"max_tokens=\d+", "max_tokens=4", done.stdout))
    ran = subprocess.run([sys.executable, str(script), "Name a river."], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(ran.stdout.split()) > 1
    layout = read_layout(path)
    found = [float(mib) for mib in re.findall(r"RPC\S+ KV buffer size = +([\d.]+) MiB", ran.stderr)]
    a_layer = sum(found) / 30
    if layout.split.layers is not None:
        first, last = layout.split.layers
        assert sorted(found) == sorted([first * a_layer, (last - 1) * a_layer])  # the output has no KV
    elif layout.split.split_mode == "none":
        assert len(found) == 1
    assert subprocess.run(["pgrep", "-f", f"{script} --card"], capture_output=True).stdout == b""


def test_the_script_of_a_layout_on_the_cpu_runs(tmp_path: Path) -> None:
    model = write_reciter(tmp_path / "reciter.gguf", "By rote")
    layout = Layout(name='odd "name"', model=str(model), split=Split(cards=("CPU",)), context=Context(n_ctx=256))
    script = tmp_path / "chat.py"
    script.write_text(export(layout, "llama-cpp-python", str(model)).text)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "By rote", ran.stderr[-2000:]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_shell_and_yaml_are_sound(path: Path, form: str, workbench: Workbench) -> None:
    exported = export(read_layout(path), form, "/models/m.gguf", 8)  # type: ignore[arg-type]
    if form == "llama-cpp-python":
        compile(exported.text, "chat.py", "exec")
    elif form == "llama-swap":
        (model,) = yaml.safe_load(exported.text)["models"].values()
        words = shlex.split(model["cmd"])
        assert "${PORT}" in (words[2] if words[0] == "bash" else words)
        if words[0] == "bash":
            subprocess.run(["bash", "-n", "-c", words[2].replace("${PORT}", "1")], check=True)
    else:
        subprocess.run(["bash", "-n"], input=exported.text, text=True, check=True)


def test_for_ollama_the_environment_of_its_server_says_the_rest() -> None:
    layout = read_layout(ROOT / "layouts" / "two-cards-3-1.yaml")
    exported = export(layout, "ollama", "/models/m.gguf")
    assert "CUDA_VISIBLE_DEVICES=0,1 LLAMA_ARG_TENSOR_SPLIT=3,1" in exported.text.splitlines()[0]
    assert "main_gpu" not in exported.text  # it would pin to one card
    assert "num_gpu" not in exported.text  # all of them is what it does anyway
    assert "FROM /models/m.gguf\nPARAMETER num_ctx 8192\nPARAMETER num_batch 2048\nEOF" in exported.text
    pinned = export(FULL, "ollama", "/models/m.gguf")
    assert "PARAMETER main_gpu 1" in pinned.text
    assert "OLLAMA_KV_CACHE_TYPE=q8_0" in pinned.text
    assert any("reaches no RPC server" in note for note in pinned.notes)


def test_a_modelfile_is_what_ollama_create_reads(tmp_path: Path) -> None:
    """A stand-in that says what it was given."""
    fake = tmp_path / "ollama"
    fake.write_text('#!/bin/sh\necho "$@"\n[ "$1" = create ] && cat "$4"\nexit 0\n')
    fake.chmod(0o755)
    text = export(FULL, "ollama", "/models/m.gguf").text
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, env=env, check=True)
    assert done.stdout.splitlines()[:2] == ["create all-of-it -f /dev/stdin", "FROM /models/m.gguf"]
    assert done.stdout.splitlines()[-1] == "run all-of-it"


def test_what_llama_bench_does_not_know_is_refused() -> None:
    layout = Layout(name="wide", model="m.gguf", context=Context(type_k="f32"))
    assert "--cache-type-k f32" in export(layout, "llama-server", "m.gguf").text
    with pytest.raises(CannotExport, match="knows no KV cache of f32"):
        export(layout, "llama-bench", "m.gguf")


def test_what_cards_say_stays_out_of_what_llama_bench_prints() -> None:
    text = export(read_layout(ROOT / "layouts" / "demo-3-1.yaml"), "llama-bench", "m.gguf").text
    cards = [line for line in text.splitlines() if line.startswith("ggml-rpc-server")]
    assert len(cards) == 2
    assert all(line.endswith(">&2 &") for line in cards)


# ── on the command line ───────────────────────────────────────────────────────────────────
def test_notes_go_to_stderr(workbench: Workbench) -> None:
    done = workbench("export", "small", "--as", "llama-bench")
    assert done.returncode == Code.DONE
    assert done.stdout.endswith("--n-gen 128\n")
    assert "--tensor-split 20/11" in done.stdout
    assert "llama-bench has no n_ctx" in done.stderr


def test_a_model_that_is_elsewhere(workbench: Workbench, folder: Path) -> None:
    (folder / "layouts" / "far.yaml").write_text("name: far\nmodel: ~/no/such.gguf\n")
    done = workbench("export", "far", "--as", "llama-server", HOME="/home/me")
    assert done.returncode == Code.DONE
    assert "--model /home/me/no/such.gguf" in done.stdout
    assert "taken to be where it is to run" in done.stderr
    (folder / "layouts" / "glob.yaml").write_text("name: glob\nmodel: ~/no/*.gguf\n")
    assert workbench("export", "glob", "--as", "llama-server").returncode == Code.WRONG


def test_a_layout_of_a_server(workbench: Workbench, folder: Path) -> None:
    (folder / "layouts" / "o.yaml").write_text("name: o\nengine: ollama\nmodel: llama3\nsplit: {n_gpu_layers: 20}\n")
    done = workbench("export", "o", "--as", "ollama")
    assert "FROM llama3\nPARAMETER num_ctx 4096\nPARAMETER num_batch 2048\nPARAMETER num_gpu 20\n" in done.stdout
    refused = workbench("export", "o", "--as", "llama-server")
    assert refused.returncode == Code.WRONG
    assert "names no model file" in refused.stderr
    with pytest.raises(CannotExport):
        export(Layout(name="x", engine="openai", model="m", url="http://h"), "ollama", "m")


def test_usage(workbench: Workbench) -> None:
    assert workbench("export", "small").returncode == Code.WRONG
    done = workbench("export", "small", "--as", "vllm")
    assert done.returncode == Code.WRONG
    assert "llama-swap" in done.stderr
