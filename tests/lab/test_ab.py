"""A/Bs on real workers: a real difference, equal arms, an arm that does not load."""

from pathlib import Path

import msgspec
import pytest

from tests.lab.experiments import SHORT, Heard, begin, layout, workers
from tests.runs import made_run
from workbench.domain.conversation import Sampling
from workbench.domain.prompts import Prompt, PromptSet
from workbench.domain.samples import Planned
from workbench.lab.ab import judge, known_noise
from workbench.lab.progress import BlockDone, LoadEnded, SampleTaken
from workbench.lab.provenance import describe as describe_this
from workbench.store.documents import read_layout
from workbench.store.places import places
from workbench.store.runs import RunLog, read_run

ROOT = Path(__file__).parents[2]
ONE = PromptSet(name="one", defaults=Sampling(max_tokens=16), prompts=(Prompt(id="tides", text="Why two tides?"),))


@pytest.mark.alone
def test_a_real_difference_is_seen(tiny: Path) -> None:
    """The splits of two examples, on a model that loads at once."""
    examples = [read_layout(ROOT / "layouts" / f"demo-{name}.yaml") for name in ("single", "tensor")]
    heard = Heard()
    layouts = [msgspec.structs.replace(example, model=str(tiny)) for example in examples]
    experiment = begin(layouts, ONE, blocks=3, listener=heard)
    experiment.start()
    outcome = experiment.wait()
    effect = outcome.effect("decode")
    assert effect is not None
    assert effect.high is not None
    assert effect.high < 1
    assert effect.verdict == "slower"
    assert [event.load.arm for event in heard if isinstance(event, LoadEnded)] == list("ABBABAABABBA")
    # The result so far comes with each block.
    blocks = [event.outcome.effect("decode") for event in heard if isinstance(event, BlockDone)]
    assert [each and len(each.by_block) for each in blocks] == [1, 2, 3]
    assert blocks[-1] == effect
    again = judge(experiment.folder)
    assert again.effects == outcome.effects


def test_equal_arms_cannot_be_told_apart_fresh(tiny: Path) -> None:
    experiment = begin([layout(tiny), layout(tiny)], blocks=2)
    experiment.start()
    outcome = experiment.wait()
    effect = outcome.effect("decode")
    assert effect is not None
    assert effect.verdict == "can't tell apart"
    assert len(effect.by_block) == 2
    assert {parting.differ for parting in outcome.partings} == {0}
    assert {parting.compared for parting in outcome.partings} == {4}
    # Equal loads tell the noise between loads on this machine.
    noise = known_noise(outcome.header.machine)["decode"]
    assert noise.pairs == 4
    assert noise.sd > 0


def test_equal_arms_cannot_be_told_apart_resident(tiny: Path) -> None:
    heard = Heard()
    experiment = begin([layout(tiny), layout(tiny)], blocks=2, method="resident", listener=heard)
    experiment.start()
    outcome = experiment.wait()
    effect = outcome.effect("decode")
    assert effect is not None
    assert effect.verdict == "can't tell apart"
    assert [event.load.arm for event in heard if isinstance(event, LoadEnded)] == ["A", "B"]
    taken = [event.sample.planned for event in heard if isinstance(event, SampleTaken)]
    assert "".join(planned.arm for planned in taken) == "ABBAABBA" "BAABBAAB"
    assert any("no fresh loads have been compared on this machine" in caution for caution in outcome.cautions)
    assert workers() == []


def test_resident_takes_the_noise_that_fresh_loads_have_shown_here() -> None:
    def differs(planned: Planned) -> float:
        return 50.0 * (1.1 if planned.arm == "B" else 1.0) * (1 + 0.001 * planned.slot)

    resident = made_run(differs, blocks=3, method="resident")
    fresh = made_run(lambda planned: 50.0 + planned.slot, blocks=3)
    elsewhere = msgspec.structs.replace(resident.header.machine, host="elsewhere")
    for name, run in (("1", resident), ("2", fresh)):
        header = run.header if name == "1" else msgspec.structs.replace(fresh.header, machine=elsewhere)
        log = RunLog.create(places().runs / name, header)
        for sample in run.samples:
            log.append(sample)
        log.close()
    effect = judge(places().runs / "1").effect("decode")
    assert effect is not None
    assert (effect.verdict, effect.floor) == ("can't tell apart", None)
    log, _ = RunLog.reopen(places().runs / "2")
    log.update(fresh.header)
    log.close()
    effect = judge(places().runs / "1").effect("decode")
    assert effect is not None
    assert effect.floor is not None
    assert effect.floor > 0
    assert effect.verdict in ("faster", "can't tell apart")


def test_an_arm_that_does_not_load_is_a_row_and_the_other_is_measured(tiny: Path) -> None:
    good, bad = layout(tiny), layout(tiny, "huge", n_ctx=200_000)
    experiment = begin([good, bad], blocks=2)
    experiment.start()
    outcome = experiment.wait()
    a, b = outcome.arms
    assert (a.failure, a.loads, a.samples) == (None, 4, 4 * len(SHORT.prompts))
    assert b.failure is not None
    assert (b.loads, b.samples) == (0, 0)
    failed = [load for load in read_run(experiment.folder).loads if load.error is not None]
    assert [load.arm for load in failed] == ["B"]
    assert failed[0].card in ("RPC0", "RPC1")
    assert failed[0].wanted_mib is not None
    assert all(effect.verdict == "too few blocks" for effect in outcome.effects)


def test_a_model_that_is_not_there_is_a_row_too(tiny: Path, tmp_path: Path) -> None:
    experiment = begin([layout(tmp_path / "none.gguf"), layout(tiny)])
    experiment.start()
    a, b = experiment.wait().arms
    assert a.failure is not None
    assert "does not exist" in a.failure
    assert b.samples == 2 * len(SHORT.prompts)


def test_what_shapes_a_run_is_asked_of_this_machine(tiny: Path) -> None:
    found = describe_this([layout(tiny), msgspec.structs.replace(layout(tiny), env={"NCCL_DEBUG": "INFO"})])
    assert found.machine.cores >= 1
    assert found.build.supports_rpc
    assert "CPU" in found.build.system_info
    assert set(found.build.versions) == {"workbench", "python", "llama-cpp-python"}
    assert [arm.arm for arm in found.arms] == ["A", "B"]
    assert found.arms[0].env["OMP_WAIT_POLICY"] == "passive"
    assert "NCCL_DEBUG" not in found.arms[0].env
    assert found.arms[1].env["NCCL_DEBUG"] == "INFO"
    assert "PATH" not in found.arms[0].env
