"""What a run came to: each arm's figures, the effects, where outputs part, and what to be careful about."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from workbench.domain.comparison import METRICS, Effect, LoadNoise, Metric, compare, out_of_turn, speed
from workbench.domain.curve import Length, lengths
from workbench.domain.duty import SHORT_S
from workbench.domain.layout import on_one_server
from workbench.domain.memory import with_sizes
from workbench.domain.run import ArmHeader, Run, RunHeader
from workbench.domain.samples import Arm, LoadRecord, Sample
from workbench.domain.split import Virtual

BUSY_SHARE = 0.5
"""A host whose load average exceeds its cores by more than this share is called busy."""


class CardPeak(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a card held for an arm, in MiB."""

    name: str
    mib: float


class ArmOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's figures over the samples that count; None where there are none.

    `ttft_s` is a mean, `load_s` a median; `joules_per_token` counts all cards, of which each must tell,
    and all of a sample's energy, prefill too; `joules_approximate` says that samples were too
    short for the energy counters. `left_out` counts samples by the rule that left them out.
    `by_load` has each load's speed by metric, seconds for the first token. `failure` is why the
    arm does not load.
    """

    arm: Arm
    name: str
    split: str
    failure: str | None
    loads: int
    samples: int
    left_out: dict[str, int]
    prefill_tok_s: float | None
    decode_tok_s: float | None
    ttft_s: float | None
    by_load: dict[Metric, tuple[float, ...]]
    load_s: float | None
    joules_per_token: float | None
    joules_approximate: bool
    peaks: tuple[CardPeak, ...]


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of one prompt in both arms: of `compared` pairs `differ` are not the same.

    `first` is the smallest index at which two of them part, None if all are the same: of a
    `unit`, which is a character where a server told its text only.
    """

    prompt: str
    compared: int
    differ: int
    first: int | None
    unit: Literal["token", "character"] = "token"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A run's result so far. `effects` is empty without a second arm, `lengths` where prompts are of one length."""

    header: RunHeader
    taken: int
    arms: tuple[ArmOutcome, ...]
    effects: tuple[Effect, ...]
    partings: tuple[Parting, ...]
    lengths: tuple[Length, ...]
    cautions: tuple[str, ...]

    def effect(self, metric: Metric) -> Effect | None:
        """One metric's effect."""
        return next((effect for effect in self.effects if effect.metric == metric), None)


def outcome(run: Run, known: Mapping[Metric, LoadNoise] | None = None) -> Outcome:
    """The result so far. `known` is what fresh loads have shown on this machine, for a resident run."""
    header = run.header
    arms = tuple(_arm(each, run) for each in header.arms)
    both = header.kind == "ab"
    effects = compare(run.samples, header.method, known) if both else ()
    return Outcome(
        header=header,
        taken=len(run.samples),
        arms=arms,
        effects=effects,
        partings=_partings(run) if both else (),
        lengths=lengths(run),
        cautions=(*_cautions(run, arms, known), *run.problems),
    )


def _arm(header: ArmHeader, run: Run) -> ArmOutcome:
    samples = run.of(header.arm)
    loads = [load for load in run.loads if load.arm == header.arm]
    good = [load for load in loads if load.error is None]
    first = speed(samples, "ttft")
    times = [load.load_s for load in good if load.load_s is not None]
    return ArmOutcome(
        arm=header.arm,
        name=header.layout.name,
        split=header.layout.label(),
        failure=_failure(loads[-1]) if loads else None,
        loads=len(good),
        samples=sum(1 for sample in samples if sample.left_out is None),
        left_out=dict(Counter(sample.left_out for sample in samples if sample.left_out is not None)),
        prefill_tok_s=speed(samples, "prefill"),
        decode_tok_s=speed(samples, "decode"),
        ttft_s=None if first is None else 1 / first,
        by_load={metric: _by_load(samples, metric) for metric in METRICS},
        load_s=statistics.median(times) if times else None,
        joules_per_token=_joules_per_token(samples),
        joules_approximate=_are_short(samples),
        peaks=_peaks(samples, good),
    )


def _by_load(samples: Sequence[Sample], metric: Metric) -> tuple[float, ...]:
    loads: dict[int, list[Sample]] = {}
    for sample in samples:
        loads.setdefault(sample.load, []).append(sample)
    speeds = [found for of_load in loads.values() if (found := speed(of_load, metric)) is not None]
    return tuple(1 / found if metric == "ttft" else found for found in speeds)


def _failure(load: LoadRecord) -> str | None:
    if load.error is None:
        return None
    return with_sizes(load.error, load.card, load.wanted_mib, load.free_mib)


def _joules_per_token(samples: Sequence[Sample]) -> float | None:
    joules, tokens = 0.0, 0
    for sample in samples:
        cards = sample.conditions.cards
        used = [card.energy_j for card in cards if card.energy_j is not None]
        if used and len(used) == len(cards) and sample.timing is not None and sample.left_out is None:
            joules += sum(used)
            tokens += sample.timing.tokens
    return joules / tokens if tokens else None


def _are_short(samples: Sequence[Sample]) -> bool:
    times = [s.timing.ttft_s + s.timing.decode_s for s in samples if s.timing is not None and s.left_out is None]
    return bool(times) and statistics.fmean(times) < SHORT_S


def _peaks(samples: Sequence[Sample], loads: Sequence[LoadRecord]) -> tuple[CardPeak, ...]:
    held: dict[str, float] = {}
    for load in loads:
        for memory in load.cards:
            held[memory.name] = max(held.get(memory.name, 0.0), memory.total_mib)
    for sample in samples:
        for state in sample.conditions.cards:
            if state.ours_mib is not None:
                held[state.name] = max(held.get(state.name, 0.0), state.ours_mib)
    return tuple(CardPeak(name=name, mib=mib) for name, mib in held.items())


# ── outputs ───────────────────────────────────────────────────────────────────────────────
def _partings(run: Run) -> tuple[Parting, ...]:
    """Outputs are compared between samples that were asked the very same, which is the same salt."""
    asked: dict[tuple[str, int], dict[Arm, Sample]] = {}
    for sample in run.samples:
        if sample.timing is not None:
            asked.setdefault((sample.planned.prompt, sample.planned.salt), {})[sample.planned.arm] = sample
    out = []
    for prompt in run.header.prompts.prompts:
        pairs = [arms for (name, _), arms in asked.items() if name == prompt.id and len(arms) == 2]
        places = [place for arms in pairs if (place := first_difference(arms["A"], arms["B"])) is not None]
        if pairs:
            out.append(
                Parting(
                    prompt=prompt.id,
                    compared=len(pairs),
                    differ=len(places),
                    first=min(places, default=None),
                    unit="token" if all(_both_told(arms["A"], arms["B"]) for arms in pairs) else "character",
                )
            )
    return tuple(out)


def _both_told(a: Sample, b: Sample) -> bool:
    """Whether both outputs are known token by token; a server tells its text only."""
    return bool(a.tokens and b.tokens)


def first_difference(a: Sample, b: Sample) -> int | None:
    """The index of the first token, or else character, at which two outputs part; None if they are the same.

    A server's reply that ended by itself is compared as far as it goes.
    """
    told = _both_told(a, b)
    ours: Sequence[object] = a.tokens if told else a.text
    theirs: Sequence[object] = b.tokens if told else b.text
    for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return at
    shorter = a if len(ours) < len(theirs) else b
    if len(ours) == len(theirs) or (not told and not shorter.tokens and shorter.stop_reason == "stop"):
        return None
    return min(len(ours), len(theirs))


def why_apart(header: RunHeader) -> str:
    """What it means that texts of the arms part; empty where nobody knows, as of a server."""
    a, b = (arm.layout for arm in header.arms)
    loaded = [arm.resolved for arm in header.arms]
    if a.served_by is not None or b.served_by is not None or different_models(header):
        return ""
    modes = [layout.split.split_mode for layout in (a, b)]
    reasons = []
    if modes[0] != modes[1] and {*modes} != {"none", "layer"}:
        reasons.append(f"modes {modes[0]} and {modes[1]}")
    elif modes[0] == "tensor" and a.split.label() != b.split.label():
        reasons.append("other shares in tensor mode")
    if a.split.n_gpu_layers != b.split.n_gpu_layers:
        reasons.append("other layers on the host")
    if loaded[0] and loaded[1] and loaded[0].flash_attn != loaded[1].flash_attn:
        reasons.append("flash attention in one of them")
    differing = {
        key: getattr(a.context, key) != getattr(b.context, key) for key in ("type_k", "type_v", "n_batch", "n_ubatch")
    }
    reasons += [f"another {key}" for key, differs in differing.items() if differs]
    virtual = [isinstance(layout.split.cards, Virtual) for layout in (a, b)]
    if a.split.cards != b.split.cards and not all(virtual):
        reasons.append("other cards")
    if reasons:
        return f"the arithmetic is not the same ({', '.join(reasons)}), so texts may part"
    return "this is unexpected: both arms have one model, and compute alike"


# ── cautions ──────────────────────────────────────────────────────────────────────────────
def _cautions(run: Run, arms: Sequence[ArmOutcome], known: Mapping[Metric, LoadNoise] | None) -> list[str]:
    header, out = run.header, []
    for arm in arms:
        if arm.failure is not None:
            out.append(f"{called(header, arm.arm)} did not load: {arm.failure}")
        whose = f"of {arm.arm}'s samples" if header.kind == "ab" else "samples"
        out += [f"{count} {whose} left out: {why}" for why, count in arm.left_out.items()]
    out += _of_servers(run)
    if header.kind == "ab":
        out += _between(header)
        if header.method == "fresh" and (odd := len(out_of_turn(run.samples))):
            out.append(f"{odd} block{'' if odd == 1 else 's'} left out of the comparison: the arms were not loaded in "
                       "turn there, since one failed and was measured later")
        if header.added:
            blocks = sum(header.added)
            out.append(f"{blocks} of the blocks {'was' if blocks == 1 else 'were'} added after a look at the result, "
                       "which makes a false verdict a little likelier than 5 %")
        if header.method == "resident":
            out.append("indicative: one load an arm cannot tell a better split from a luckier load; fresh loads can")
            if not known:
                out.append("no fresh loads have been compared on this machine, so no speed is called faster or slower")
    busy = [s.conditions.load_average for s in run.samples if s.conditions.load_average is not None]
    cores = header.machine.cores
    if busy and statistics.median(busy) > cores * (1 + BUSY_SHARE):
        out.append(f"the host was busy: a load average of {statistics.median(busy):.1f} on {cores} cores")
    return out


def called(header: RunHeader, arm: Arm) -> str:
    """`A (demo-even)`, where two have one name with the split; of a replay `demo-even`."""
    names = {each.arm: name for each, name in zip(header.arms, header.names, strict=True)}
    return f"{arm} ({names[arm]})" if header.kind == "ab" else names[arm]


def different_models(header: RunHeader) -> bool:
    """Whether the arms loaded models whose headers or sizes differ; of a server nobody knows."""
    if any(arm.resolved.server for arm in header.arms if arm.resolved):
        return False
    files = {
        (arm.resolved.model.header_sha256, arm.resolved.model.size_bytes) for arm in header.arms if arm.resolved
    }
    return len(files) > 1


def _of_servers(run: Run) -> list[str]:
    """What measuring through a server leaves unknown or unequal."""
    header, out = run.header, []
    names = {arm.arm: arm.resolved.server for arm in header.arms if arm.resolved and arm.resolved.server}
    ended = {sample.planned.arm for sample in run.samples if sample.stop_reason == "stop"}
    for arm in header.arms:
        if arm.arm not in names:
            continue
        warned = [warning for load in run.loads if load.arm == arm.arm for warning in load.warnings]
        out += [f"{arm.arm}: {warning}" for warning in dict.fromkeys(warned)]
        sources = {sample.timing.source for sample in run.of(arm.arm) if sample.timing is not None}
        if sources & {"client", "pieces"}:
            counted = "; tokens are counted by the pieces of text that came" if "pieces" in sources else ""
            out.append(f"{arm.arm}'s speeds are by workbench's own clock, network and all: "
                       f"its server tells none{counted}")
        if header.kind == "ab" and arm.layout.engine == "openai":
            out.append(f"{arm.arm}'s server keeps its model in memory while the other arm is measured")
        if header.kind == "ab" and arm.arm in ended and len(ended) == 1:
            out.append(f"{arm.arm}'s replies end where the model ends them: its server cannot be told to go on")
    if header.kind == "ab" and names:
        a, b = (arm.resolved.model.path if arm.resolved else arm.layout.model for arm in header.arms)
        if a != b:
            out.append(f"whether both arms have the same model nobody checked: {a} and {b}")
        if on_one_server([arm.layout for arm in header.arms]):
            out.append("both arms are on one server: each prompt has another number in each arm, so that no cache "
                       "knows it, and outputs are not compared")
    return out


def _between(header: RunHeader) -> list[str]:
    """What differs between the arms beside what was to be compared."""
    a, b = header.arm("A"), header.arm("B")
    out = []
    if a.resolved is not None and b.resolved is not None:
        if different_models(header):
            out.append(f"the arms have different models: {a.resolved.model.path} and {b.resolved.model.path}")
        if None not in (a.resolved.flash_attn, b.resolved.flash_attn) and (
            a.resolved.flash_attn != b.resolved.flash_attn
        ):
            on = "A" if a.resolved.flash_attn else "B"
            out.append(f"flash attention is on in {on} alone")
        if a.resolved.n_ctx != b.resolved.n_ctx and a.resolved.n_ctx and b.resolved.n_ctx:
            out.append(f"n_ctx differs: {a.resolved.n_ctx} and {b.resolved.n_ctx}")
    return out
