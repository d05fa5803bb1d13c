"""Forecasts against what is free: virtual cards for real, CUDA cards by a stand-in for NVML."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pynvml
import pytest

from tests.meters.fake_nvml import FakeGpu, FakeNvmlLib
from tests.waiting import wait_until
from workbench.domain.card import Card, CardKind
from workbench.domain.forecast import Forecast
from workbench.domain.layout import Context, Layout
from workbench.domain.memory import CardMemory
from workbench.domain.split import Split, Virtual
from workbench.engines.engine import Loaded, LoadFailed, ModelInfo
from workbench.lab.forecast import Answer, DraftForecasts, Forecasts, said
from workbench.lab.plan import plan_load
from workbench.lab.rooms import DRIVER_CONTEXT_MIB, Rooms, Running
from workbench.store.load_errors import LoadErrors

NAMES = ("CUDA0", "CUDA1")


def layout(split: Split, n_ctx: int = 4096) -> Layout:
    return Layout(name="test", model="demo:smollm2", split=split, context=Context(n_ctx=n_ctx))


def virtual(*sizes: str, **split: object) -> Layout:
    return layout(Split(cards=Virtual(sizes), **split))  # type: ignore[arg-type]


def loaded(of: Sequence[CardMemory]) -> Loaded:
    info = ModelInfo(
        path="", name="", arch="llama", quantisation="", n_layer=30, n_ctx_train=8192, n_params=1, size_mib=1
    )
    host = CardMemory(name="CPU", weights_mib=0, kv_mib=0, compute_mib=0)
    return Loaded(model=info, cards=tuple(of), host=host, places=(), n_ctx=4096, flash_attn=True, template="",
                  template_is_fallback=False, load_s=0, pid=1)  # fmt: skip


def held(name: str, mib: float) -> CardMemory:
    return CardMemory(name=name, weights_mib=mib, kv_mib=0, compute_mib=0)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeGpu, FakeGpu]]:
    """Two cards of 10 000 MiB of which 9 500 are in use: a helper looks at stand-ins instead."""
    cards = (
        FakeGpu("00000000:C1:00.0", uuid="GPU-a", total_mib=10000),
        FakeGpu("00000000:C2:00.0", uuid="GPU-b", total_mib=10000),
    )
    for gpu in cards:
        gpu.used_mib, gpu.reserved_mib = 9500, 0
    pynvml._nvmlGetFunctionPointer_cache.clear()
    monkeypatch.setattr(pynvml, "nvmlLib", FakeNvmlLib(*cards))
    yield cards
    pynvml._nvmlGetFunctionPointer_cache.clear()


def cuda_cards(_layout: Layout) -> tuple[Card, ...]:
    return tuple(
        Card(name=name, kind=CardKind.CUDA, pci_bus_id=f"0000:c{i + 1}:00.0", uuid=f"GPU-{'ab'[i]}", total_mib=10000.0)
        for i, name in enumerate(NAMES)
    )


@pytest.fixture
def open_forecasts() -> Iterator[Callable[..., Forecasts]]:
    opened: list[Forecasts] = []

    def make(cards: Callable[[Layout], Sequence[Card]] = lambda _layout: (), **how: bool) -> Forecasts:
        opened.append(Forecasts(cards, **how))
        return opened[-1]

    yield make
    for forecasts in opened:
        forecasts.close()


# ── what is free ──────────────────────────────────────────────────────────────────────────
def test_what_the_running_layout_holds_comes_back_and_the_helper_does_not_count(
    gpus: tuple[FakeGpu, FakeGpu], tmp_path: Path
) -> None:
    rooms = Rooms(cuda_cards, LoadErrors(tmp_path))
    of = layout(Split(layers=(16, 15), cards=NAMES))
    load = plan_load(of, "", lambda: cuda_cards(of))
    running = Running(of, loaded([held("CUDA0", 5000.0), held("CUDA1", 3000.0)]))
    first, second, host = rooms.of(of, load, running, load.cards)
    assert (first.beside_mib, first.free_mib) == (500, 500 + 5000 + DRIVER_CONTEXT_MIB)
    assert (second.beside_mib, second.free_mib) == (500, 500 + 3000 + DRIVER_CONTEXT_MIB)
    assert host.free_mib == host.beside_mib
    rooms.note_helper({"CUDA0": 500.0, "CUDA1": 500.0}, {"CUDA0": 0.0, "CUDA1": 100.0})
    for gpu, free in zip(gpus, (0, 100), strict=True):
        gpu.used_mib = 10000 - free
    again = rooms.of(of, load, None, ())
    assert [room.beside_mib for room in again[:2]] == [500.0, 500.0]
    assert [room.other_mib for room in again[:2]] == [500.0, 400.0]
    rooms.close()


def test_virtual_cards_share_the_hosts_memory(open_forecasts: Callable[..., Forecasts]) -> None:
    answer = open_forecasts().forecast(virtual("600MiB", "300MiB", layers=(16, 15)))
    assert [card.free_mib for card in answer.cards] == [600.0, 300.0]
    assert answer.fits is True
    assert answer.beside is True


def test_a_full_card_is_forecast_without_a_context_on_it(
    gpus: tuple[FakeGpu, FakeGpu], open_forecasts: Callable[..., Forecasts]
) -> None:
    forecasts = open_forecasts(cuda_cards)
    answer = forecasts.forecast(layout(Split(layers=(16, 15), cards=NAMES)))
    assert [card.name for card in answer.cards] == list(NAMES)
    assert answer.cards[0].weights_mib == pytest.approx(33.8, abs=0.1)
    assert answer.fits is False
    assert "on card" in answer.sentence()


# ── learning ──────────────────────────────────────────────────────────────────────────────
def test_what_a_load_took_corrects_the_next_forecast(
    gpus: tuple[FakeGpu, FakeGpu], open_forecasts: Callable[..., Forecasts]
) -> None:
    forecasts = open_forecasts(cuda_cards)
    of = layout(Split(layers=(16, 15), cards=NAMES))
    before = forecasts.forecast(of)
    assert [(card.other_mib, card.loads) for card in before.cards] == [(DRIVER_CONTEXT_MIB, 0)] * 2
    forecasts.before_load(of)
    for gpu, card, context in zip(gpus, before.cards, (450, 460), strict=True):
        gpu.used_mib += round(card.total_mib - card.other_mib) + context
    measured = [
        CardMemory(name=c.name, weights_mib=c.weights_mib, kv_mib=c.kv_mib, compute_mib=c.compute_mib)
        for c in before.cards
    ]
    accounts = forecasts.after_load(of, loaded(measured))
    assert [account.other_mib for account in accounts] == pytest.approx([450, 460], abs=1)
    assert [account.foreign_mib for account in accounts] == pytest.approx([9500, 9500], abs=1)
    assert all(kind.error_mib == 0 for account in accounts for kind in account.kinds)
    after = open_forecasts(cuda_cards).forecast(of)
    assert [card.other_mib for card in after.cards] == pytest.approx([450, 460], abs=1)
    assert [card.loads for card in after.cards] == [1, 1]


def test_a_load_that_nobody_forecast_or_that_failed_teaches_nothing(open_forecasts: Callable[..., Forecasts]) -> None:
    forecasts = open_forecasts()
    of = virtual("600MiB", "600MiB", layers=(16, 15))
    forecasts.before_load(of)
    assert forecasts.after_load(of, loaded([held("RPC0", 1.0), held("RPC1", 1.0)])) == ()
    forecasts.forecast(of)
    forecasts.before_load(of)
    assert forecasts.after_load(of, None) == ()


# ── tensor_split: auto ────────────────────────────────────────────────────────────────────
def test_an_automatic_split_takes_one_card_or_comes_out_so_that_it_fits(
    open_forecasts: Callable[..., Forecasts],
) -> None:
    forecasts = open_forecasts()
    assert forecasts.resolve(virtual("200MiB", "600MiB")).split.layers == (0, 31)
    for sizes in (("200MiB", "240MiB"), ("240MiB", "200MiB"), ("150MiB", "150MiB", "170MiB")):
        answer = forecasts.forecast(virtual(*sizes))
        assert answer.split.layers is not None
        assert sum(answer.split.layers) == 31
        assert answer.fits is True, (sizes, answer.split.layers, answer.sentence())


def test_an_automatic_tensor_split_has_shares_that_fit(open_forecasts: Callable[..., Forecasts]) -> None:
    answer = open_forecasts().forecast(virtual("290MiB", "190MiB", split_mode="tensor"))
    assert not isinstance(answer.split.tensor_split, str)
    assert answer.split.tensor_split[0] > answer.split.tensor_split[1]
    assert answer.fits is True, answer.sentence()


# ── drafts ────────────────────────────────────────────────────────────────────────────────
class Heard:
    """What a DraftForecasts told, and from which thread."""

    def __init__(self) -> None:
        self.answers: list[tuple[Layout, Answer]] = []
        self.threads: set[str] = set()

    def __call__(self, of: Layout, answer: Answer) -> None:
        self.answers.append((of, answer))
        self.threads.add(threading.current_thread().name)


def test_only_the_newest_draft_is_answered_and_its_limits_follow(open_forecasts: Callable[..., Forecasts]) -> None:
    heard = Heard()
    drafts = DraftForecasts(open_forecasts(), heard)
    asked = [virtual("600MiB", "600MiB", layers=(31 - moved, moved)) for moved in range(25)]
    for of in asked:
        drafts.ask(of)
    wait_until(lambda: len(heard.answers) >= 2 and heard.answers[-1][0] == asked[-1])
    wait_until(lambda: isinstance(answer := heard.answers[-1][1], Forecast) and answer.max_n_ctx is not None)
    drafts.close()
    assert len({of.split.layers for of, _ in heard.answers}) <= 2
    assert heard.threads == {"forecasts"}
    assert [answer.max_n_ctx is None for of, answer in heard.answers[-2:] if isinstance(answer, Forecast)] == [
        True,
        False,
    ]


def test_a_draft_that_cannot_load_is_told_with_its_reason(open_forecasts: Callable[..., Forecasts]) -> None:
    heard = Heard()
    drafts = DraftForecasts(open_forecasts(), heard)
    drafts.ask(virtual("600MiB", "600MiB", split_mode="row", tensor_split=(1.0, 1.0)))
    wait_until(lambda: heard.answers)
    drafts.close()
    assert isinstance(heard.answers[0][1], LoadFailed)
    assert said(heard.answers[0][1]).startswith("cannot load: ")


def test_a_dropped_draft_is_not_answered(open_forecasts: Callable[..., Forecasts]) -> None:
    heard = Heard()
    drafts = DraftForecasts(open_forecasts(), heard)
    drafts.ask(virtual("600MiB", "600MiB", layers=(16, 15)))
    drafts.drop()
    last = virtual("600MiB", "600MiB", layers=(20, 11))
    drafts.ask(last)
    wait_until(lambda: heard.answers)
    drafts.close()
    assert {of.split for of, _ in heard.answers} == {last.split}
