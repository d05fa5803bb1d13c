"""Ends of every kind: a card's, the worker's, the parent's. What is known is said; no process is left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.engines.conftest import DEMO, Open, Opened, layout
from tests.engines.test_cancel import Running
from tests.waiting import wait_until
from workbench.engines.engine import EngineDied
from workbench.engines.llama.process import LOG_LIMIT_BYTES

ROOT = Path(__file__).parents[2]

PARENT = """
import sys, time
from pathlib import Path
from tests.engines.conftest import layout, opened

with opened(layout(sys.argv[1], n_ctx=256, layers=(4, 4)), Path(sys.argv[2])) as it:
    print(it.loaded.pid, *(card.pid for card in it.loaded.card_processes), flush=True)
    if "reply" in sys.argv:
        it.ask("hello", max_tokens=0, ignore_eos=True)
    sys.stdin.read()
"""


def gone(pid: int) -> bool:
    """Whether the process has ended; one that waits to be reaped has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids(it: Opened) -> list[int]:
    return [it.loaded.pid, *(card.pid for card in it.loaded.card_processes)]


def replying(it: Opened) -> tuple[Running, list[str]]:
    """A reply that goes on, of which some has arrived."""
    pieces: list[str] = []
    running = Running(lambda: it.ask("Count.", max_tokens=0, ignore_eos=True, on_text=pieces.append))
    wait_until(lambda: len(pieces) > 2)
    return running, pieces


# ── a card ───────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("card", [0, 1])
def test_a_card_that_is_killed_in_a_reply_is_named_within_a_second(card: int, open_engine: Open) -> None:
    with open_engine(layout(layers=(16, 15))) as it:
        running, pieces = replying(it)
        begun = time.monotonic()
        os.kill(it.loaded.card_processes[card].pid, signal.SIGKILL)
        with pytest.raises(EngineDied) as caught:
            running.wait()
        assert running.ended - begun < 1.0
        assert caught.value.card == f"RPC{card}"
        assert f"RPC{card}" in caught.value.reason
        assert caught.value.partial == "".join(pieces)
        wait_until(lambda: all(map(gone, pids(it))))
        assert [death.card for death in it.deaths] == [f"RPC{card}"]


def test_a_card_that_is_killed_while_idle_is_told_by_itself(tiny: Path, open_engine: Open) -> None:
    with open_engine(layout(tiny, n_ctx=256, layers=(4, 4))) as it:
        os.kill(it.loaded.card_processes[1].pid, signal.SIGKILL)
        wait_until(lambda: it.deaths)
        assert it.deaths[0].card == "RPC1"
        with pytest.raises(EngineDied) as caught:
            it.ask("hello")
        assert caught.value.card == "RPC1"
        assert len(it.deaths) == 1


def test_both_cards_killed_at_once_is_one_death_with_a_card(tiny: Path, open_engine: Open) -> None:
    for _ in range(5):
        with open_engine(layout(tiny, n_ctx=256, layers=(4, 4))) as it:
            for card in it.loaded.card_processes:
                with contextlib.suppress(ProcessLookupError):  # the worker may have ended with the first
                    os.kill(card.pid, signal.SIGKILL)
            wait_until(lambda: it.deaths)
            assert it.deaths[0].card in ("RPC0", "RPC1")


def test_a_card_that_is_stopped_goes_with_its_worker(tiny: Path, open_engine: Open) -> None:
    with open_engine(layout(tiny, n_ctx=256, layers=(4, 4))) as it:
        os.kill(it.loaded.card_processes[0].pid, signal.SIGSTOP)
        os.kill(it.loaded.pid, signal.SIGKILL)
        wait_until(lambda: all(map(gone, pids(it))), timeout=5)


def test_a_card_that_is_stopped_in_a_reply_is_named(open_engine: Open) -> None:
    with open_engine(layout(layers=(16, 15))) as it:
        running, _ = replying(it)
        os.kill(it.loaded.card_processes[1].pid, signal.SIGSTOP)
        with pytest.raises(EngineDied) as caught:
            running.wait()
        assert caught.value.card == "RPC1"
        assert "stopped" in caught.value.reason


def test_a_remote_card_serves_and_is_named_when_it_goes(tiny: Path, open_engine: Open) -> None:
    """A server that workbench did not start, on this host."""
    with open_engine(layout(tiny, n_ctx=256, layers=(4, 4))) as port_finder:
        port = int(port_finder.loaded.card_processes[0].endpoint.rpartition(":")[2])
    server = subprocess.Popen(
        [sys.executable, "-m", "workbench.engines.llama.child.rpc_card", str(port), "600", "64", "1"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: any(c.status == psutil.CONN_LISTEN for c in psutil.Process(server.pid).net_connections()))
        endpoint = f"rpc://127.0.0.1:{port}"
        with open_engine(layout(tiny, n_ctx=256, layers=(8,), cards=(endpoint,))) as it:
            assert it.loaded.cards[0].name == "RPC0"
            assert it.loaded.cards[0].layers == 8
            assert it.loaded.card_processes == ()
            running = Running(lambda: it.ask("hello", max_tokens=0, ignore_eos=True))
            wait_until(lambda: it.engine._grace_s is not None)
            server.kill()
            with pytest.raises(EngineDied) as caught:
                running.wait()
            assert caught.value.card == "RPC0"
            assert f"127.0.0.1:{port}" in caught.value.reason
    finally:
        server.kill()
        server.communicate()


# ── the worker ───────────────────────────────────────────────────────────────────────────
def test_a_worker_that_is_killed_in_a_reply_leaves_its_text_and_no_card(open_engine: Open) -> None:
    with open_engine(layout(layers=(16, 15))) as it:
        running, pieces = replying(it)
        os.kill(it.loaded.pid, signal.SIGKILL)
        with pytest.raises(EngineDied) as caught:
            running.wait()
        assert caught.value.partial == "".join(pieces) != ""
        assert "SIGKILL" in caught.value.reason
        wait_until(lambda: all(map(gone, pids(it))), timeout=5)
        assert len(it.deaths) == 1


def test_an_interrupt_of_the_terminal_does_not_reach_the_worker(tiny: Path, open_engine: Open) -> None:
    with open_engine(layout(tiny, n_ctx=256, layers=(4, 4))) as it:
        for pid in pids(it):
            assert os.getpgid(pid) == it.loaded.pid != os.getpgid(0)
            assert os.getsid(pid) == it.loaded.pid
        os.kill(it.loaded.pid, signal.SIGINT)
        assert it.ask("hello", max_tokens=2, ignore_eos=True).timing.tokens == 2


def test_close_leaves_nothing_and_tells_no_death(tiny: Path, open_engine: Open) -> None:
    with open_engine(layout(tiny, n_ctx=256, layers=(4, 4))) as it:
        it.engine.close()
        assert all(not psutil.pid_exists(pid) or gone(pid) for pid in pids(it))
        assert not psutil.pid_exists(it.loaded.pid)  # reaped too
        it.engine.close()
        assert it.deaths == []


def test_engines_leave_no_descriptor_and_no_thread(tiny: Path, open_engine: Open) -> None:
    process = psutil.Process()

    def once() -> None:
        with open_engine(layout(tiny, n_ctx=256, layers=(4, 4))) as it:
            it.ask("hello", max_tokens=2)

    once()
    before = (process.num_fds(), process.num_threads())
    for _ in range(3):
        once()
    wait_until(lambda: (process.num_fds(), process.num_threads()) <= before)


def test_two_engines_at_once(tiny: Path, open_engine: Open) -> None:
    of = layout(tiny, n_ctx=256, layers=(4, 4))
    with open_engine(of) as one, open_engine(of) as other:
        assert not set(pids(one)) & set(pids(other))
        running = Running(lambda: one.ask("hello", ignore_eos=True).text)
        assert other.ask("hello", ignore_eos=True).text == running.wait()
        os.kill(one.loaded.pid, signal.SIGKILL)
        assert other.ask("hello", max_tokens=2, ignore_eos=True).timing.tokens == 2


# ── the parent ───────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("how", ["SIGKILL", "SIGKILL in a reply", "SIGKILL and a stopped card"])
def test_nothing_outlives_the_parent(how: str, tiny: Path, tmp_path: Path) -> None:
    args = [sys.executable, "-c", PARENT, str(tiny), str(tmp_path / "engine.log")]
    parent = subprocess.Popen(
        args + (["reply"] if "reply" in how else []),
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(children) == 3
        if "stopped" in how:
            os.kill(children[1], signal.SIGSTOP)
        parent.send_signal(signal.SIGKILL)
        wait_until(lambda: all(map(gone, children)), timeout=2.0)
    finally:
        parent.kill()
        parent.communicate()


# ── the log ──────────────────────────────────────────────────────────────────────────────
def test_the_library_prints_to_the_log_and_a_long_one_is_put_aside(
    tiny: Path, open_engine: Open, tmp_path: Path
) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"x" * (LOG_LIMIT_BYTES + 1))
    with open_engine(layout(tiny, n_ctx=256, layers=(4, 4))):
        assert 0 < log.stat().st_size < 100_000
        assert b"load_tensors" in log.read_bytes()
    assert (tmp_path / "engine.log.1").stat().st_size == LOG_LIMIT_BYTES + 1


@pytest.mark.parametrize("log", ["/dev/full", "/proc/nowhere/engine.log"])
def test_an_engine_runs_and_measures_with_a_log_that_cannot_be_written(log: str, tiny: Path) -> None:
    it = Opened(layout(tiny, n_ctx=256, layers=(5, 3)), Path(log))
    try:
        assert [card.layers for card in it.load().cards] == [5, 3]
        assert it.loaded.cards[0].weights_mib > 0
        assert it.ask("hello", max_tokens=2, ignore_eos=True).timing.tokens == 2
    finally:
        it.engine.close()


def test_files_of_the_current_folder_do_not_stand_in_for_pythons_own(
    tiny: Path, open_engine: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong queue')\n")
    monkeypatch.chdir(tmp_path)
    with open_engine(layout(tiny, n_ctx=256, layers=(4, 4))) as it:
        assert it.loaded.model.n_layer == 7


def test_a_worker_that_cannot_start_says_so(
    open_engine: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise ImportError('broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineDied, match="its log says why"), open_engine(layout(DEMO)):
        pass
