"""How long an A/B or a replay will take, before and after its first block."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from workbench.domain.prompts import Prompt, PromptSet
from workbench.domain.run import Run
from workbench.domain.samples import Method, fixed_sampling
from workbench.domain.timing import Probe

START_S = 2.0
"""A worker's start, until it can load."""
WARM_UP_TOKENS = 32
"""What a load's warm-ups decode."""
CHARS_PER_TOKEN = 4
FRAME_TOKENS = 30
"""What the template and the number before a prompt add to it."""


def expected_s(
    prompts: PromptSet, *, loads: int, passes: int, load_s: float, probe: Probe | None
) -> float | None:
    """Seconds for `loads` loads and `passes` passes through the set at a probe's rates; None without one."""
    if probe is None or not probe.prefill_tok_s or probe.decode_tok_s <= 0:
        return None
    read = sum(_prompt_tokens(prompt) * prompt.repeat for prompt in prompts.prompts)
    said = sum(fixed_sampling(prompt, prompts.defaults).max_tokens * prompt.repeat for prompt in prompts.prompts)
    longest = max(_prompt_tokens(prompt) - prompt.depth for prompt in prompts.prompts)
    warm_up = (longest + FRAME_TOKENS) / probe.prefill_tok_s + WARM_UP_TOKENS / probe.decode_tok_s
    one_pass = read / probe.prefill_tok_s + said / probe.decode_tok_s
    return loads * (START_S + load_s + warm_up) + passes * one_pass


def loads_and_passes(arms: int, blocks: int, method: Method) -> tuple[int, int]:
    """How often layouts are loaded, and how often the set is gone through."""
    if arms == 1:
        return blocks, blocks
    return (2 if method == "resident" else 4 * blocks), 4 * blocks


def block_s(run: Run) -> float | None:
    """The median time between a block's first load and its last sample; None before there is any."""
    times: dict[int, list[float]] = defaultdict(list)
    for each in run.loads:
        times[each.block].append(each.at)
    for sample in run.samples:
        reply_s = 0.0 if sample.timing is None else sample.timing.ttft_s + sample.timing.decode_s
        times[sample.planned.block].append(sample.at + reply_s)
    spans = [max(of_block) - min(of_block) for of_block in times.values() if len(of_block) > 1]
    return statistics.median(spans) if spans else None


def in_words(seconds: float) -> str:
    """`0:45`, `2:05`, `1:02:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def roughly(seconds: float) -> str:
    """`45 s`, `3 min`, `1 h 20 min`: for a guess."""
    if seconds < 55:
        return f"{max(5, round(seconds / 5) * 5)} s"
    minutes = max(1, round(seconds / 60))
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def _prompt_tokens(prompt: Prompt) -> int:
    made = 0 if prompt.synthetic is None else prompt.synthetic.prompt_tokens
    said: Sequence[str] = [message.content for message in prompt.conversation()]
    return prompt.depth + made + sum(map(len, said)) // CHARS_PER_TOKEN + FRAME_TOKENS
