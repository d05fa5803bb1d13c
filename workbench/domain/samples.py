"""What a run plans to measure, what it measured, and which of that counts."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from workbench.domain.conversation import Message, Sampling, StopReason
from workbench.domain.memory import CardMemory
from workbench.domain.prompts import Prompt, PromptSet
from workbench.domain.timing import Timing

Arm = Literal["A", "B"]
Method = Literal["fresh", "resident"]
ORDERS: tuple[tuple[Arm, ...], ...] = (("A", "B", "B", "A"), ("B", "A", "A", "B"))
DEFAULT_BLOCKS = 4
DEFAULT_MAX_TOKENS = 128
"""The length of a reply whose prompt set leaves it open."""
MOST_SAMPLES = 100_000
"""Of a run: what is written down of each is held in memory, and all are to have salts of their own."""
SALTS = 900_000
"""Prompts are made unique by a number below this; warm-ups take theirs from above."""
FOREIGN_PERCENT = 5.0
"""A card that other processes keep busy for more than this share of the time spoils a sample."""
LARGEST = 2.0**36
"""No time in seconds and no count is larger; of seconds since 1970 a date can still be made."""
SMALLEST = 1e-9
"""No time but none at all is shorter."""
SLOWED = frozenset({"hardware slowdown", "hardware thermal", "hardware power brake", "software thermal"})
"""Throttle reasons that spoil a sample. A power cap does not: under load it is a card's ordinary state."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A sample to be taken: prompt `prompt` for the `repeat`th time, in one of a block's loads.

    `slot` counts the loads of a block. `salt` makes the prompt unique; both arms use the same
    ones, so that their outputs can be compared, unless they are on one server.
    """

    block: int
    slot: int
    arm: Arm
    prompt: str
    repeat: int
    salt: int

    @property
    def key(self) -> str:
        """A name of its own within the run."""
        return f"{self.block}.{self.slot}.{self.repeat}.{self.prompt}"


class CardState(msgspec.Struct, frozen=True, kw_only=True):
    """One card while a sample was taken; None where nobody knows.

    `throttle` lists what slowed the card down. `foreign_percent` is how long other processes
    kept it busy, `energy_j` what it used from the request to the end of the reply.
    """

    name: str
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] | None = None
    foreign_percent: float | None = None
    used_mib: float | None = None
    ours_mib: float | None = None
    energy_j: float | None = None


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Under what a sample was taken. `load_average` is the host's over one minute."""

    cards: tuple[CardState, ...] = ()
    load_average: float | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True, tag="sample"):
    """One planned sample, taken. `at` is seconds since 1970, `load` the worker that answered.

    `left_out` is the rule that keeps it out of the figures, None for one that counts; without
    `timing` there was no whole reply.
    """

    planned: Planned
    load: int
    at: float
    split: str
    timing: Timing | None = None
    stop_reason: StopReason | None = None
    text: str = ""
    text_sha256: str = ""
    tokens: tuple[int, ...] = ()
    conditions: Conditions = Conditions()
    left_out: str | None = None


class LoadRecord(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """One load of an arm, as it came out; `error` says why it did not load, `card` on which card."""

    load: int
    arm: Arm
    block: int
    slot: int
    at: float
    split: str
    load_s: float | None = None
    n_ctx: int | None = None
    flash_attn: bool | None = None
    cards: tuple[CardMemory, ...] = ()
    host: CardMemory | None = None
    warnings: tuple[str, ...] = ()
    error: str | None = None
    card: str | None = None
    wanted_mib: float | None = None
    free_mib: float | None = None


def is_plausible(record: Sample | LoadRecord) -> bool:
    """Whether its figures can be true: from 0 up, and not beyond all measure."""
    figures: list[float | None] = [record.at, record.load]
    if isinstance(record, LoadRecord):
        figures += [record.load_s, record.n_ctx, record.block, record.slot]
        cards = (*record.cards, *(() if record.host is None else (record.host,)))
        figures += [mib for card in cards for mib in (card.weights_mib, card.kv_mib, card.compute_mib)]
    else:
        figures += [card.energy_j for card in record.conditions.cards]
        figures += [card.used_mib for card in record.conditions.cards]
        figures += [card.ours_mib for card in record.conditions.cards]
        if record.timing is not None:
            figures += [value for value in msgspec.structs.astuple(record.timing) if isinstance(value, int | float)]
    return all(figure is None or figure == 0 or SMALLEST <= figure < LARGEST for figure in figures)


def too_long(prompts: PromptSet, blocks: int, arms: int) -> str | None:
    """Why a run of so many blocks is too long to be planned; None if it is not. One arm has a load a block."""
    passes = sum(prompt.repeat for prompt in prompts.prompts) * (len(ORDERS[0]) if arms > 1 else 1)
    if blocks * passes <= MOST_SAMPLES:
        return None
    unit = "block" if arms > 1 else "load"
    most = MOST_SAMPLES // passes
    helps = f"ask for at most {most} {unit}{'' if most == 1 else 's'}" if most else "take fewer prompts or repeats"
    return f"{blocks * passes} samples are more than a run can have, {MOST_SAMPLES}; {helps}"


def plan_ab(
    prompts: PromptSet, blocks: int, method: Method, offset: int, *, one_server: bool = False
) -> tuple[Planned, ...]:
    """Blocks ABBA and BAAB in turn: of loads (fresh), or of samples prompt by prompt (resident).

    On `one_server` the arms share no salt: its cache would know the prompt from the other arm.
    """
    return _plan(prompts, [ORDERS[block % 2] for block in range(blocks)], method, offset, one_server)


def plan_replay(prompts: PromptSet, loads: int, offset: int) -> tuple[Planned, ...]:
    """The set through one layout, `loads` times."""
    return _plan(prompts, [("A",)] * loads, "fresh", offset)


def _plan(
    prompts: PromptSet, orders: Sequence[tuple[Arm, ...]], method: Method, offset: int, one_server: bool = False
) -> tuple[Planned, ...]:
    sent = [(prompt.id, repeat) for prompt in prompts.prompts for repeat in range(prompt.repeat)]

    def take(block: int, slot: int, at: int) -> Planned:
        order = orders[block]
        times, time = (len(order), slot) if one_server else (2, order[:slot].count(order[slot]))
        prompt, repeat = sent[at]
        salt = (offset + (block * times + time) * len(sent) + at) % SALTS
        return Planned(block=block, slot=slot, arm=order[slot], prompt=prompt, repeat=repeat, salt=salt)

    def in_order() -> Iterator[Planned]:
        for block, order in enumerate(orders):
            if method == "fresh":
                yield from (take(block, slot, at) for slot in range(len(order)) for at in range(len(sent)))
            else:
                yield from (take(block, slot, at) for at in range(len(sent)) for slot in range(len(order)))

    return tuple(in_order())


def fixed_sampling(prompt: Prompt, defaults: Sampling) -> Sampling:
    """How a prompt is answered when it is measured: greedy and of fixed length.

    What the prompt itself says of temperature and of the reply's end is kept, with a seed.
    """
    sampling = prompt.sampling(defaults)
    return msgspec.structs.replace(
        sampling,
        max_tokens=sampling.max_tokens or DEFAULT_MAX_TOKENS,
        temperature=prompt.temperature or 0.0,
        ignore_eos=prompt.ignore_eos is not False,
        seed=1 if sampling.seed is None else sampling.seed,
    )


def unique(messages: Sequence[Message], salt: int) -> tuple[Message, ...]:
    """The messages with a number before the first, so that no cache has seen their beginning."""
    if not messages:
        return ()
    first = msgspec.structs.replace(messages[0], content=f"No. {salt:06d}\n{messages[0].content}")
    return (first, *messages[1:])


def spoiled(conditions: Conditions) -> str | None:
    """The rule that leaves a sample out, or None."""
    for card in conditions.cards:
        slowed = [reason for reason in card.throttle or () if reason in SLOWED]
        if slowed:
            return f"{card.name} was throttled: {', '.join(slowed)}"
        if card.foreign_percent is not None and card.foreign_percent > FOREIGN_PERCENT:
            return f"another process used {card.name} for {card.foreign_percent:.0f} % of the time"
    return None


def fits(prompt: Prompt, defaults: Sampling, n_ctx: int) -> str | None:
    """Why a prompt of known length cannot be measured within `n_ctx`; None if it can, or nobody knows yet."""
    made = prompt.synthetic.prompt_tokens if prompt.synthetic else 1
    needed = prompt.depth + made + fixed_sampling(prompt, defaults).max_tokens
    if needed <= n_ctx:
        return None
    least = "" if prompt.synthetic else "at least "
    return f"needs {least}{needed} tokens with its reply, n_ctx is {n_ctx}"
