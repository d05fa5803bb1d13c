"""Forecasts of loads on virtual cards: against what is measured, and the helper's life."""

import array
import fcntl
import os
import signal
import termios
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.engines.conftest import DEMO, layout, with_context
from tests.engines.forecasting import EIGHT_BITS, FOUR_BITS, LONG, MIDDLE, SMALL, compared, simulate
from tests.engines.random_model import N_LAYER, write_random
from tests.waiting import wait_until
from workbench.domain.forecast import FROM_HEADER, FROM_LLAMA, ForecastSource
from workbench.domain.layout import Layout
from workbench.engines.engine import LoadFailed
from workbench.engines.llama.forecaster import Forecaster
from workbench.engines.llama.wire import Simulated

BOTH: tuple[ForecastSource, ...] = (FROM_LLAMA, FROM_HEADER)


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("random") / "random.gguf")


@pytest.fixture
def forecaster(tmp_path: Path) -> Iterator[Forecaster]:
    it = Forecaster(tmp_path / "helper.log")
    yield it
    it.release()


# ── forecast and measured ─────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("bundled", "split", "contexts"),
    [
        (True, {"layers": (23, 8)}, (LONG, FOUR_BITS)),
        (True, {"split_mode": "tensor", "tensor_split": (3.0, 1.0)}, (LONG, EIGHT_BITS)),
        (False, {"tensor_split": (3.0, 1.0), "n_gpu_layers": 6}, (MIDDLE, EIGHT_BITS)),
        (False, {"split_mode": "none", "main_gpu": 1}, (SMALL,)),
        (False, {"split_mode": "tensor", "tensor_split": (1.0, 1.0), "n_gpu_layers": 5}, (SMALL,)),
    ],
    ids=str,
)
def test_the_forecast_is_what_is_measured_then(
    bundled: bool, split: dict[str, Any], contexts: Sequence[dict[str, Any]], random_model: Path,
    forecaster: Forecaster, tmp_path: Path,
) -> None:  # fmt: skip
    model = DEMO if bundled else random_model
    for miss in compared(model, split, contexts, forecaster, BOTH, tmp_path / "engine.log"):
        assert not miss.too_far, miss


@pytest.mark.parametrize("source", BOTH)
def test_what_stays_with_the_host_is_no_cards(
    source: ForecastSource, random_model: Path, forecaster: Forecaster
) -> None:
    nothing = simulate(forecaster, layout(random_model, tensor_split=(1.0, 1.0), n_gpu_layers=0), source)
    assert [card.total_mib - card.compute_mib for card in nothing.cards] == [0.0, 0.0]
    assert nothing.host.layers == N_LAYER + 1
    no_cards = simulate(forecaster, layout(random_model, cards=("CPU",)), source)
    assert no_cards.cards == ()
    assert no_cards.host.weights_mib == pytest.approx(nothing.host.weights_mib)
    assert no_cards.host.kv_mib == nothing.host.kv_mib > 0


# ── limits ────────────────────────────────────────────────────────────────────────────────
def test_the_largest_context_fits_and_the_next_does_not(random_model: Path, forecaster: Forecaster) -> None:
    of = layout(random_model, layers=(5, 4))
    room = (150.0, 200.0, None)
    most = simulate(forecaster, of, FROM_LLAMA, room_mib=room).max_n_ctx
    assert most is not None
    assert 0 < most < 32768

    def fits(n_ctx: int) -> bool:
        cards = simulate(forecaster, with_context(of, n_ctx=n_ctx), FROM_LLAMA).cards
        return all(card.total_mib <= mib for card, mib in zip(cards, (150.0, 200.0), strict=True))

    assert fits(most)
    assert not fits(most + 1)


def test_no_context_fits_where_the_weights_do_not(random_model: Path, forecaster: Forecaster) -> None:
    answer = simulate(forecaster, layout(random_model, layers=(5, 4)), FROM_LLAMA, room_mib=(2.0, 200.0, None))
    assert answer.max_n_ctx == 0


def test_the_trained_context_is_the_limit_where_memory_is_none(random_model: Path, forecaster: Forecaster) -> None:
    answer = simulate(forecaster, layout(random_model, layers=(5, 4)), FROM_LLAMA, room_mib=(None, None, None))
    assert answer.max_n_ctx == 32768


def test_a_cache_of_eight_bits_is_as_small_as_asked_for_outright(random_model: Path, forecaster: Forecaster) -> None:
    of = layout(random_model, layers=(5, 4))
    beside = simulate(forecaster, of, FROM_LLAMA, room_mib=(None, None, None)).q8_cards
    outright = simulate(forecaster, with_context(of, type_k="q8_0", type_v="q8_0"), FROM_LLAMA).cards
    assert beside == outright


def test_a_far_context_is_drawn_out_and_costs_no_memory(random_model: Path, forecaster: Forecaster) -> None:
    of = layout(random_model, layers=(5, 4))
    near = simulate(forecaster, with_context(of, n_ctx=2**17), FROM_LLAMA)
    far = simulate(forecaster, with_context(of, n_ctx=2**30), FROM_LLAMA)
    assert far.n_ctx == 2**30
    assert far.cards[0].kv_mib == pytest.approx(near.cards[0].kv_mib * 2**13)
    assert forecaster.pid is not None
    assert psutil.Process(forecaster.pid).memory_info().rss < 2**30


# ── what cannot load ──────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("split", "context", "says"),
    [
        ({"split_mode": "tensor", "tensor_split": (1.0, 1.0)}, {"flash_attn": False}, "flash_attn"),
        ({"layers": (5, 4)}, {"flash_attn": False, "type_v": "q8_0"}, "flash_attn"),
    ],
    ids=str,
)
def test_a_draft_that_llama_refuses_is_answered_with_its_reason(
    split: dict[str, Any], context: dict[str, Any], says: str, random_model: Path, forecaster: Forecaster
) -> None:
    good = layout(random_model, layers=(5, 4))
    before = simulate(forecaster, good, FROM_LLAMA)
    pid = forecaster.pid
    with pytest.raises(LoadFailed, match=says):
        simulate(forecaster, with_context(layout(random_model, **split), **context), FROM_LLAMA)
    assert forecaster.pid == pid
    assert simulate(forecaster, good, FROM_LLAMA) == before


def test_a_file_that_is_no_model_is_named(tmp_path: Path, forecaster: Forecaster) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF" + b"but not really " * 9)
    with pytest.raises(LoadFailed, match=r"no\.gguf"):
        simulate(forecaster, layout(tmp_path / "no.gguf"), FROM_LLAMA)


def stopped(forecaster: Forecaster, draft: Layout) -> tuple[Simulated, int]:
    """What a draft comes to, and the process of the helper that said so, which is stopped now."""
    expected = simulate(forecaster, draft, FROM_LLAMA)
    assert forecaster.pid is not None
    os.kill(forecaster.pid, signal.SIGSTOP)
    return expected, forecaster.pid


def unread(pid: int) -> int:
    """Bytes that wait in a process's stdin."""
    count = array.array("i", [0])
    with open(f"/proc/{pid}/fd/0", "rb", buffering=0) as pipe:
        fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_a_draft_that_kills_the_helper_is_an_answer_and_another_helper_is_there(
    random_model: Path, forecaster: Forecaster
) -> None:
    good = layout(random_model, layers=(5, 4))
    expected, first = stopped(forecaster, good)  # so that it dies with the draft unanswered
    killer = psutil.Process(first)

    answers: list[BaseException | None] = []

    def ask() -> None:
        try:
            simulate(forecaster, good, FROM_LLAMA)
        except LoadFailed as error:
            answers.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: unread(first))
    killer.kill()
    asking.join(20)
    assert len(answers) == 1
    assert "SIGKILL" in str(answers[0])
    wait_until(lambda: forecaster.pid not in (None, first))
    assert simulate(forecaster, good, FROM_LLAMA) == expected


def test_a_helper_that_is_stopped_is_an_answer_and_another_helper_is_there(
    random_model: Path, forecaster: Forecaster
) -> None:
    good = layout(random_model, layers=(5, 4))
    expected, first = stopped(forecaster, good)
    with pytest.raises(LoadFailed, match="the forecast's process is stopped"):
        simulate(forecaster, good, FROM_LLAMA)
    assert not psutil.pid_exists(first)
    assert simulate(forecaster, good, FROM_LLAMA) == expected


# ── the helper's life ─────────────────────────────────────────────────────────────────────
def test_one_helper_answers_all_drafts_and_ends_when_released(random_model: Path, forecaster: Forecaster) -> None:
    pids = set()
    for counts in ((5, 4), (4, 5), (9, 0)):
        simulate(forecaster, layout(random_model, layers=counts), FROM_LLAMA)
        pids.add(forecaster.pid)
    assert len(pids) == 1
    forecaster.release()
    assert not forecaster.warm
    assert not psutil.pid_exists(pids.pop() or 0)


def test_another_environment_gets_another_helper(random_model: Path, forecaster: Forecaster) -> None:
    of = layout(random_model, layers=(5, 4))
    simulate(forecaster, of, FROM_LLAMA)
    first = forecaster.pid
    load_env = {"GGML_CUDA_P2P": "1"}
    simulate(forecaster, msgspec.structs.replace(of, env=load_env), FROM_LLAMA)
    assert forecaster.pid != first
    assert not psutil.pid_exists(first or 0)


def test_an_idle_helper_ends(random_model: Path, tmp_path: Path) -> None:
    forecaster = Forecaster(tmp_path / "helper.log", idle_s=0.05)
    simulate(forecaster, layout(random_model, layers=(5, 4)), FROM_LLAMA)
    wait_until(lambda: forecaster.pid is None)
    simulate(forecaster, layout(random_model, layers=(5, 4)), FROM_LLAMA)
    forecaster.release()
