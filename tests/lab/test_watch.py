"""What a reply took, from the snapshots around it."""

from collections.abc import Callable

import msgspec
import pytest

from workbench.domain.card import Card, CardKind
from workbench.domain.conversation import Turn
from workbench.domain.duty import Duty
from workbench.domain.layout import Layout
from workbench.domain.memory import CardMemory
from workbench.domain.split import Split
from workbench.domain.timing import Timing
from workbench.engines.engine import Loaded, ModelInfo
from workbench.lab import events
from workbench.lab.watch import Watch, host_layers
from workbench.meters.board import Watching
from workbench.meters.sample import CardSample, HostSample, Snapshot
from workbench.meters.sampler import Pace, Sampler

HOST = HostSample(cpu_percent=10.0, total_mib=64000.0, available_mib=1.0, engine_cores=1.0)
MODEL = ModelInfo(
    path="m.gguf", name="m", arch="llama", quantisation="Q4_1", n_layer=3, n_ctx_train=8, n_params=1, size_mib=1
)  # fmt: skip


class HandFed(Sampler):
    """Reads nothing; the test hands the snapshots over."""

    def __init__(self, listener: Callable[[Snapshot], None]) -> None:
        super().__init__(listener)
        self.feed = listener
        self.marks = 0
        self.watching = Watching()

    def watch(self, watching: Watching) -> None:
        self.watching = watching

    def mark(self) -> int:
        self.marks += 1
        return self.marks


class Stand:
    """A watch over two cards, with a clock."""

    def __init__(self, *, parts: int = 1, places: tuple[str, ...] = ("CUDA0", "CUDA0", "CUDA0", "CUDA1")) -> None:
        self.now = 0.0
        self.seen: list[Snapshot] = []
        self.duties: list[Duty] = []
        self.fed: list[HandFed] = []
        cards = [
            Card(name=f"CUDA{i}", kind=CardKind.CUDA, pci_bus_id=f"0000:0{i}:00.0", parts=parts) for i in range(2)
        ]
        memory = tuple(
            CardMemory(name=card.name, weights_mib=places.count(card.name), kv_mib=1, compute_mib=1)
            for card in cards
        )
        self.loaded = Loaded(
            model=MODEL, cards=memory, host=memory[0], places=places, n_ctx=8, flash_attn=True, template="",
            template_is_fallback=False, load_s=1, pid=42,
        )  # fmt: skip

        def make(listener: Callable[[Snapshot], None]) -> Sampler:
            self.fed.append(HandFed(listener))
            return self.fed[0]

        self.watch = Watch(self.seen.append, self.duties.append, make_sampler=make, clock=lambda: self.now)
        self.watch.watch(self.loaded, cards)
        layout = Layout(name="a", model="m", split=Split())
        self.watch.hear(events.LayoutLoaded(layout, self.loaded, "first", 0.0))

    def read(self, at: float, busy: tuple[float, float], joules: tuple[float, float] | None = None) -> None:
        """A snapshot; with `joules` the energy was read at that moment."""
        self.now = at
        before = self.seen[-1].cards if self.seen else ()
        cards = []
        for i in range(2):
            sample = CardSample(name=f"CUDA{i}", utilisation=busy[i])
            if joules is not None:
                sample = msgspec.structs.replace(sample, energy_j=joules[i], energy_at=at)
            elif before:
                kept = before[i]
                sample = msgspec.structs.replace(sample, energy_j=kept.energy_j, energy_at=kept.energy_at)
            cards.append(sample)
        self.fed[0].feed(Snapshot(at=at, cards=tuple(cards), host=HOST, mark=self.fed[0].marks))

    def begin(self, at: float) -> None:
        self.now = at
        self.watch.hear(events.TurnStarted(0, "why"))

    def end(self, at: float, tokens: int = 100) -> None:
        self.now = at
        timing = Timing(
            prompt_tokens=1, evaluated_tokens=1, tokens=tokens, decoded_tokens=tokens, ttft_s=0, prefill_s=0, decode_s=1
        )
        self.watch.hear(events.TurnDone(0, Turn(prompt="why", reply="so", stop_reason="stop", timing=timing)))


def test_a_reply_is_accounted_for_when_its_last_reading_is_there() -> None:
    stand = Stand()
    stand.read(0.0, (0, 0), (1000, 500))
    stand.begin(10.0)
    stand.read(10.01, (0, 0), (2000, 1000))
    stand.read(10.5, (75, 25))
    stand.read(11.0, (75, 25))
    stand.end(14.0)
    assert stand.duties == []
    stand.read(14.01, (75, 25), (3604, 1401))
    (duty,) = stand.duties
    assert duty.tokens == 100
    assert duty.seconds == pytest.approx(4)
    assert [card.share for card in duty.cards] == pytest.approx([0.75, 0.25])
    assert [card.ideal for card in duty.cards] == pytest.approx([0.75, 0.25])
    assert duty.idle == pytest.approx(0)
    assert [card.joules for card in duty.cards] == pytest.approx([1600, 400], rel=0.01)
    assert duty.host is None


def test_what_was_before_the_reply_is_no_part_of_it() -> None:
    stand = Stand()
    stand.read(9.9, (100, 100), (0, 0))
    stand.begin(10.0)
    stand.read(10.01, (100, 100), (0, 0))
    stand.read(10.5, (60, 20))
    stand.end(11.0)
    stand.read(11.01, (60, 20), (1, 1))
    assert [card.busy for card in stand.duties[0].cards] == pytest.approx([0.6, 0.2])


def test_of_a_very_short_reply_the_last_reading_must_do() -> None:
    stand = Stand()
    stand.begin(10.0)
    stand.end(10.1)
    stand.read(10.12, (60, 20), (5, 5))
    assert [card.busy for card in stand.duties[0].cards] == pytest.approx([0.6, 0.2])
    assert stand.duties[0].joules is None
    assert stand.duties[0].approximate


def test_parts_of_one_gpu_share_its_energy_and_their_work_is_not_told_apart() -> None:
    stand = Stand(parts=2)
    stand.read(9.0, (0, 0), (0, 0))
    stand.begin(10.0)
    stand.read(10.0, (90, 90), (1000, 1000))
    stand.end(14.0)
    stand.read(14.0, (90, 90), (3000, 3000))
    (duty,) = stand.duties
    assert duty.joules == pytest.approx(2000)
    assert [card.share for card in duty.cards] == [None, None]
    assert duty.idle is None


def test_a_turn_without_a_reply_is_not_accounted_for() -> None:
    stand = Stand()
    stand.begin(10.0)
    stand.watch.hear(events.PromptReturned("why", "no model"))
    stand.read(11.0, (0, 0))
    stand.begin(12.0)
    stand.end(13.0, tokens=0)
    stand.read(13.0, (0, 0))
    assert stand.duties == []
    assert len(stand.seen) == 2


def test_while_the_meters_are_off_no_reply_is_accounted_for() -> None:
    stand = Stand()
    stand.watch.pace = Pace.OFF
    stand.begin(10.0)
    stand.end(14.0)
    assert stand.fed[0].marks == 0


def test_layers_on_the_cpu_take_their_part_of_the_time() -> None:
    stand = Stand(places=("CPU", "CPU", "CUDA0", "CUDA1"))
    assert host_layers(stand.loaded) == (0, 1)
    assert host_layers(Stand().loaded) is None
    stand.begin(10.0)
    stand.read(10.0, (0, 0))
    stand.end(14.0)
    stand.read(14.0, (15, 10))
    assert stand.duties[0].host == pytest.approx(0.75)


def test_the_watch_follows_the_load() -> None:
    stand = Stand()
    watching = stand.fed[0].watching
    assert [card.name for card in watching.cards] == ["CUDA0", "CUDA1"]
    assert watching.engine_pid == 42
    assert [path.name for path in watching.model_files] == ["m.gguf"]
