"""Commands over layouts of servers."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Workbench
from tests.servers.running import Contract
from tests.waiting import wait_until
from workbench.cli.failures import Code

PROMPTS = "name: two\ndefaults: {max_tokens: 6}\nprompts: [{id: rivers, text: Write on rivers.}]\n"


@pytest.fixture
def served(folder: Path, ollama: Contract, openai: Contract) -> Path:
    """The layouts `there` on Ollama, `compatible` on the other, and `gone` on nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nobody = listening.getsockname()[1]
    for name, engine, url in (("there", "ollama", ollama.url), ("compatible", "openai", openai.url),
                              ("gone", "ollama", f"http://127.0.0.1:{nobody}")):  # fmt: skip
        (folder / "layouts" / f"{name}.yaml").write_text(f"name: {name}\nengine: {engine}\nurl: {url}\nmodel: tiny\n")
    (folder / "prompts").mkdir()
    (folder / "prompts" / "two.yaml").write_text(PROMPTS)
    return folder


def test_a_prompt(workbench: Workbench, served: Path, ollama: Contract) -> None:
    done = workbench("run", "there", "-p", "Name a river.")
    assert done.returncode == Code.DONE, done.stderr
    assert done.stdout.startswith("Rivers run to the sea.")
    assert "ollama · 100.0 tok/s" in done.stderr
    assert "timed by the server itself" in done.stderr
    assert "Ollama 0.33.0 at http://127.0.0.1:" in done.stderr
    assert "120 of 120 MiB on cards" in done.stderr
    assert ollama.state["loaded"] == {}


def test_a_prompt_as_json(workbench: Workbench, served: Path) -> None:
    value = json.loads(workbench("run", "compatible", "-p", "Name a river.", "--max-tokens", "6", "--json").stdout)
    assert (value["split"], value["timed_by"], value["tokens"], value["cards"]) == ("openai", "server", 6, [])
    assert value["decode_tok_s"] == pytest.approx(100)
    assert value["server"]["name"] == "llama-server b7000-abc"
    assert value["server"]["total_mib"] is None


def test_an_image(workbench: Workbench, served: Path, ollama: Contract) -> None:
    (served / "river.png").write_bytes(b"\x89PNG\r\n")
    done = workbench("run", "there", "-p", "What is this?", "--image", "river.png")
    assert done.returncode == Code.DONE, done.stderr
    assert any("images" in message for body in ollama.asked("/api/chat") for message in body["messages"])
    missing = workbench("run", "there", "-p", "What is this?", "--image", "none.png")
    assert missing.returncode == Code.FAILED
    assert "the image none.png cannot be read" in missing.stderr
    ours = workbench("run", "small", "-p", "What is this?", "--image", "river.png")
    assert ours.returncode == Code.FAILED
    assert "reads no images" in ours.stderr


@pytest.mark.parametrize("trouble", ["drops", "error line", "no end"])
def test_a_reply_that_breaks_off(workbench: Workbench, served: Path, ollama: Contract, trouble: str) -> None:
    ollama.behave(trouble=trouble)
    done = workbench("run", "there", "-p", "Name a river.")
    assert done.returncode == Code.FAILED
    assert done.stdout.startswith("Rivers run")
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if "http://" in line or "Ollama " in line]) <= 3


def test_a_server_that_is_down(workbench: Workbench, served: Path) -> None:
    done = workbench("run", "gone", "-p", "Name a river.")
    assert (done.returncode, done.stdout) == (Code.FAILED, "")
    assert "connection refused); is the server running?" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_model_that_is_not_there(workbench: Workbench, served: Path) -> None:
    path = served / "layouts" / "there.yaml"
    path.write_text(path.read_text().replace("tiny", "tony"))
    done = workbench("run", "there", "-p", "Name a river.")
    assert done.returncode == Code.WRONG
    assert "layouts/there.yaml:4: model: Ollama has no model tony; it has: tiny:latest, other:7b" in done.stderr


def test_its_models(workbench: Workbench, served: Path) -> None:
    assert [line.split()[0] for line in workbench("models", "there").stdout.splitlines()] == [
        "model", "tiny:latest", "other:7b"
    ]  # fmt: skip
    rows = json.loads(workbench("models", "compatible", "--json").stdout)
    assert [(row["name"], row["n_ctx_train"], row["digest"]) for row in rows] == [("tiny", 8192, None)]
    assert "no layout of a server" in workbench("models", "small").stderr


def test_there_is_no_forecast(workbench: Workbench, served: Path) -> None:
    done = workbench("forecast", "there")
    assert done.returncode == Code.WRONG
    assert "there.yaml:2: engine: is ollama: what a server holds no forecast knows" in done.stderr


def test_an_ab_and_what_it_says_of_servers(workbench: Workbench, served: Path) -> None:
    done = workbench("ab", "there", "compatible", "--prompts", "two", "--blocks", "1", "--json")
    assert done.returncode == Code.DONE, done.stderr
    value = json.loads(done.stdout)
    assert (value["taken"], value["planned"]) == (4, 4)
    assert any("keeps its model in memory" in caution for caution in value["cautions"])
    report = workbench("runs", "export", "last")
    assert report.returncode == Code.DONE, report.stderr
    assert "Ollama 0.33.0" in report.stdout
    assert workbench("runs", "export", "last", "--as", "llama-bench").returncode == Code.DONE
    assert workbench("runs", "export", "last", "--as", "csv").returncode == Code.DONE


def test_the_key_is_in_nothing_that_is_written(
    workbench: Workbench, served: Path, openai: Contract, own_home: Path
) -> None:
    secret = "sk-very-secret-0123456789"
    openai.behave(key=secret)
    path = served / "layouts" / "compatible.yaml"
    path.write_text(path.read_text() + "api_key_env: MY_KEY\n")
    refused = workbench("models", "compatible", MY_KEY=secret)
    assert refused.returncode == Code.FAILED
    assert f"`api_keys: {{MY_KEY: [{openai.url.removesuffix('/v1')}]}}`" in refused.stderr
    (own_home / "config").mkdir()
    (own_home / "config" / "config.yaml").write_text(f"api_keys: {{MY_KEY: [{openai.url}]}}\n")
    done = workbench("replay", "compatible", "--prompts", "two", "--loads", "1", MY_KEY=secret)
    assert done.returncode == Code.DONE, done.stderr
    openai.behave(key="another")
    failed = workbench("replay", "compatible", "--prompts", "two", "--loads", "1", MY_KEY=secret)
    assert failed.returncode == Code.FAILED
    assert secret not in f"{done.stdout}{done.stderr}{failed.stdout}{failed.stderr}"
    written = [file for root in (own_home, served) for file in root.rglob("*") if file.is_file()]
    assert any(file.name == "run.json" for file in written)
    assert not [file for file in written if secret.encode() in file.read_bytes()]


def test_ctrl_c_keeps_what_was_said(served: Path, ollama: Contract) -> None:
    ollama.behave(each_s=0.2, reply=["word "] * 200)
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", "there", "-p", "Talk."], cwd=served, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=dict(os.environ), text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(5) == "word "
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, figures = process.communicate(timeout=20)
    assert "cancelled" in figures
    assert process.returncode == Code.CANCELLED
    assert time.monotonic() - asked < 5
    wait_until(lambda: ollama.state["loaded"] == {})
