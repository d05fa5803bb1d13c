"""Where a part of the measurements on real cards runs, and what it finds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split

LARGE_BYTES = 16 * 2**30


class Figure(msgspec.Struct, frozen=True, kw_only=True, tag="figure"):
    """One line of the table.

    `part` and `what` say what was measured ("parity", "decode over llama-bench"), `case` of which
    model and split. `holds` is None where nothing is asked of the figure; `limit` says in words
    what is asked. `value` None was not measured, and `note` says why. `detail` keeps what the
    figure was made of.
    """

    part: str
    what: str
    case: str = ""
    value: float | None = None
    unit: str = ""
    limit: str = ""
    holds: bool | None = None
    note: str = ""
    detail: dict[str, Any] = {}

    @property
    def unmeasured(self) -> bool:
        """Whether nothing was found, and `note` says why."""
        return self.value is None and self.holds is None

    @staticmethod
    def at_least(value: float, least: float, **about: Any) -> "Figure":
        return Figure(value=value, limit=f"≥ {least:g}", holds=value >= least, **about)

    @staticmethod
    def at_most(value: float, most: float, **about: Any) -> "Figure":
        return Figure(value=value, limit=f"≤ {most:g}", holds=value <= most, **about)


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as a part sees it.

    `cards` are the engine's names of all cards, parts of one GPU with `parted`, which `env` makes.
    `models` are files by name: `8b`, `70b`, and `smollm2` where it is there. `llama_bench` is a
    command that bash knows. What a part writes beside its figures goes to `out`. `quick` asks for
    fewer repeats. `virtual` are sizes of virtual cards, in whose place a rehearsal runs without a GPU.
    Each part runs in a process and with a WORKBENCH_HOME of its own.
    """

    out: Path
    models: dict[str, Path]
    cards: tuple[str, ...]
    env: dict[str, str | None] = {}
    parted: bool = False
    llama_bench: str = "llama_bench"
    quick: bool = False
    virtual: tuple[str, ...] = ()

    def split(self, mode: str = "layer", shares: tuple[float, ...] = (), **more: Any) -> Split:
        """A split over all cards, evenly where nothing is said."""
        shares = shares or (1.0,) * len(self.cards)
        cards = {"virtual": self.virtual} if self.virtual else self.cards
        return msgspec.convert(
            {"split_mode": mode, "tensor_split": shares, "cards": cards, **more}, Split, strict=False
        )

    def uneven(self, first: float = 3.0, last: float = 1.0) -> tuple[float, ...]:
        """Shares with more on the first card, or on the last, and one each on those between."""
        return (first, *(1.0,) * (len(self.cards) - 2), last)

    def is_large(self, model: str) -> bool:
        """Whether it takes seconds to load, so that loads are to be few."""
        return self.models[model].stat().st_size > LARGE_BYTES

    def layout(self, model: str, split: Split | None = None, name: str = "gpu", **context: Any) -> Layout:
        """A layout of one of `models`; flash attention on, as llama-bench is told."""
        return Layout(
            name=name,
            model=str(self.models[model]),
            split=split or self.split(),
            context=Context(**{"n_ctx": 8192, "flash_attn": True, **context}),
            env=self.env,
        )


Measure = Callable[[Room], Iterator[Figure]]
"""What a part is: it yields each figure as soon as it is known, so that a part cut short keeps them."""
