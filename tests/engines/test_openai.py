"""OpenAI-compatible servers: the contract in its flavours, and llama-cpp-python's own server with the bundled model."""

import base64
import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.serving import REPLY, asks, layout, opened, unheard
from tests.servers.running import Contract
from tests.waiting import wait_until
from workbench.domain.conversation import Message
from workbench.domain.layout import Context
from workbench.engines.engine import EngineError, LoadFailed, PromptTooLong, Request, StateRefused
from workbench.engines.http import Http
from workbench.engines.openai import api_base, list_models
from workbench.engines.server import ServerEngine

GREEDY: dict[str, Any] = {"temperature": 0.0, "seed": 1}


# ── llama-cpp-python's own server ─────────────────────────────────────────────────────────
@pytest.fixture
def real(llama_cpp: str) -> Iterator[ServerEngine]:
    """An engine on it."""
    engine = opened("openai", llama_cpp)
    engine.load(unheard)
    yield engine
    engine.close()


def test_a_conversation_on_a_real_server(real: ServerEngine) -> None:
    heard: list[str] = []
    reply = real.chat(asks("Name a river in Egypt.", max_tokens=24, **GREEDY), heard.append)
    assert "Nile" in reply.text
    assert reply.text == "".join(heard)
    assert reply.stop_reason in ("stop", "max_tokens")
    assert reply.timing.source == "pieces"  # it streams no usage
    more = real.chat(asks("Name a river in Egypt.", reply.text, "Is it long?", max_tokens=8, **GREEDY), unheard)
    assert more.text
    probe = real.probe()
    assert probe is not None
    assert (probe.prefill_tok_s, probe.decode_tok_s > 1) == (None, True)


def test_a_real_reply_is_cancelled_and_the_next_begins_at_once(real: ServerEngine) -> None:
    heard = threading.Event()
    replies = []
    request = asks("Write a long story about rivers.", max_tokens=900, **GREEDY)
    thread = threading.Thread(target=lambda: replies.append(real.chat(request, lambda _: heard.set())))
    thread.start()
    assert heard.wait(30)
    real.cancel()
    thread.join(1.0)
    assert not thread.is_alive()
    assert replies[0].stop_reason == "cancelled"
    assert replies[0].text
    assert real.chat(asks("Name a river.", max_tokens=4, **GREEDY), unheard).text


@pytest.mark.alone
def test_speeds_are_the_servers_own_within_3_percent(real: ServerEngine, llama_cpp: str) -> None:
    """Twenty replies; the server has a clock of its own where it makes the text."""
    before = len(_clock(llama_cpp))
    ours = []
    for number in range(20):
        reply = real.chat(asks(f"{number}. Write on rivers.", max_tokens=24, **GREEDY), unheard)
        ours.append(reply.timing.decode_tok_s)
    wait_until(lambda: len(_clock(llama_cpp)) == before + 20)
    theirs = _clock(llama_cpp)[before:]
    off = [abs(our / their - 1) for our, their in zip(ours, theirs, strict=True) if our is not None]
    assert len(off) == 20
    assert statistics.median(off) < 0.03
    assert abs(statistics.fmean(our or 0 for our in ours) / statistics.fmean(theirs) - 1) < 0.03


def _clock(url: str) -> list[float]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/clock", timeout=10) as answer:
        rates: list[float] = json.load(answer)
    return rates


def test_a_prompt_that_is_too_long_for_a_real_server(real: ServerEngine) -> None:
    with pytest.raises(EngineError, match="a prompt that is longer than its context"):
        real.chat(asks("river " * 1500, max_tokens=4), unheard)
    assert real.chat(asks("Name a river.", max_tokens=4, **GREEDY), unheard).text


# ── the contract, in its flavours ─────────────────────────────────────────────────────────
def flavoured(server: Contract, flavour: str, **more: object) -> ServerEngine:
    """An engine that has loaded on a server of that kind."""
    server.behave(flavour=flavour)
    engine = opened("openai", server, **more)  # type: ignore[arg-type]
    engine.load(unheard)
    return engine


@pytest.mark.parametrize(
    ("flavour", "name", "n_ctx"),
    [
        ("llama-server", "llama-server b7000-abc", 2048),
        ("vllm", "vLLM", 2048),
        ("lm studio", "OpenAI-compatible server", 2048),
        ("tabby", "OpenAI-compatible server", 0),
    ],
)
def test_what_each_tells_of_itself(openai: Contract, flavour: str, name: str, n_ctx: int) -> None:
    openai.behave(flavour=flavour)
    loaded = opened("openai", openai).load(unheard)
    assert loaded.served is not None
    assert (loaded.served.name, loaded.n_ctx) == (name, n_ctx)
    assert loaded.served.pids
    assert loaded.flash_attn is None


@pytest.mark.parametrize(
    ("flavour", "source", "prompt_tokens", "prefill"),
    [("llama-server", "server", 6, 500.0), ("vllm", "client", 3, None), ("tabby", "pieces", 0, None)],
)
def test_who_timed_a_reply(openai: Contract, flavour: str, source: str, prompt_tokens: int, prefill: object) -> None:
    engine = flavoured(openai, flavour)
    openai.behave(each_s=0.01)
    asked = time.monotonic()
    timing = engine.chat(asks("Name a river.", max_tokens=20), unheard).timing
    took_s = time.monotonic() - asked
    assert (timing.source, timing.prompt_tokens, timing.tokens) == (source, prompt_tokens, 20)
    if prefill is not None:
        assert timing.prefill_tok_s == pytest.approx(prefill)
        assert timing.evaluated_tokens == 3  # three were in its cache
        assert timing.decode_tok_s == pytest.approx(100.0)  # by its own word: 19 steps in 190 ms
    else:
        assert 19 * 0.01 / 4 < timing.decode_s < took_s
        assert timing.decode_tok_s == 19 / timing.decode_s


def test_what_a_strict_server_refuses_is_left_out_and_asked_again(openai: Contract) -> None:
    engine = flavoured(openai, "strict")
    assert engine.chat(asks("Name a river.", salt=1, max_tokens=5, ignore_eos=True), unheard).text
    bodies = openai.asked("/v1/chat/completions")
    assert {"top_k", "min_p", "ignore_eos", "cache_prompt"} <= set(bodies[0])
    assert set(bodies[-1]) == {"model", "messages", "stream", "stream_options", "temperature", "top_p", "max_tokens"}
    engine.chat(asks("Another."), unheard)
    assert len(openai.asked("/v1/chat/completions")) == len(bodies) + 1  # it remembers


@pytest.mark.parametrize("flavour", ["llama-server", "vllm"])
def test_a_prompt_that_is_too_long(openai: Contract, flavour: str) -> None:
    engine = flavoured(openai, flavour)
    with pytest.raises(PromptTooLong) as caught:
        engine.chat(asks("river " * 3000), unheard)
    assert (caught.value.prompt_tokens, caught.value.n_ctx) == (3000, 2048)


def test_a_server_that_is_starting_is_waited_for(openai: Contract) -> None:
    openai.behave(starting=3)
    engine = opened("openai", openai)
    stages: list[str] = []
    loaded = engine.load(lambda progress: stages.append(progress.stage))
    assert loaded.n_ctx == 2048
    assert stages == ["the server is asked", "ready"]


def test_a_server_without_a_list_is_believed(openai: Contract) -> None:
    openai.behave(flavour="no list")
    engine = opened("openai", openai)
    assert "lists no models" in engine.load(unheard).warnings[0]
    openai.behave(flavour="plain")
    assert engine.chat(asks("Name a river."), unheard).text


def test_thinking(openai: Contract) -> None:
    engine = flavoured(openai, "llama-server")
    openai.behave(thinking=["Which", " one?"], reply=["The", " Nile."])
    reply = engine.chat(asks("Name a river."), unheard)
    assert reply.text == "<think>Which one?</think>\n\nThe Nile."
    engine.chat(asks("Name a river.", reply.text, "Another?"), unheard)
    messages = openai.asked("/v1/chat/completions")[-1]["messages"]
    assert messages[1] == {"role": "assistant", "content": "The Nile."}


def test_an_image(openai: Contract, tmp_path: Path) -> None:
    picture = tmp_path / "river.jpg"
    picture.write_bytes(b"\xff\xd8\xff and so on")
    engine = flavoured(openai, "llama-server")
    engine.chat(Request(messages=(Message("user", "What is this?", (str(picture),)),)), unheard)
    text, image = openai.asked("/v1/chat/completions")[-1]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    head, _, data = image["image_url"]["url"].partition(",")
    assert (head, base64.b64decode(data)) == ("data:image/jpeg;base64", picture.read_bytes())


def test_options_go_with_each_request(openai: Contract) -> None:
    engine = flavoured(openai, "llama-server", options={"chat_template_kwargs": {"enable_thinking": False}})
    engine.chat(asks("Name a river."), unheard)
    assert openai.asked("/v1/chat/completions")[0]["chat_template_kwargs"] == {"enable_thinking": False}


def test_its_context_cannot_be_changed_from_here_nor_its_state_taken(openai: Contract, tmp_path: Path) -> None:
    engine = flavoured(openai, "vllm")
    with pytest.raises(LoadFailed, match="set where it is started"):
        engine.new_context(Context(n_ctx=512))
    with pytest.raises(StateRefused):
        engine.save_state(tmp_path / "state")


def test_its_models(openai: Contract) -> None:
    models = list_models(Http(api_base(openai.url), layout("openai", openai.url).timeouts))
    (model,) = models
    assert (model.path, model.n_ctx_train, round(model.size_mib), model.quantisation) == ("tiny", 8192, 96, "Q4_0")


def test_a_key_over_plain_http_to_another_machine_is_said(
    openai: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1")
    engine = opened("openai", openai, api_key_env="MY_KEY")
    assert engine.load(unheard).warnings == ()
    monkeypatch.setattr("workbench.engines.openai.is_here", lambda url: False)
    assert "unencrypted" in opened("openai", openai, api_key_env="MY_KEY").load(unheard).warnings[0]


@pytest.mark.parametrize(
    ("url", "base"),
    [("http://h:1", "http://h:1/v1"), ("http://h:1/", "http://h:1/v1"), ("https://h/v1", "https://h/v1"),
     ("https://h/api/v1", "https://h/api/v1")],
)  # fmt: skip
def test_where_the_api_begins(url: str, base: str) -> None:
    assert api_base(url) == base


def test_a_whole_answer_where_a_stream_was_asked_for(openai: Contract) -> None:
    """Some proxies undo streams: the text comes as one JSON document."""
    engine = flavoured(openai, "vllm")
    openai.behave(trouble="whole")
    reply = engine.chat(asks("Name a river."), unheard)
    assert (reply.text, reply.stop_reason) == (REPLY, "stop")
    assert reply.timing.decode_tok_s is None
