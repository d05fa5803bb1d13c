"""Made-up runs for tests: samples of given speeds."""

from collections.abc import Callable, Mapping

import msgspec

from tests.benchmarks.calibration import header_of
from workbench.domain.conversation import Sampling
from workbench.domain.prompts import Prompt, PromptSet
from workbench.domain.run import Run, RunHeader
from workbench.domain.samples import LoadRecord, Method, Planned, Sample
from workbench.domain.timing import Timing

TWO_PROMPTS = PromptSet(
    name="two",
    defaults=Sampling(max_tokens=11),
    prompts=(Prompt(id="rivers", text="Write on rivers."), Prompt(id="tides", text="Why two tides?")),
)
Speed = Callable[[Planned], float]


def timing(speed: float) -> Timing:
    """Ten tokens decoded, twenty evaluated, at `speed` and ten times that."""
    return Timing(
        prompt_tokens=20,
        evaluated_tokens=20,
        tokens=11,
        decoded_tokens=10,
        ttft_s=2 / speed,
        prefill_s=2 / speed,
        decode_s=10 / speed,
    )


def sample(planned: Planned, speed: float, **fields: object) -> Sample:
    made = Sample(
        planned=planned, load=planned.block * 4 + planned.slot + 1, at=0.0, split="layer 1:1", timing=timing(speed)
    )
    return msgspec.structs.replace(made, **fields)


def made_run(
    speed: Speed, blocks: int = 2, method: Method = "fresh", prompts: PromptSet = TWO_PROMPTS,
    texts: Mapping[str, str] | None = None,
) -> Run:  # fmt: skip
    """A whole run; `texts` are the outputs of each arm."""
    header = header_of(blocks, method, prompts)
    said = texts or {}
    samples = tuple(sample(planned, speed(planned), text=said.get(planned.arm, "same")) for planned in header.plan)
    return Run(header=header, samples=samples, loads=loads_of(header))


def loads_of(header: RunHeader) -> tuple[LoadRecord, ...]:
    seen = dict.fromkeys((planned.block, planned.slot, planned.arm) for planned in header.plan)
    return tuple(
        LoadRecord(load=block * 4 + slot + 1, arm=arm, block=block, slot=slot, at=0.0, split="layer 1:1", load_s=2.0)
        for block, slot, arm in seen
    )
