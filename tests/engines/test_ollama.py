"""Ollama's contract, and its traps; against a real server too where WORKBENCH_TEST_OLLAMA names one."""

import base64
import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.engines.serving import asks, layout, opened, unheard
from tests.servers.running import Contract
from tests.waiting import wait_until
from workbench.domain.conversation import Message
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split
from workbench.engines.engine import EngineError, PromptTooLong, Request, StateRefused
from workbench.engines.http import Http
from workbench.engines.ollama import OllamaEngine, list_models, same_name

REAL = os.environ.get("WORKBENCH_TEST_OLLAMA")
GREEDY: dict[str, Any] = {"temperature": 0.0, "seed": 1}


# ── what holds of the contract's server and of a real one ──────────────────────────────────
@pytest.fixture(params=["contract", "real"])
def served(request: pytest.FixtureRequest) -> Layout:
    """A layout on each; the real one's smallest model, or the one that WORKBENCH_TEST_OLLAMA_MODEL names."""
    if request.param == "contract":
        return layout("ollama", request.getfixturevalue("ollama").url)
    if not REAL:
        pytest.skip("WORKBENCH_TEST_OLLAMA names no server")
    model = os.environ.get("WORKBENCH_TEST_OLLAMA_MODEL")
    found = layout("ollama", REAL.rstrip("/"))
    if model is None:
        models = sorted(list_models(Http(REAL.rstrip("/"), found.timeouts)), key=lambda each: each.size_mib)
        model = models[0].path
    return msgspec.structs.replace(found, model=model)


@pytest.fixture
def it(served: Layout) -> Iterator[OllamaEngine]:
    """An engine that has loaded."""
    engine = OllamaEngine.open(served)
    engine.load(unheard)
    yield engine
    engine.close()


def in_memory(of: Layout) -> list[dict[str, Any]]:
    """What the server lists as loaded, of this layout's model."""
    assert of.served_by is not None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{of.served_by}/api/ps", timeout=10) as answer:
        rows = json.load(answer)["models"]
    return [row for row in rows if same_name(row["model"], of.model)]


def test_it_is_loaded_and_unloaded_when_that_is_said(served: Layout) -> None:
    engine = OllamaEngine.open(served)
    assert in_memory(served) == []
    loaded = engine.load(unheard)
    assert len(in_memory(served)) == 1
    assert loaded.served is not None
    assert loaded.served.name.startswith("Ollama ")
    assert loaded.served.total_mib
    assert loaded.n_ctx == served.context.n_ctx
    assert loaded.cards == ()
    assert loaded.model.n_layer > 0
    engine.close()
    assert in_memory(served) == []


def test_a_reply_streams(it: OllamaEngine) -> None:
    heard: list[str] = []
    reply = it.chat(asks("Name three rivers.", max_tokens=8, **GREEDY), heard.append)
    assert reply.text == "".join(heard)
    assert len(heard) > 1
    assert reply.stop_reason == "max_tokens"
    assert (reply.timing.source, reply.timing.tokens) == ("server", 8)
    assert reply.timing.decode_tok_s
    assert 0 < reply.timing.ttft_s < 60
    assert reply.caveat == ""


def test_the_prefill_rate_is_told_of_unique_prompts_only(it: OllamaEngine) -> None:
    """The count is of all tokens, the time of those that no cache held."""
    plain = it.chat(asks("Name a river.", max_tokens=4, **GREEDY), unheard).timing
    assert (plain.prompt_tokens > 0, plain.prefill_tok_s) == (True, None)
    timing = it.chat(asks("No. 4711 Name a river.", salt=4711, max_tokens=4, **GREEDY), unheard).timing
    assert timing.prefill_tok_s is not None


def test_the_probe(it: OllamaEngine) -> None:
    probe = it.probe()
    assert probe is not None
    assert probe.decode_tok_s > 0
    assert probe.prefill_tok_s
    assert 0 < probe.tokens <= 48  # a real model may end it
    assert 40 < probe.depth < 200


def test_a_reply_is_cancelled(it: OllamaEngine) -> None:
    heard = threading.Event()
    replies = []
    request = asks("Write a long story about rivers.", max_tokens=4000, **GREEDY)
    thread = threading.Thread(target=lambda: replies.append(it.chat(request, lambda _: heard.set())))
    thread.start()
    assert heard.wait(60)
    it.cancel()
    thread.join(1.0)
    assert not thread.is_alive()
    assert replies[0].stop_reason in ("cancelled", "max_tokens")
    assert it.chat(asks("Name a river.", max_tokens=2, **GREEDY), unheard).text


def test_a_state_is_refused(it: OllamaEngine, tmp_path: Path) -> None:
    with pytest.raises(StateRefused, match="to itself"):
        it.save_state(tmp_path / "state")


def test_a_prompt_that_is_too_long(served: Layout) -> None:
    engine = OllamaEngine.open(msgspec.structs.replace(served, context=Context(n_ctx=256)))
    engine.load(unheard)
    with pytest.raises(PromptTooLong) as caught:
        engine.chat(asks("river " * 2000, max_tokens=4), unheard)
    assert caught.value.n_ctx == 256
    engine.close()


def test_another_context(it: OllamaEngine, served: Layout) -> None:
    assert it.new_context(Context(n_ctx=2048)).n_ctx == 2048
    assert in_memory(served)[0]["context_length"] == 2048


# ── the contract's own, and its traps ─────────────────────────────────────────────────────
def test_num_ctx_and_num_batch_go_with_every_request_so_nothing_loads_anew(ollama: Contract) -> None:
    engine = opened("ollama", ollama, context=Context(n_ctx=1024, n_batch=256))
    engine.load(unheard)
    pid = ollama.state["loaded"]["tiny:latest"]["pid"]
    engine.chat(asks("Name a river."), unheard)
    engine.probe()
    sent = [body["options"] for body in ollama.asked("/api/chat")]
    assert {(options["num_ctx"], options["num_batch"]) for options in sent} == {(1024, 256)}
    assert ollama.state["loaded"]["tiny:latest"]["pid"] == pid
    engine.close()


@pytest.mark.parametrize(
    ("split", "options"),
    [
        (Split(), {}),
        (Split(n_gpu_layers=20), {"num_gpu": 20}),
        (Split(n_gpu_layers=0), {"num_gpu": 0}),
        (Split(split_mode="none"), {"main_gpu": 0}),
        (Split(split_mode="none", main_gpu=1, n_gpu_layers=31), {"main_gpu": 1, "num_gpu": 31}),
    ],
)
def test_main_gpu_pins_even_as_0_so_it_is_sent_in_mode_none_only(
    ollama: Contract, split: Split, options: dict[str, int]
) -> None:
    engine = opened("ollama", ollama, split=split)
    engine.load(unheard)
    sent = ollama.asked("/api/chat")[0]["options"]
    assert {name: sent[name] for name in ("num_gpu", "main_gpu") if name in sent} == options
    engine.close()


def test_no_option_is_sent_that_it_would_ignore(ollama: Contract) -> None:
    engine = opened("ollama", ollama, options={"repeat_penalty": 1.1, "use_mmap": False, "stop": ("END",)})
    engine.load(unheard)
    engine.chat(asks("Name a river.", seed=3, max_tokens=5, ignore_eos=True), unheard)
    assert ollama.state["log"] == []
    sent = ollama.asked("/api/chat")[-1]["options"]
    assert (sent["repeat_penalty"], sent["use_mmap"], sent["stop"]) == (1.1, False, ["END"])
    assert (sent["seed"], sent["num_predict"]) == (3, 5)
    engine.close()


def test_counters_that_are_left_out_are_zero(ollama: Contract) -> None:
    """The same prompt again: nothing is evaluated, so the duration is left out."""
    engine = opened("ollama", ollama)
    engine.load(unheard)
    request = asks("No. 7 Name a river.", salt=7)
    first = engine.chat(request, unheard).timing
    again = engine.chat(request, unheard).timing
    assert first.prefill_tok_s == pytest.approx(500)
    assert again.prompt_tokens == first.prompt_tokens
    assert again.prefill_tok_s is None
    assert again.decode_tok_s == pytest.approx(100)
    engine.close()


def test_a_load_that_came_between_spoils_the_figures(ollama: Contract) -> None:
    engine = opened("ollama", ollama, keep_alive="10m")
    engine.load(unheard)
    other = opened("ollama", ollama, context=Context(n_ctx=512))
    other.load(unheard)  # another client wants another context
    ollama.behave(load_s=0.6)
    reply = engine.chat(asks("Name a river."), unheard)
    assert "loaded the model again first, for 0.6 s" in reply.caveat
    assert ollama.asked("/api/chat")[0]["keep_alive"] == "10m"
    engine.close()


def test_an_unload_is_waited_for_to_the_end_of_its_process(ollama: Contract) -> None:
    engine = opened("ollama", ollama)
    loaded = engine.load(unheard)
    pid = ollama.state["loaded"]["tiny:latest"]["pid"]
    assert loaded.served is not None
    assert pid in loaded.served.pids
    ollama.behave(unload_s=0.4)
    engine.close()
    assert not psutil.pid_exists(pid)
    assert ollama.asked("/api/chat")[-1] == {"model": "tiny", "messages": [], "keep_alive": 0, "stream": False}


def test_what_else_it_holds_and_what_is_not_on_cards_is_said(ollama: Contract) -> None:
    other = opened("ollama", ollama, model="other:7b")
    other.load(unheard)
    engine = opened("ollama", ollama, split=Split(n_gpu_layers=11))
    loaded = engine.load(unheard)
    assert any("Ollama holds other:7b too" in warning for warning in loaded.warnings)
    assert loaded.served is not None
    assert loaded.served.total_mib == pytest.approx(120)
    assert loaded.served.on_cards_mib == pytest.approx(120 * 11 / 31, abs=0.01)
    assert loaded.host.weights_mib == pytest.approx(120 * 20 / 31, abs=0.01)
    other.close()
    engine.close()


def test_a_context_that_the_server_chooses_is_kept_to(ollama: Contract) -> None:
    engine = opened("ollama", ollama, context=Context(n_ctx=0))
    assert engine.load(unheard).n_ctx == 4096
    engine.chat(asks("Name a river."), unheard)
    assert "num_ctx" not in ollama.asked("/api/chat")[0]["options"]
    assert ollama.asked("/api/chat")[1]["options"]["num_ctx"] == 4096
    engine.close()


def test_a_reply_that_fills_the_context(ollama: Contract) -> None:
    engine = opened("ollama", ollama, context=Context(n_ctx=64))
    engine.load(unheard)
    ollama.behave(reply=["word "] * 100)
    reply = engine.chat(asks("Talk."), unheard)
    assert reply.stop_reason == "context_full"
    assert ollama.asked("/api/chat")[-1]["shift"] is False
    assert engine.chat(asks("Talk.", max_tokens=10), unheard).stop_reason == "max_tokens"
    engine.close()


def test_thinking_comes_in_tags_and_is_not_sent_back(ollama: Contract) -> None:
    engine = opened("ollama", ollama, options={"think": True})
    engine.load(unheard)
    ollama.behave(thinking=["Which", " one?"], reply=["The", " Nile."])
    heard: list[str] = []
    reply = engine.chat(asks("Name a river."), heard.append)
    assert reply.text == "".join(heard) == "<think>Which one?</think>\n\nThe Nile."
    engine.chat(asks("Name a river.", reply.text, "Another?"), unheard)
    body = ollama.asked("/api/chat")[-1]
    assert [message["content"] for message in body["messages"]] == ["Name a river.", "The Nile.", "Another?"]
    assert body["think"] is True
    assert "think" not in body["options"]
    engine.close()


def test_images(ollama: Contract, tmp_path: Path) -> None:
    picture = tmp_path / "river.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n and so on")
    engine = opened("ollama", ollama)
    engine.load(unheard)
    engine.chat(Request(messages=(Message("user", "What is this?", (str(picture),)),)), unheard)
    sent = ollama.asked("/api/chat")[-1]["messages"][0]["images"]
    assert base64.b64decode(sent[0]) == picture.read_bytes()
    (tmp_path / "notes.txt").write_text("no image")
    for name, says in (("notes.txt", "is no image; give a PNG"), ("none.png", "cannot be read")):
        with pytest.raises(EngineError, match=says):
            engine.chat(Request(messages=(Message("user", "?", (str(tmp_path / name),)),)), unheard)
    engine.close()


def test_its_models(ollama: Contract) -> None:
    models = list_models(Http(ollama.url, layout("ollama", ollama.url).timeouts))
    assert [(model.path, model.quantisation, model.digest) for model in models] == [
        ("tiny:latest", "Q4_0", "sha-of-tiny:latest"), ("other:7b", "Q4_0", "sha-of-other:7b")
    ]  # fmt: skip


def test_another_kind_of_server_is_told_apart(openai: Contract) -> None:
    with pytest.raises(EngineError, match="does not answer as Ollama does; is it engine: openai"):
        opened("ollama", openai)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("a", "a:latest", True), ("A:7b", "a:7b", True), ("a:7b", "a", False), ("hf.co/x/y", "hf.co/x/y:latest", True),
     ("host:5000/a", "host:5000/a:latest", True)],
)  # fmt: skip
def test_names(one: str, other: str, same: bool) -> None:
    assert same_name(one, other) is same


def test_a_server_that_dies_before_the_unload_is_let_go(ollama: Contract) -> None:
    engine = opened("ollama", ollama)
    engine.load(unheard)
    ollama.behave(trouble="500")
    engine.close()
    ollama.behave(trouble="")
    wait_until(lambda: ollama.state["loaded"])  # it still holds the model, which nobody could change
