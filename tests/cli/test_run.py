"""`workbench run` and the headless demonstration on the real engine."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.conftest import LAYOUT, Workbench
from tests.waiting import wait_until
from workbench.cli.failures import Code
from workbench.cli.run import finish
from workbench.domain.conversation import Turn
from workbench.lab.demo import DEMO_LAYOUT
from workbench.store.documents import read_layout

ROOT = Path(__file__).parents[2]


def test_one_json_object_with_text_figures_and_cards(workbench: Workbench) -> None:
    done = workbench("run", "small", "-p", "Name a river.", "--max-tokens", "12", "--temperature", "0", "--json")
    assert done.returncode == Code.DONE, done.stderr
    value = json.loads(done.stdout)
    assert list(value) == [
        "text", "prompt_tokens", "tokens", "ttft_s", "prefill_tok_s", "decode_tok_s", "stop_reason", "split",
        "timed_by", "cards",
    ]  # fmt: skip
    assert value["timed_by"] == "worker"
    assert value["tokens"] == 12
    assert value["stop_reason"] == "max_tokens"
    assert value["split"] == "layer 20:11"
    assert value["prompt_tokens"] > 3
    assert min(value["ttft_s"], value["prefill_tok_s"], value["decode_tok_s"]) > 0
    assert [list(card) for card in value["cards"]] == [["name", "weights_mib", "kv_mib", "compute_mib", "layers"]] * 2
    assert [card["layers"] for card in value["cards"]] == [20, 11]
    assert value["cards"][0]["kv_mib"] > value["cards"][1]["kv_mib"] > 0


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        ("demo-even", [16, 15]),
        ("demo-3-1", [23, 8]),
        ("demo-unequal", [25, 6]),
        ("demo-single", [31, 0]),
        ("demo-tensor", [None, None]),
    ],
)
def test_the_examples_land_where_they_say(workbench: Workbench, layout: str, layers: list[int | None]) -> None:
    path = str(ROOT / "layouts" / f"{layout}.yaml")
    done = workbench("run", path, "-p", "Name a river.", "--max-tokens", "2", "--json")
    assert done.returncode == Code.DONE, done.stderr
    cards = json.loads(done.stdout)["cards"]
    assert [card["layers"] for card in cards] == layers
    block_mib = (cards[0]["kv_mib"] + cards[1]["kv_mib"]) / 30
    if layout == "demo-tensor":
        assert cards[0]["weights_mib"] == pytest.approx(cards[1]["weights_mib"], rel=0.05)
        assert min(card["weights_mib"] for card in cards) > 46
    else:
        on_second = max(0, (layers[1] or 0) - 1)
        assert cards[1]["kv_mib"] == pytest.approx(on_second * block_mib, abs=0.5)
        assert sum(card["weights_mib"] for card in cards) == pytest.approx(92.1, abs=1)


def test_text_on_stdout_figures_on_stderr_prompt_from_stdin(workbench: Workbench) -> None:
    args = ("--max-tokens", "8", "--temperature", "0")
    done = workbench("run", "layouts/small.yaml", "-", *args, stdin="Name a river.")
    assert done.returncode == Code.DONE, done.stderr
    as_json = workbench("run", "small", "-p", "Name a river.", *args, "--json")
    assert done.stdout == json.loads(as_json.stdout)["text"] + "\n"
    assert "tok/s" in done.stderr
    assert "RPC1  11 layers" in done.stderr


def test_a_model_that_is_not_there_names_the_line(workbench: Workbench, folder: Path) -> None:
    (folder / "bad.yaml").write_text(LAYOUT.replace("demo:smollm2", "nothing.gguf"))
    done = workbench("run", "bad.yaml", "-p", "a")
    assert done.returncode == Code.WRONG
    assert "bad.yaml:2: model: " in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_a_card_that_is_not_there_names_the_line(workbench: Workbench, folder: Path) -> None:
    (folder / "bad.yaml").write_text(LAYOUT.replace("{virtual: [600MiB, 600MiB]}", "[CUDA7, CUDA8]"))
    done = workbench("run", "bad.yaml", "-p", "a")
    assert done.returncode == Code.WRONG
    assert "bad.yaml:5: split.cards[0]: " in done.stderr
    assert "CUDA7" in done.stderr


def test_cards_that_are_too_small_name_card_and_size(workbench: Workbench, folder: Path) -> None:
    (folder / "bad.yaml").write_text(LAYOUT.replace("600MiB, 600MiB", "600MiB, 40MiB"))
    done = workbench("run", "bad.yaml", "-p", "a")
    assert done.returncode == Code.FAILED, done.stderr
    assert "RPC1" in done.stderr
    assert "MiB wanted" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def children_of(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def test_ctrl_c_keeps_the_partial_text_and_leaves_no_process(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", "small", "-p", "Tell a very long story.", "--json"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    log = Path(os.environ["WORKBENCH_HOME"])
    wait_until(lambda: len(children_of(process.pid)) >= 3, 60)
    started = children_of(process.pid)
    wait_until(lambda: any(log.rglob("engine.log")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == Code.CANCELLED, err
    assert "Traceback" not in err
    if out:
        assert json.loads(out)["stop_reason"] == "cancelled"
    wait_until(lambda: not any(child.is_running() for child in started))


def test_ctrl_c_in_mid_reply(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", "small", "-p", "Tell a very long story.", "--temperature", "0"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.read(8)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == Code.CANCELLED, err
    assert first.strip()
    assert rest.endswith("\n")
    assert "cancelled" in err
    assert "tok/s" in err


class Interrupted(Future[Any]):
    """Ctrl-C comes while it is waited for the first time."""

    told = False

    def result(self, timeout: float | None = None) -> Any:
        if not self.told:
            self.told = True
            raise KeyboardInterrupt
        return super().result(timeout)


@pytest.mark.parametrize("where", ["load", "turn"])
def test_ctrl_c_once_it_is_loaded_keeps_the_reply_begun_or_not(where: str) -> None:
    """Also where the wait for the load has not ended yet although the reply goes on already."""
    turn = Turn(prompt="p", reply="", stop_reason="cancelled")
    cancels: list[int] = []
    loading, turning = (Interrupted() if where == name else Future[Any]() for name in ("load", "turn"))
    loading.set_result("loaded")

    def cancel() -> None:
        cancels.append(1)
        if len(cancels) == 3:  # the first ones found nothing to cancel
            turning.set_result(turn)

    assert finish(loading, turning, cancel)[1] is turn


def test_ctrl_c_in_a_load_ends_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        finish(Interrupted(), Future(), lambda: None)


def test_a_reader_that_goes_away_ends_the_run(folder: Path) -> None:
    command = f"{sys.executable} -m workbench run small -p 'Tell a very long story.' | head -c 5"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=100)
    assert len(done.stdout) == 5
    assert done.stderr == ""


def test_the_demonstration_without_a_terminal(workbench: Workbench) -> None:
    done = workbench("demo")
    assert done.returncode == Code.DONE, done.stderr
    lines = done.stdout.rstrip().splitlines()
    head, before, after, verdict = (line.split() for line in lines[-4:])
    assert head == ["split", "tok/s", "RPC0", "MiB", "RPC1", "MiB"]
    assert before[:2] == ["layer", "1:1"]
    assert after[:2] == ["layer", "3:1"]
    assert float(before[2]) > 0
    assert float(after[2]) > 0
    assert float(after[3]) > float(before[3])
    assert float(after[4]) < float(before[4])
    assert verdict == ["one", "load", "each:", "no", "verdict"]
    assert done.stdout.count("›") == 2


@pytest.mark.skipif(not (ROOT / "layouts" / "demo-even.yaml").exists(), reason="an installed package has no examples")
def test_the_bundled_layout_is_the_example() -> None:
    assert read_layout(ROOT / "layouts" / "demo-even.yaml") == DEMO_LAYOUT
