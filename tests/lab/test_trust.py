"""What a layout or a run of a stranger's can make this machine do."""

import os
from pathlib import Path

import msgspec
import pytest

from tests.runs import made_run
from workbench.domain.export import FORMS, CannotExport, export
from workbench.domain.layout import EngineName, Layout
from workbench.domain.split import Split
from workbench.engines.engine import EngineError, LoadFailed
from workbench.engines.llama.process import worker_environment
from workbench.engines.server import image_base64
from workbench.lab.kit import RealKit
from workbench.lab.plan import plan_load
from workbench.lab.servers import server_models
from workbench.lab.trust import check_cards, check_key
from workbench.store.documents import DocumentError, read_prompt_set
from workbench.store.journal import LayoutServes, read
from workbench.store.models import ModelError, resolve_model
from workbench.store.places import read_config
from workbench.store.runs import RunError, RunLog, read_run

EVIL = {"LD_PRELOAD": "/tmp/x.so"}


def asking(url: str, engine: EngineName = "openai") -> Layout:
    return Layout(name="a", engine=engine, model="m", url=url, api_key_env="MY_KEY")


def config(home: Path, text: str) -> None:
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "config.yaml").write_text(text)


# ── keys ──────────────────────────────────────────────────────────────────────────────────
def test_a_key_goes_nowhere_unasked(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    layout = asking("http://127.0.0.1:9/v1")
    calls = (lambda: check_key(layout), lambda: server_models(layout),
             lambda: RealKit(spare=False).open_engine(layout, lambda error: None))  # fmt: skip
    for call in calls:
        with pytest.raises(LoadFailed) as caught:
            call()
        assert caught.value.key == "api_key_env"
        assert "`api_keys: {MY_KEY: [http://127.0.0.1:9]}`" in caught.value.reason
        assert str(own_home / "config" / "config.yaml") in caught.value.reason
        assert "secret" not in caught.value.reason


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("https://api.example.org/v1", True),
        ("https://API.example.org:443/other", True),
        ("http://api.example.org/v1", False),
        ("https://api.example.org:444/v1", False),
        ("https://api.example.org.evil.example/v1", False),
        ("https://evil.example/api.example.org", False),
    ],
)
def test_a_key_goes_where_it_may(own_home: Path, url: str, may: bool) -> None:
    config(own_home, "api_keys: {MY_KEY: [https://api.example.org], OTHER: ['https://evil.example']}\n")
    if may:
        check_key(asking(url))
    else:
        with pytest.raises(LoadFailed, match="before you allow it"):
            check_key(asking(url))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("api_keys: {A: [ftp://x]}\n", "api_keys.A[0]"),
        ("api_keys: {A: https://x}\n", "api_keys.A"),
        ("api_keys: [A]\n", "api_keys"),
        ("rpc_servers: [host]\n", "rpc_servers[0]"),
    ],
)
def test_what_the_configuration_says_is_checked(own_home: Path, text: str, key: str) -> None:
    config(own_home, text)
    with pytest.raises(DocumentError) as caught:
        read_config()
    assert (caught.value.key, caught.value.line) == (key, 1)


# ── cards ─────────────────────────────────────────────────────────────────────────────────
def test_distant_cards_need_a_word(own_home: Path) -> None:
    def layout(*cards: str) -> Layout:
        return Layout(name="a", model="m.gguf", split=Split(cards=cards))

    check_cards(layout("CUDA0", "rpc://127.0.0.1:50052", "rpc://[::1]:1", "rpc://localhost:2"))
    for distant in ("rpc://10.0.0.2:50052", "rpc://localhost.evil.example:1", "rpc://0.0.0.0:1"):
        with pytest.raises(LoadFailed, match="is not this machine") as caught:
            check_cards(layout("CUDA0", distant))
        assert caught.value.key == "split.cards[1]"
    config(own_home, "rpc_servers: ['GPU-2:50052']\n")
    check_cards(layout("rpc://gpu-2:50052"))
    with pytest.raises(LoadFailed):
        check_cards(layout("rpc://gpu-2:50053"))


# ── programs ──────────────────────────────────────────────────────────────────────────────
def test_no_worker_gets_a_variable_that_no_layout_may_set() -> None:
    def never() -> tuple[()]:
        raise AssertionError("the cards are asked for, by a worker with that variable")

    with pytest.raises(LoadFailed, match="LD_PRELOAD"):
        plan_load(Layout(name="a", model="m.gguf", env=dict(EVIL)), "m.gguf", never)
    with pytest.raises(LoadFailed, match="LD_PRELOAD"):
        worker_environment(EVIL, virtual=False)


def test_a_run_of_a_strangers_is_held_against_the_rules(tmp_path: Path) -> None:
    run = made_run(lambda planned: 60.0, blocks=1)
    arm = run.header.arms[0]
    evil = msgspec.structs.replace(arm, layout=msgspec.structs.replace(arm.layout, env=dict(EVIL)))
    for header, says in (
        (msgspec.structs.replace(run.header, arms=(evil, *run.header.arms[1:])), "LD_PRELOAD"),
        (msgspec.structs.replace(run.header, id="../../.bashrc"), "no name of a run"),
    ):
        (tmp_path / "run.json").write_bytes(msgspec.json.encode(header))
        for call in (read_run, RunLog.reopen):
            with pytest.raises(RunError, match=says):
                call(tmp_path)


def test_a_run_of_a_strangers_leads_to_no_other_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine\n")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_bytes(msgspec.json.encode(made_run(lambda planned: 60.0, blocks=1).header))
    (folder / "samples.jsonl").symlink_to(mine)
    with pytest.raises(RunError, match=r"samples\.jsonl cannot be written"):
        RunLog.reopen(folder)
    assert mine.read_text() == "mine\n"
    (folder / "samples.jsonl").unlink()
    os.mkfifo(folder / "samples.jsonl")
    with pytest.raises(RunError, match="no plain file"):
        read_run(folder)


def test_a_journal_brings_no_layout_that_breaks_a_rule(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    record = LayoutServes(Layout(name="a", model="m.gguf", env=dict(EVIL)))
    path.write_bytes(b'{"type":"journal","version":1,"started":1.0}\n' + msgspec.json.encode(record) + b"\n")
    state = read(path)
    assert state.layout is None
    assert state.problems == ("a.jsonl:2: a layout that breaks a rule, left out",)


# ── files ─────────────────────────────────────────────────────────────────────────────────
def test_only_models_and_images_are_read(tmp_path: Path) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("BEGIN PRIVATE KEY\n")
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path in (secret, pipe):
        with pytest.raises(ModelError) as caught:
            resolve_model(str(path))
        assert "PRIVATE" not in str(caught.value)
        with pytest.raises(EngineError) as failed:
            image_base64(str(path))
        assert "PRIVATE" not in str(failed.value)


@pytest.mark.parametrize("image", ["/home/me/me.png", "~/me.png", "../me.png", "a/../../me.png"])
def test_a_prompt_set_sends_no_images_of_other_folders(tmp_path: Path, image: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: a\nprompts:\n  - id: x\n    messages: [{role: user, content: see, images: [chart.png, "
                    f"'{image}']}}]\n")  # fmt: skip
    with pytest.raises(DocumentError) as caught:
        read_prompt_set(path)
    assert (caught.value.key, caught.value.line) == ("prompts[0].messages[0].images[1]", 4)


def test_a_files_name_cannot_end_a_command_early() -> None:
    layout = Layout(name="a", model="*.gguf")
    for form in FORMS:
        with pytest.raises(CannotExport, match="rename the file"):
            export(layout, form, "/models/x\nEOF\nrm -rf ~\n.gguf")
