"""Whatever a server does wrong ends in one clear sentence, and the next request is answered. Real sockets."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.serving import IMPATIENT, REPLY, asks, opened, unheard
from tests.servers.running import ROOT, Contract
from tests.waiting import wait_until
from workbench.domain.layout import EngineName
from workbench.engines.engine import EngineError, LoadCancelled, LoadFailed, ReplyBroken
from workbench.engines.server import ServerEngine

BOTH: tuple[EngineName, ...] = ("ollama", "openai")


@pytest.fixture(params=BOTH)
def engine(request: pytest.FixtureRequest) -> EngineName:
    """Each kind of server in turn."""
    name: EngineName = request.param
    return name


@pytest.fixture
def server(engine: EngineName, request: pytest.FixtureRequest) -> Contract:
    """Its server."""
    it: Contract = request.getfixturevalue(engine)
    return it


@pytest.fixture
def it(engine: EngineName, server: Contract) -> Iterator[ServerEngine]:
    """An engine that is ready to chat."""
    ready = opened(engine, server)
    ready.load(unheard)
    yield ready
    server.behave(trouble="")
    ready.close()


def answers(it: ServerEngine, server: Contract) -> None:
    """The next request is answered as if nothing had been."""
    server.behave(trouble="", starting=0, key="")
    assert it.chat(asks("Name a river."), unheard).text == REPLY


def chats(server: Contract) -> int:
    """How many replies it was asked for."""
    return sum(body["stream"] for path in ("/api/chat", "/v1/chat/completions") for body in server.asked(path))


# ── a server that cannot be reached, or should not be ──────────────────────────────────────
def test_nothing_listens(engine: EngineName) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(LoadFailed, match=r"nothing answers at http://127.0.0.1:\d+\S* \(connection refused\); is the"):
        opened(engine, f"http://127.0.0.1:{port}")


def test_a_host_that_there_is_not(engine: EngineName) -> None:
    with pytest.raises(LoadFailed, match=r"host.invalid"):
        opened(engine, "http://host.invalid:1234")


def test_a_host_that_no_name_is(engine: EngineName) -> None:
    with pytest.raises(LoadFailed, match=r"http://xn--zzzzzzz--.invalid\S* is no address: A-label must not end"):
        opened(engine, "http://xn--zzzzzzz--.invalid/")


def test_a_host_that_does_not_answer(engine: EngineName) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:  # until its queue is full
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        begun = time.monotonic()
        with pytest.raises(LoadFailed, match=r"did not answer within 0.5 s|said nothing for \S+ s"):
            opened(engine, f"http://127.0.0.1:{port}", IMPATIENT)
        assert time.monotonic() - begun < 5
        for each in waiting:
            each.close()


def test_something_that_is_no_http(engine: EngineName) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            client, _ = listening.accept()
            client.sendall(b"220 mail.example ESMTP\r\n")
            client.close()

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(LoadFailed, match=r"does not speak HTTP as it should|broke off|hung up"):
            opened(engine, f"http://127.0.0.1:{listening.getsockname()[1]}")


def test_a_certificate_that_nobody_vouches_for(engine: EngineName, secure: tuple[str, Path]) -> None:
    with pytest.raises(LoadFailed, match=r"certificate of https://localhost:\d+\S* is not to be trusted"):
        opened(engine, secure[0])


def test_an_authority_of_ones_own(secure: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    url, authority = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    it = opened("openai", url)
    it.load(unheard)
    assert it.chat(asks("Name a river."), unheard).text == REPLY


def test_a_certificate_of_another_host(secure: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    url, authority = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with pytest.raises(LoadFailed, match=r"certificate of https://127.0.0.1:\S* is not to be trusted: IP address mism"):
        opened("openai", url.replace("localhost", "127.0.0.1"))


def test_tls_where_there_is_none(engine: EngineName, server: Contract) -> None:
    with pytest.raises(LoadFailed, match="speaks no TLS"):
        opened(engine, server.url.replace("http:", "https:"))


def test_a_redirect_is_not_followed(engine: EngineName, server: Contract, it: ServerEngine) -> None:
    server.behave(trouble="redirect")
    with pytest.raises(EngineError, match=r"redirects to http://elsewhere.example/api; no redirect is followed"):
        it.chat(asks("Name a river."), unheard)
    with pytest.raises(LoadFailed, match="redirects to"):
        opened(engine, server)
    answers(it, server)


def test_a_web_page(engine: EngineName, server: Contract, it: ServerEngine) -> None:
    server.behave(trouble="web page")
    with pytest.raises(EngineError, match="answered with a web page; is that the address of its API"):
        it.chat(asks("Name a river."), unheard)
    with pytest.raises(LoadFailed, match="web page"):
        opened(engine, server)
    answers(it, server)


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    it: ServerEngine, server: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    answers(it, server)


def test_a_proxy_of_the_environment_that_cannot_be(engine: EngineName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "gopher://host.invalid")
    with pytest.raises(LoadFailed, match="the proxy that the environment names cannot be used: Unknown scheme"):
        opened(engine, "http://host.invalid:1234")


# ── a server that refuses ─────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("400", "refuses this request"),
        ("401", "refused the key"),
        ("403", "refuses"),
        ("404", "knows nothing by that name"),
        ("429", "too many requests"),
        ("499", "refuses"),
        ("500", "failed"),
        ("502", "a proxy on the way"),
        ("503", "busy or still starting"),
    ],
)
def test_a_status(it: ServerEngine, server: Contract, status: str, says: str) -> None:
    server.behave(trouble=status)
    with pytest.raises(EngineError, match=says) as caught:
        it.chat(asks("Name a river."), unheard)
    assert f"(HTTP {status}): trouble number {status}" in caught.value.reason
    answers(it, server)


@pytest.mark.parametrize(("status", "says"), [("401", "refused the key"), ("429", "wait a little"), ("500", "failed")])
@pytest.mark.parametrize(("size", "told"), [(100_000, ": trouble number"), (3 << 20, "")])
def test_a_long_answer_to_a_status(
    it: ServerEngine, server: Contract, status: str, says: str, size: int, told: str
) -> None:
    server.behave(trouble=status, error_size=size)
    with pytest.raises(EngineError, match=says) as caught:
        it.chat(asks("Name a river."), unheard)
    assert f"(HTTP {status}){told}" in caught.value.reason
    assert len(caught.value.reason) < 500
    answers(it, server)


def test_a_model_that_it_does_not_have(engine: EngineName, server: Contract) -> None:
    with pytest.raises(LoadFailed, match="has no model tony; it has: tiny") as caught:
        opened(engine, server, model="tony")
    assert caught.value.key == "model"


# ── a reply that breaks off ───────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ("drops", "broke off|hung up"),
        ("cut", "hung up in the middle"),
        ("error line", "broke off: (llama-server process no longer running|CUDA error: out of memory)"),
        ("no end", "without (its last line|saying so)"),
        ("half a line", "without (its last line|saying so)"),
        ("no JSON", "no JSON"),
        ("endless line", "line of more than 16 MiB"),
    ],
)
def test_what_was_said_stays(it: ServerEngine, server: Contract, trouble: str, says: str) -> None:
    server.behave(trouble=trouble)
    heard: list[str] = []
    with pytest.raises(ReplyBroken, match=says) as caught:
        it.chat(asks("Name a river."), heard.append)
    assert caught.value.partial == "".join(heard)
    assert caught.value.partial.startswith("Rivers run")
    answers(it, server)


def test_a_connection_that_is_reset_before_the_first_word(it: ServerEngine, server: Contract) -> None:
    server.behave(trouble="hangs up")
    with pytest.raises(EngineError, match=r"broke off|hung up") as caught:
        it.chat(asks("Name a river."), unheard)
    assert not isinstance(caught.value, ReplyBroken)
    answers(it, server)


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ("error at once", "broke off: (llama-server process no longer running|CUDA error: out of memory)"),
        ("nothing at all", "without its last line|before its first word"),
    ],
)
def test_a_reply_that_never_begins(it: ServerEngine, server: Contract, trouble: str, says: str) -> None:
    """HTTP 200, and then no word."""
    server.behave(trouble=trouble)
    with pytest.raises(EngineError, match=says) as caught:
        it.chat(asks("Name a river."), unheard)
    assert not isinstance(caught.value, ReplyBroken)
    answers(it, server)


# ── time ──────────────────────────────────────────────────────────────────────────────────
def test_silence_before_the_first_word(engine: EngineName, server: Contract) -> None:
    it = opened(engine, server, IMPATIENT)
    it.load(unheard)
    server.behave(trouble="never answers")
    with pytest.raises(EngineError, match=r"said nothing for 0.5 s \(`timeouts` of the layout sets"):
        it.chat(asks("Name a river."), unheard)
    answers(it, server)
    it.close()


def test_silence_in_the_middle(engine: EngineName, server: Contract) -> None:
    it = opened(engine, server, IMPATIENT)
    it.load(unheard)
    server.behave(trouble="silent")
    with pytest.raises(ReplyBroken, match=r"said nothing for 0.5 s") as caught:
        it.chat(asks("Name a river."), unheard)
    assert caught.value.partial.startswith("Rivers run")
    answers(it, server)
    it.close()


def test_a_slow_but_living_reply_is_not_cut(engine: EngineName, server: Contract) -> None:
    it = opened(engine, server, IMPATIENT)
    it.load(unheard)
    server.behave(each_s=0.2)  # as a whole it takes four times what is waited for
    assert it.chat(asks("Name a river."), unheard).text == REPLY
    server.behave(each_s=0.0, trouble="pings", first_s=1.2)
    assert it.chat(asks("Name a river."), unheard).text == REPLY
    it.close()


STOPPED = """
import sys
from tests.engines.serving import IMPATIENT, asks, opened, unheard
it = opened(sys.argv[1], sys.argv[2], IMPATIENT)
it.load(unheard)
print("asks", flush=True)
print(it.chat(asks("Name a river."), lambda text: print("hears", flush=True)).text.encode(), flush=True)
it.close()
"""


@pytest.mark.parametrize("at", ["asks", "hears"])
def test_time_in_which_this_side_was_stopped_is_no_silence(engine: EngineName, server: Contract, at: str) -> None:
    server.behave(each_s=0.15, first_s=0.15)
    command = [sys.executable, "-c", STOPPED, engine, server.url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != at:
            assert process.poll() is None
        wait_until(lambda: chats(server) > 0)
        process.send_signal(signal.SIGSTOP)
        continues = time.monotonic() + 2 * IMPATIENT.silence_s
        wait_until(lambda: time.monotonic() > continues)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.read().splitlines()[-1] == str(REPLY.encode())


@pytest.mark.parametrize(("trouble", "each_s"), [("never answers", 0.0), ("silent", 0.0), ("", 0.3)])
def test_a_cancel_is_quiet_within_a_second(it: ServerEngine, server: Contract, trouble: str, each_s: float) -> None:
    server.behave(trouble=trouble, each_s=each_s)
    ended: list[float] = []
    replies = []

    def chat() -> None:
        replies.append(it.chat(asks("Name a river."), unheard))
        ended.append(time.monotonic())

    thread = threading.Thread(target=chat)
    before = chats(server)
    thread.start()
    wait_until(lambda: chats(server) > before)
    asked = time.monotonic()
    it.cancel()
    thread.join(5)
    assert replies[0].stop_reason == "cancelled"
    assert ended[0] - asked < 1.0
    wait_until(lambda: any(seen["path"] == "gone" for seen in server.state["seen"]))  # the server hears of it
    server.behave(each_s=0.0)
    answers(it, server)


def test_a_load_is_cancelled(engine: EngineName, server: Contract) -> None:
    it = opened(engine, server)
    server.behave(load_s=3.0) if engine == "ollama" else server.behave(starting=1000)
    timer = threading.Timer(0.3, it.cancel)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(LoadCancelled):
        it.load(unheard)
    assert time.monotonic() - begun < 1.3
    server.anew()


# ── how it is cut into pieces ─────────────────────────────────────────────────────────────
@pytest.mark.parametrize("trouble", ["byte by byte", "in threes", "surrogates", "buffered"])
def test_pieces_are_put_together(it: ServerEngine, server: Contract, trouble: str) -> None:
    server.behave(trouble=trouble)
    heard: list[str] = []
    reply = it.chat(asks("Name a river."), heard.append)
    assert reply.text == REPLY
    assert "".join(heard) == REPLY
    for piece in heard:
        piece.encode()  # no half characters


def test_a_character_that_two_pieces_share(it: ServerEngine, server: Contract) -> None:
    server.behave(trouble="surrogates", reply=["crab \ud83e", "\udd80", " and half of one \ud83e"])
    heard: list[str] = []
    assert it.chat(asks("Name an animal."), heard.append).text == "crab 🦀 and half of one �"
    for piece in heard:
        piece.encode()


# ── counters and clocks ───────────────────────────────────────────────────────────────────
def test_an_answer_without_counters_is_timed_here(it: ServerEngine, server: Contract) -> None:
    server.behave(trouble="no counters", each_s=0.02)
    asked = time.monotonic()
    timing = it.chat(asks("Name a river."), unheard).timing
    took_s = time.monotonic() - asked
    assert timing.source == "pieces"
    assert (timing.tokens, timing.prefill_tok_s) == (8, None)
    # Seven pauses of the server at least in part, and nothing that was not waited for here.
    assert 7 * 0.02 / 4 < timing.decode_s < took_s
    assert timing.decode_tok_s == timing.decoded_tokens / timing.decode_s


def test_a_reply_that_a_proxy_kept_back_has_no_speed(it: ServerEngine, server: Contract) -> None:
    server.behave(trouble="buffered", flavour="vllm", reply=["word "] * 200)
    reply = it.chat(asks("Name a river.", salt=1), unheard)
    if reply.timing.source == "server":
        return  # Ollama's own counters do not depend on the way
    assert reply.timing.decode_tok_s is None
    assert reply.timing.prefill_tok_s is None
    assert "all at once" in reply.caveat


def test_a_clock_that_jumps_is_not_read(
    it: ServerEngine, server: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock here goes back a day at each look; the server's dates jump by decades anyway."""
    now = [time.time()]

    def jumps() -> float:
        now[0] -= 86_400
        return now[0]

    monkeypatch.setattr(time, "time", jumps)
    server.behave(trouble="no counters", each_s=0.02)
    asked = time.monotonic()
    timing = it.chat(asks("Name a river."), unheard).timing
    took_s = time.monotonic() - asked
    assert 0 < timing.ttft_s < took_s
    assert 7 * 0.02 / 4 < timing.decode_s < took_s


def test_a_count_that_cannot_be_is_none(it: ServerEngine, server: Contract) -> None:
    server.behave(counted=99999999999999999999999)
    timing = it.chat(asks("Name a river."), unheard).timing
    assert (timing.tokens, timing.source) == (8, "pieces")


def test_what_follows_the_end_is_not_heard(openai: Contract) -> None:
    it = opened("openai", openai)
    it.load(unheard)
    for trouble in ("goes on", "stays open"):
        openai.behave(trouble=trouble)
        reply = it.chat(asks("Name a river."), unheard)
        assert (reply.text, reply.timing.tokens) == (REPLY, 8)
    it.close()


# ── the key ───────────────────────────────────────────────────────────────────────────────
SECRET = "sk-very-secret-0123456789"


def test_the_key_goes_along_and_is_told_to_nobody(
    engine: EngineName, server: Contract, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    monkeypatch.setenv("MY_KEY", SECRET)
    server.behave(key=SECRET)
    it = opened(engine, server, api_key_env="MY_KEY")
    loaded = it.load(unheard)
    assert it.chat(asks("Name a river."), unheard).text == REPLY
    server.behave(key="another")
    with pytest.raises(EngineError, match="refused the key") as caught:
        it.chat(asks("Name a river."), unheard)
    assert "no such key: Bearer …" in caught.value.reason  # the server repeats it
    assert SECRET not in f"{caught.value!r}{caught.value.__cause__!r}{loaded!r}{caplog.text}"
    server.behave(key="")
    it.close()


@pytest.mark.parametrize(("value", "says"), [(None, "MY_KEY is not set"), ("  ", "not set"), ("a\x07b", "is no key")])
def test_a_key_that_is_not_there(
    engine: EngineName, server: Contract, monkeypatch: pytest.MonkeyPatch, value: str | None, says: str
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(LoadFailed, match=says) as caught:
        opened(engine, server, api_key_env="MY_KEY")
    assert caught.value.key == "api_key_env"
