"""A run's result, for people and as JSON."""

from pathlib import Path
from typing import Any

import msgspec

from workbench.cli.text import json_text, table
from workbench.domain import wording
from workbench.domain.comparison import Effect, factor
from workbench.domain.outcome import Outcome


def outcome_text(outcome: Outcome) -> str:
    """The headline, the speeds, the arms, the speeds by length, and what to be careful about."""
    parts = [wording.headline(outcome), table(wording.effect_rows(outcome)), table(wording.arm_rows(outcome))]
    if lengths := wording.length_rows(outcome):
        parts.append(table(lengths))
    parts.append("\n".join(f"- {note}" for note in wording.notes(outcome)))
    return "\n\n".join(part for part in parts if part)


def outcome_json(outcome: Outcome, folder: Path) -> str:
    """The same as one object. Ratios are of speeds, B over A; `noise_floor` is a share, 0.02 for 2 %."""
    header = outcome.header
    value = {
        "run": str(folder),
        "kind": header.kind,
        "method": header.method,
        "blocks": header.blocks,
        "planned": len(header.plan),
        "taken": outcome.taken,
        "prompts": header.prompts.name,
        "arms": msgspec.to_builtins(outcome.arms),
        "effects": {effect.metric: _effect(effect) for effect in outcome.effects},
        "by_length": msgspec.to_builtins(outcome.lengths),
        "outputs": msgspec.to_builtins(outcome.partings),
        "cautions": outcome.cautions,
    }
    return json_text(value)


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "ratio": effect.ratio,
        "low": effect.low,
        "high": effect.high,
        "noise_floor": None if effect.floor is None else factor(effect.floor) - 1,
        "verdict": effect.verdict,
        "more_blocks": effect.more_blocks,
        "by_block": [factor(log) for log in effect.by_block],
    }
