"""What several parts do with engines: open one, measure its rates, read what the GPUs hold."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from workbench.domain.card import Card, pci_key
from workbench.domain.conversation import Sampling
from workbench.domain.layout import Layout
from workbench.domain.timing import Timing
from workbench.engines.engine import Engine, Filler, Loaded, Request
from workbench.lab.kit import RealKit
from workbench.meters.nvml import Nvml


def unheard(text: str) -> None:
    """Text that nobody reads."""


@contextmanager
def opened(layout: Layout, beside: int = 0) -> Iterator[tuple[Engine, Loaded]]:
    """The layout loaded in a worker of its own; `beside` virtual cards live already."""
    kit = RealKit(spare=False)
    engine = kit.open_engine(layout, lambda error: None, beside)
    kit.close()
    try:
        yield engine, engine.load(lambda progress: None)
    finally:
        engine.close()


def ask(engine: Engine, prompt_tokens: int, max_tokens: int, salt: int = 0) -> Timing:
    """The timing of a greedy reply of fixed length to a made-up prompt, on an empty context."""
    sampling = Sampling(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    filler = Filler(prompt_tokens=prompt_tokens, salt=salt)
    return engine.chat(Request(sampling=sampling, filler=filler), unheard).timing


def prefill_rates(engine: Engine, tokens: int, repeats: int) -> list[float]:
    """Tokens per second of each repeat, after a warm-up, as llama-bench's pp."""
    return [ask(engine, tokens, 1, salt).prefill_tok_s or 0.0 for salt in range(repeats + 1)][1:]


def decode_rates(engine: Engine, tokens: int, repeats: int) -> list[float]:
    """The same of decoding, as llama-bench's tg."""
    return [ask(engine, 1, tokens + 1, salt).decode_tok_s or 0.0 for salt in range(repeats + 1)][1:]


def spread(rates: Sequence[float]) -> dict[str, float]:
    """Median, extremes and count, for a figure's detail."""
    ends = {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}
    return {**{name: round(rate, 2) for name, rate in ends.items()}, "n": len(rates)}


class Gpus:
    """What NVML says that is used, by GPU: all parts of one are one. Of virtual cards there is nothing to say."""

    def __init__(self, layout: Layout, kit: RealKit) -> None:
        known: Sequence[Card] = kit.cards(layout) if isinstance(layout.split.cards, tuple) else ()
        self.of_card = {card.name: key for card in known if (key := pci_key(card.pci_bus_id or "")) is not None}
        self._nvml = Nvml()
        self._bus_ids = {key: gpu.pci_bus_id for gpu in self._nvml.gpus if (key := pci_key(gpu.pci_bus_id)) is not None}

    def used_mib(self) -> dict[tuple[int, int, int], float]:
        """MiB by PCI key, of the GPUs that the layout's cards are on."""
        used = {}
        for key in dict.fromkeys(self.of_card.values()):
            mib = self._nvml.sample("", self._bus_ids[key]).used_mib if key in self._bus_ids else None
            if mib is not None:
                used[key] = mib
        return used
