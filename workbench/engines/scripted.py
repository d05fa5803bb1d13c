"""An engine that answers from a script: for tests of what lies above engines."""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from workbench.domain.conversation import StopReason
from workbench.domain.layout import Context, Layout
from workbench.domain.memory import CardMemory
from workbench.domain.split import OFF_CARDS, Virtual, layer_counts, n_gpu_layers_asked, place_layers
from workbench.domain.timing import Probe, Timing
from workbench.engines.engine import (
    EngineDied,
    EngineError,
    LoadCancelled,
    Loaded,
    LoadProgress,
    ModelInfo,
    PromptTooLong,
    Reply,
    Request,
    SavedState,
)

TOKEN = re.compile(r"\s*\S+|\s+$")

PROSE_AND_CODE = """\
Rivers carve the land as they run to the sea, and what they carry makes the plains.

## A loop

```python
def flow(sources: list[float]) -> float:
    total = 0.0
    for source in sources:
        total += source * 0.9
    return total
```

- The Nile is long.
- The Amazon is wide, with **more water** than the next seven together.

"""

MODEL = ModelInfo(
    path="scripted.gguf",
    name="Scripted 135M",
    arch="llama",
    quantisation="Q4_1",
    n_layer=30,
    n_ctx_train=8192,
    n_params=135_000_000,
    size_mib=93.0,
)


@dataclass
class Script:
    """What scripted engines do; change it while they run.

    `fail_load` and `fail_chat` are raised once, the latter after `fail_after` tokens; 0 as
    `tok_s` is as fast as possible. `cards` are used where the split names none.
    """

    reply: str = PROSE_AND_CODE
    tok_s: float = 400.0
    load_s: float = 0.0
    probe_s: float = 0.0
    model: ModelInfo = MODEL
    cards: tuple[str, ...] = ("CUDA0", "CUDA1")
    kv_mib: float = 90.0
    compute_mib: float = 12.0
    fail_load: EngineError | None = None
    fail_chat: EngineError | None = None
    fail_after: int = 5
    opened: list["ScriptedEngine"] = field(default_factory=list)

    def open_engine(self, layout: Layout, on_death: Callable[[EngineDied], None]) -> "ScriptedEngine":
        """An engine for a layout."""
        engine = ScriptedEngine(self, layout, on_death)
        self.opened.append(engine)
        return engine


class ScriptedEngine:
    """Follows its script."""

    def __init__(self, script: Script, layout: Layout, on_death: Callable[[EngineDied], None]) -> None:
        self._script = script
        self._layout = layout
        self._on_death = on_death
        self._cancelled = threading.Event()
        self._context_tokens = 0
        self.closed = False

    def load(self, on_progress: Callable[[LoadProgress], None]) -> Loaded:
        """Take `load_s`, in twenty steps."""
        self._cancelled.clear()
        for step in range(20):
            on_progress(LoadProgress(step / 20, f"weights on {self._names()[step * len(self._names()) // 20]}"))
            if self._cancelled.wait(self._script.load_s / 20):
                raise LoadCancelled("the load was stopped")
            failure = self._script.fail_load
            if failure is not None and step >= 10:
                self._script.fail_load = None
                raise failure
        on_progress(LoadProgress(1.0, "context"))
        return self._loaded()

    def chat(self, request: Request, on_text: Callable[[str], None]) -> Reply:
        """Send the reply token by token, at the script's rate."""
        self._cancelled.clear()
        began = time.monotonic()
        prompt_tokens = sum(len(message.content.split()) + 4 for message in request.messages)
        n_ctx = self._layout.context.n_ctx
        if prompt_tokens >= n_ctx:
            raise PromptTooLong(prompt_tokens, n_ctx)
        evaluated = max(1, prompt_tokens - self._context_tokens)
        sent: list[str] = []
        stop: StopReason = "stop"
        first_s = 0.0
        for number, token in enumerate(TOKEN.findall(self._script.reply)):
            self._fail(number, sent)
            pause = began + (number + 1) / self._script.tok_s - time.monotonic() if self._script.tok_s else 0.0
            if self._cancelled.is_set() or (pause > 0 and self._cancelled.wait(pause)):
                stop = "cancelled"
            elif request.sampling.max_tokens and number >= request.sampling.max_tokens:
                stop = "max_tokens"
            elif prompt_tokens + number >= n_ctx:
                stop = "context_full"
            if stop != "stop":
                break
            first_s = first_s or time.monotonic() - began
            sent.append(token)
            on_text(token)
        self._context_tokens = prompt_tokens + len(sent)
        timing = Timing(
            prompt_tokens=prompt_tokens,
            evaluated_tokens=evaluated,
            tokens=len(sent),
            decoded_tokens=max(0, len(sent) - 1),
            ttft_s=first_s,
            prefill_s=first_s,
            decode_s=max(1e-9, time.monotonic() - began - first_s),
        )
        return Reply(text="".join(sent), stop_reason=stop, timing=timing)

    def probe(self) -> Probe | None:
        """The script's rate, after `probe_s`."""
        self._cancelled.clear()
        if self._cancelled.wait(self._script.probe_s):
            return None
        return Probe(depth=128, tokens=32, prefill_tok_s=1000.0, decode_tok_s=self._script.tok_s)

    def expect_state(self, path: Path, size: int) -> None:
        """Nothing to get ready."""

    def save_state(self, path: Path) -> SavedState:
        """A file of a few bytes."""
        path.write_bytes(b"state")
        return SavedState(path=str(path), size=5, tokens=tuple(range(self._context_tokens)), text="")

    def restore_state(self, state: SavedState) -> None:
        """Know how many tokens there were."""
        self._context_tokens = len(state.tokens)

    def new_context(self, context: Context) -> Loaded:
        """Another n_ctx."""
        self._layout = msgspec.structs.replace(self._layout, context=context)
        return self._loaded()

    def cancel(self) -> None:
        """Stop what runs."""
        self._cancelled.set()

    def close(self) -> None:
        """End."""
        self._cancelled.set()
        self.closed = True

    def die(self, reason: str, card: str | None = None) -> None:
        """Die while idle."""
        self._on_death(EngineDied(reason, card=card))

    def _fail(self, number: int, sent: list[str]) -> None:
        failure = self._script.fail_chat
        if failure is not None and number >= self._script.fail_after:
            self._script.fail_chat = None
            if isinstance(failure, EngineDied):
                failure.partial = "".join(sent)
            raise failure

    def _names(self) -> tuple[str, ...]:
        cards = self._layout.split.cards
        if isinstance(cards, Virtual):
            return tuple(f"RPC{number}" for number in range(len(cards.virtual)))
        return cards or self._script.cards

    def _loaded(self) -> Loaded:
        """Memory by layers, or by shares in mode tensor."""
        script, split = self._script, self._layout.split
        names = self._names()
        positions = script.model.n_layer + 1
        tensor = split.split_mode in ("tensor", "row")
        if tensor:
            shares = (1.0,) * len(names) if isinstance(split.tensor_split, str) else split.tensor_split
            parts = [share / sum(shares) for share in shares]
            places: tuple[str, ...] = ()
            off = 0.0
        else:
            counts = layer_counts(split, script.model.n_layer, len(names))
            parts = [count / positions for count in counts]
            on_cards = n_gpu_layers_asked(split, script.model.n_layer)
            indices = place_layers(script.model.n_layer, on_cards, [float(count) for count in counts])
            places = tuple("CPU" if index == OFF_CARDS else names[index] for index in indices)
            off = max(0.0, 1 - sum(parts))
        kv_mib = script.kv_mib * self._layout.context.n_ctx / 4096
        cards = tuple(
            CardMemory(
                name=name,
                weights_mib=script.model.size_mib * part,
                kv_mib=kv_mib * part,
                compute_mib=script.compute_mib,
                layers=None if tensor else round(part * positions),
            )
            for name, part in zip(names, parts, strict=True)
        )
        host = CardMemory(name="CPU", weights_mib=script.model.size_mib * off, kv_mib=kv_mib * off, compute_mib=1.0)
        return Loaded(
            model=script.model,
            cards=cards,
            host=host,
            places=places,
            n_ctx=self._layout.context.n_ctx,
            flash_attn=True,
            template="chatml",
            template_is_fallback=False,
            load_s=script.load_s,
            pid=0,
        )
