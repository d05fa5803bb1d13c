"""A plan taken sample by sample on real workers."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from tests.lab.experiments import SHORT, Heard, begin, layout, resume, workers
from tests.meters.fake_nvml import FakeGpu, FakeNvmlLib
from tests.waiting import wait_until
from workbench.domain.card import Card, CardKind
from workbench.domain.conversation import Message, Sampling
from workbench.domain.memory import CardMemory
from workbench.domain.prompts import Prompt, PromptSet, Synthetic
from workbench.domain.samples import spoiled
from workbench.engines.engine import Loaded, Served
from workbench.engines.scripted import MODEL
from workbench.lab.ab import PromptDoesNotFit
from workbench.lab.conditions import MeterReader
from workbench.lab.progress import LoadEnded, LoadMoved, RunBegan, RunEnded, RunEvent, SampleTaken
from workbench.store.runs import RunError, read_run


def test_every_kind_of_prompt_is_measured_as_it_says(tiny: Path) -> None:
    prompts = PromptSet(
        name="kinds",
        defaults=Sampling(max_tokens=5),
        prompts=(
            Prompt(id="text", text="Hi", repeat=2),
            Prompt(id="made", synthetic=Synthetic(prompt_tokens=150, max_tokens=4)),
            Prompt(id="deep", text="Hi", depth=200),
            Prompt(id="system", system="Be terse.", text="Hi", max_tokens=3),
        ),
    )
    heard = Heard()
    experiment = begin([layout(tiny)], prompts, blocks=2, listener=heard)
    experiment.start()
    outcome = experiment.wait()
    run = read_run(experiment.folder)
    assert [sample.planned for sample in run.samples] == list(run.header.plan)
    assert run.problems == ()
    by_prompt = {sample.planned.prompt: sample for sample in run.samples if sample.planned.block == 0}
    timings = {prompt: sample.timing for prompt, sample in by_prompt.items()}
    assert all(timing is not None for timing in timings.values())
    assert {prompt: timing and timing.tokens for prompt, timing in timings.items()} == {
        "text": 5, "made": 4, "deep": 5, "system": 3,
    }  # fmt: skip
    made, deep, text = timings["made"], timings["deep"], timings["text"]
    assert made
    assert deep
    assert text
    assert made.evaluated_tokens == made.prompt_tokens == 150
    assert deep.evaluated_tokens == text.evaluated_tokens
    assert deep.prompt_tokens == text.prompt_tokens + 200
    assert len({sample.planned.salt for sample in run.samples}) == len(run.samples)
    for sample in run.samples:
        assert sample.text_sha256 == hashlib.sha256(sample.text.encode()).hexdigest()
        assert sample.timing is not None
        assert len(sample.tokens) == sample.timing.tokens
        assert [card.name for card in sample.conditions.cards] == ["RPC0", "RPC1"]
        assert sample.conditions.cards[0].ours_mib is not None
        assert sample.conditions.load_average is not None
        assert sample.left_out is None
    assert [load.load for load in run.loads] == [1, 2]
    resolved = run.header.arm("A").resolved
    assert resolved is not None
    assert resolved.n_ctx == 512
    assert resolved.model.size_bytes == tiny.stat().st_size
    assert outcome.effects == ()
    assert [type(event) for event in heard if isinstance(event, RunBegan | RunEnded)] == [RunBegan, RunEnded]
    taken = [event for event in heard if isinstance(event, SampleTaken)]
    assert [event.done for event in taken] == list(range(1, 11))
    assert taken[-1].left_s == 0
    assert workers() == []


def test_prompts_that_cannot_fit_are_named_before_anything_is_loaded(tiny: Path) -> None:
    prompts = PromptSet(name="s", prompts=(Prompt(id="a", text="Hi"), Prompt(id="long", text="Hi", depth=500)))
    with pytest.raises(PromptDoesNotFit, match=r"prompts\[1\]: `long` needs at least 629 tokens .* is 512 in even"):
        begin([layout(tiny)], prompts)


def test_a_prompt_that_turns_out_too_long_is_left_out_and_the_rest_used(tiny: Path) -> None:
    prompts = PromptSet(
        name="s",
        defaults=Sampling(max_tokens=4),
        prompts=(
            Prompt(id="long", text="word " * 400),
            Prompt(id="short", text="Hi"),
            Prompt(id="tight", text="x" * 470, max_tokens=20),
        ),
    )
    experiment = begin([layout(tiny)], prompts)
    experiment.start()
    (arm,) = experiment.wait().arms
    assert arm.samples == 1
    long, _, tight = read_run(experiment.folder).samples
    assert long.left_out is not None
    assert "the context holds 512" in long.left_out
    assert tight.left_out == "the reply does not fit n_ctx"
    assert tight.stop_reason == "context_full"


def test_a_prompt_that_the_engine_refuses_is_left_out_and_the_rest_used(tiny: Path) -> None:
    image = Prompt(id="image", messages=(Message("user", "Look.", images=("x.png",)),))
    for prompts, said in (((image, *SHORT.prompts), (None, 2)), ((image,), ("this engine reads no images", 0))):
        experiment = begin([layout(tiny)], PromptSet(name="images", prompts=prompts))
        experiment.start()
        (arm,) = experiment.wait().arms
        assert arm.samples == said[1]
        assert (arm.failure or "").startswith(said[0] or "")


def test_cancelled_and_gone_on_with_every_sample_is_there_once(tiny: Path) -> None:
    heard = Heard()
    experiment = begin([layout(tiny), layout(tiny, "3-1", tensor_split=(3, 1))], listener=heard)
    experiment.start()
    wait_until(lambda: sum(isinstance(event, SampleTaken) for event in heard) >= 3)
    experiment.cancel()
    experiment.wait()
    assert experiment.cancelled
    assert isinstance(heard[-1], RunEnded)
    assert heard[-1].cancelled
    assert workers() == []
    before = read_run(experiment.folder)
    assert 3 <= len(before.samples) < 8
    again = resume(experiment.folder)
    again.start()
    again.wait()
    after = read_run(experiment.folder)
    assert after.samples[: len(before.samples)] == before.samples
    assert {sample.planned for sample in after.samples} == set(after.header.plan)
    assert after.problems == ()
    assert again.outcome.taken == 8


def test_a_load_whose_line_was_damaged_lends_its_number_to_no_other(tiny: Path) -> None:
    experiment = begin([layout(tiny)], blocks=2)
    experiment.start()
    experiment.wait()
    path = experiment.folder / "samples.jsonl"
    first, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"?" + b"".join([first, *lines[:-1]]))
    again = resume(experiment.folder)
    again.start()
    again.wait()
    assert [sample.load for sample in read_run(experiment.folder).samples] == [1, 1, 2, 3]


def test_a_run_is_not_mixed_with_another_build_or_model(tiny: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(tiny.read_bytes())
    heard = Heard()
    experiment = begin([layout(model)], listener=heard, blocks=2)
    experiment.start()
    wait_until(lambda: any(isinstance(event, SampleTaken) for event in heard))
    experiment.cancel()
    experiment.wait()
    model.write_bytes(model.read_bytes() + b"\0")
    again = resume(experiment.folder)
    again.start()
    with pytest.raises(RunError, match="is not the model that this run began with"):
        again.wait()
    header = experiment.folder / "run.json"
    header.write_text(header.read_text().replace('"workbench": "1"', '"workbench": "0"'))
    with pytest.raises(RunError, match="begun with workbench 0, and this is workbench 1"):
        resume(experiment.folder)
    header.write_text(header.read_text().replace('"here"', '"there"'))
    with pytest.raises(RunError, match="begun on there"):
        resume(experiment.folder)


def test_a_worker_that_dies_costs_its_sample_and_the_load_is_made_anew(tiny: Path) -> None:
    killed: list[int] = []

    def kill_the_first(event: RunEvent) -> None:
        if isinstance(event, LoadEnded) and not killed:
            (worker,) = workers()
            killed.append(worker.pid)
            worker.kill()

    experiment = begin([layout(tiny)], listener=kill_the_first)
    experiment.start()
    (arm,) = experiment.wait().arms
    assert (arm.loads, arm.samples, arm.failure) == (2, 1, None)
    (why,) = arm.left_out
    assert "the engine died" in why


def test_a_worker_that_dies_while_it_loads_is_started_anew_and_given_up_in_the_end(tiny: Path) -> None:
    kills = [1]

    def kill(event: RunEvent) -> None:
        if isinstance(event, LoadMoved) and kills[0] and (found := workers()):
            kills[0] -= 1
            found[0].kill()

    experiment = begin([layout(tiny)], listener=kill)
    experiment.start()
    (arm,) = experiment.wait().arms
    assert (arm.loads, arm.samples, arm.failure, kills) == (1, 2, None, [0])
    kills[0] = 9
    experiment = begin([layout(tiny)], listener=kill)
    experiment.start()
    (arm,) = experiment.wait().arms
    assert arm.failure is not None
    assert (arm.loads, arm.samples, len(read_run(experiment.folder).loads)) == (0, 0, 3)


def test_an_arm_that_dies_again_and_again_is_given_up(tiny: Path) -> None:
    def kill_all(event: RunEvent) -> None:
        if isinstance(event, LoadEnded) and event.load.error is None:
            for worker in workers():
                worker.kill()

    experiment = begin([layout(tiny)], blocks=3, listener=kill_all)
    experiment.start()
    (arm,) = experiment.wait().arms
    assert arm.failure is not None
    assert (arm.loads, arm.samples) == (3, 0)
    assert experiment.outcome.taken == 3 < len(SHORT.prompts) * 3


def test_gpu_conditions_come_from_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    gpu = FakeGpu("00000000:C1:00.0")
    pynvml._nvmlGetFunctionPointer_cache.clear()
    monkeypatch.setattr(pynvml, "nvmlLib", FakeNvmlLib(gpu))
    gpu.processes, gpu.busy, gpu.energy_mj = {77: 29000}, {77: 90}, 1_000
    memory = CardMemory(name="CUDA0", weights_mib=1, kv_mib=1, compute_mib=1)
    loaded = Loaded(
        model=MODEL, cards=(memory,), host=memory, places=(), n_ctx=512, flash_attn=True, template="",
        template_is_fallback=False, load_s=1.0, pid=77,
    )  # fmt: skip
    reader = MeterReader(loaded, [Card(name="CUDA0", kind=CardKind.CUDA, pci_bus_id="0000:c1:00.0")])
    try:
        wait_until(lambda: reader.end().cards)
        reader.begin()
        gpu.energy_mj = 3_500
        (state,) = reader.end().cards
        assert (state.energy_j, state.foreign_percent, state.throttle) == (2.5, 0.0, ())
        assert (state.ours_mib, state.sm_clock_mhz, state.temperature_c) == (29000, 1980, 48)
        assert spoiled(reader.end()) is None
        reader.begin()
        gpu.energy_mj = 0
        (state,) = reader.end().cards
        assert state.energy_j is None  # the counter began anew
        gpu.busy = {77: 60, 5: 35}
        assert spoiled(reader.end()) == "another process used CUDA0 for 35 % of the time"
        gpu.throttle = 0x40
        wait_until(lambda: "throttled" in str(spoiled(reader.end())))
    finally:
        reader.close()
        pynvml._nvmlGetFunctionPointer_cache.clear()


def test_parts_of_a_gpu_share_its_energy_and_a_server_has_the_cards_that_it_holds_memory_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pynvml

    gpus = FakeGpu("00000000:C1:00.0"), FakeGpu("00000000:C2:00.0")
    pynvml._nvmlGetFunctionPointer_cache.clear()
    monkeypatch.setattr(pynvml, "nvmlLib", FakeNvmlLib(*gpus))
    gpus[0].processes = {77: 29000}
    memory = [CardMemory(name=f"CUDA{part}", weights_mib=1, kv_mib=1, compute_mib=1) for part in range(2)]
    loaded = Loaded(
        model=MODEL, cards=tuple(memory), host=memory[0], places=(), n_ctx=512, flash_attn=True, template="",
        template_is_fallback=False, load_s=1.0, pid=77,
    )  # fmt: skip
    served = msgspec.structs.replace(loaded, cards=(), pid=0, served=Served(name="s", url="", pids=(77,)))

    def taken(loaded: Loaded, *cards: Card) -> list[tuple[str, float | None, float | None]]:
        reader = MeterReader(loaded, cards)
        try:
            wait_until(lambda: reader.end().cards)
            reader.begin()
            for gpu in gpus:
                gpu.energy_mj += 3_000
            return [(state.name, state.energy_j, state.ours_mib) for state in reader.end().cards]
        finally:
            reader.close()

    parts = [Card(name=f"CUDA{at}", kind=CardKind.CUDA, pci_bus_id="0000:c1:00.0", parts=2) for at in range(2)]
    whole = [Card(name=f"CUDA{at}", kind=CardKind.CUDA, pci_bus_id=f"0000:c{at + 1}:00.0") for at in range(2)]
    assert taken(loaded, *parts) == [("CUDA0", 1.5, None), ("CUDA1", 1.5, None)]
    assert taken(served, *whole) == [("CUDA0", 3.0, 29000)]
    pynvml._nvmlGetFunctionPointer_cache.clear()
