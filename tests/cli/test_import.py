"""llama-server command lines as layouts."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Workbench
from workbench.cli.failures import Code
from workbench.domain.importing import CannotImport, import_command
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split
from workbench.store.documents import read_layout

LONG = """\
#!/bin/bash
# the big one
export LANG=C
CUDA_VISIBLE_DEVICES=0,1 /opt/llama.cpp/llama-server \\
  -m '/models/a b.gguf' -ngl 81 -sm layer -ts 61,20 --device CUDA0,CUDA1 \\
  -c 8192 -b 1024 -ub 256 -t 12 -ctk q8_0 -ctv q8_0 -fa on \\
  --alias big --host 0.0.0.0 --jinja -np 4 --temp 0.7 &
"""


def test_a_whole_script() -> None:
    imported = import_command(LONG)
    assert imported.layout == Layout(
        name="big",
        model="/models/a b.gguf",
        split=Split(layers=(61, 20), cards=("CUDA0", "CUDA1")),
        context=Context(n_ctx=8192, n_batch=1024, n_ubatch=256, n_threads=12, type_k="q8_0", type_v="q8_0",
                        flash_attn=True),
        env={"CUDA_VISIBLE_DEVICES": "0,1"},
    )  # fmt: skip
    assert imported.left_out == ("--host 0.0.0.0", "--jinja", "-np 4", "--temp 0.7")


@pytest.mark.parametrize(
    ("command", "split"),
    [
        ("-ts 3,1", Split(tensor_split=(3.0, 1.0))),
        ("-ts 3/1 -ngl 999", Split(tensor_split=(3.0, 1.0))),
        ("--tensor-split=3,1", Split(tensor_split=(3.0, 1.0))),
        ("-ngl 20", Split(n_gpu_layers=20)),
        ("-ngl all", Split()),
        ("-ngl -1", Split()),
        ("-ngl 0", Split(n_gpu_layers=0)),
        ("-sm none -mg 1", Split(split_mode="none", main_gpu=1)),
        ("-sm tensor -ts 1,1", Split(split_mode="tensor", tensor_split=(1.0, 1.0))),
        ("--device none", Split(cards=("CPU",))),
        ("--rpc a:1,b:2 -dev CUDA0,RPC1", Split(cards=("CUDA0", "rpc://b:2"))),
    ],
)
def test_splits(command: str, split: Split) -> None:
    layout = import_command(f"llama-server -m m.gguf {command}").layout
    assert (layout.name, layout.split, layout.context) == ("m", split, Context(n_ctx=0))


def test_what_the_environment_says_counts_where_no_option_does() -> None:
    imported = import_command("env -u NCCL_DEBUG LLAMA_ARG_CTX_SIZE=4096 LLAMA_ARG_SPLIT_MODE=row HF_TOKEN=x "
                              "GGML_CUDA_P2P=1 llama-server -m m.gguf -sm layer")
    assert imported.layout.context.n_ctx == 4096
    assert imported.layout.split.split_mode == "layer"
    assert imported.layout.env == {"NCCL_DEBUG": None, "GGML_CUDA_P2P": "1"}
    assert imported.left_out == ("the variable HF_TOKEN",)


def test_flash_attention_as_older_versions_took_it() -> None:
    assert import_command("llama-server -fa -m m.gguf").layout.context.flash_attn is True
    assert import_command("llama-server -m m.gguf -fa 0").layout.context.flash_attn is False


def test_what_cannot_be_told_is_said() -> None:
    imported = import_command("llama-server -m m.gguf --rpc a:1")
    assert imported.layout.split.cards == ("rpc://a:1",)
    assert "this machine's own cards" in imported.left_out[0]


@pytest.mark.parametrize("flag", ["--api-key sk-secret", "--api-key=sk-secret", "-hft sk-secret", "--hf-token sk-se"])
def test_a_key_is_not_repeated(flag: str) -> None:
    (left_out,) = import_command(f"llama-server -m m.gguf {flag}").left_out
    assert left_out == f"{re.split('[ =]', flag)[0]} …"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "there is no command line"),
        ("vllm serve llama", "`vllm` is not llama-server"),
        ("llama-server -ngl 3", "no model file is named; add -m PATH"),
        ("llama-server -m m.gguf -ts three,1", "-ts three,1: are no proportions"),
        ("llama-server -m m.gguf -c big", "-c big: is no whole number"),
        ("llama-server -m m.gguf -sm layers", "-sm layers: is none of none, layer, tensor, row, did you mean `layer`?"),
        ("llama-server -m m.gguf -ctk q9", "-ctk q9: is none of"),
        ("llama-server -m m.gguf -fa maybe", "none of on, off, auto"),
        ("llama-server -m m.gguf -ts", "-ts has no value"),
        ("llama-server -m m.gguf -ts 0,0", "--tensor-split: gives nothing to any card"),
        ("llama-server -m 'm.gguf", "is a quote open?"),
    ],
)
def test_what_is_no_command_line(command: str, says: str) -> None:
    with pytest.raises(CannotImport) as caught:
        import_command(command)
    assert says in str(caught.value)


# ── on the command line ───────────────────────────────────────────────────────────────────
def test_as_words_in_quotes_and_on_stdin(workbench: Workbench, folder: Path) -> None:
    words = ("llama-server", "-m", "m.gguf", "-ts", "3,1", "--jinja")
    done = workbench("import", *words)
    assert done.returncode == Code.DONE, done.stderr
    assert "left out, since no layout has it: --jinja" in done.stderr
    assert workbench("import", " ".join(words)).stdout == done.stdout
    assert workbench("import", "-", stdin=" ".join(words)).stdout == done.stdout
    (folder / "layouts" / "m.yaml").write_text(done.stdout)
    assert read_layout(folder / "layouts" / "m.yaml").split.tensor_split == (3.0, 1.0)


def test_it_is_saved_under_a_name(workbench: Workbench, folder: Path) -> None:
    done = workbench("import", "--name", "mine", "--out", "layouts/mine.yaml", "llama-server", "-m", "m.gguf")
    assert done.returncode == Code.DONE, done.stderr
    assert read_layout(folder / "layouts" / "mine.yaml").name == "mine"
    again = workbench("import", "--out", "layouts/mine.yaml", "llama-server", "-m", "other.gguf")
    assert again.returncode == Code.WRONG
    assert "exists already" in again.stderr


def test_a_failure(workbench: Workbench) -> None:
    done = workbench("import", "ollama", "serve")
    assert (done.returncode, done.stdout) == (Code.WRONG, "")
    assert "`ollama` is not llama-server" in done.stderr
