"""The A/B screens over real experiments whose engines are simulated."""

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from textual.pilot import Pilot

from tests.app.stage import until
from tests.benchmarks.calibration import Nothing, SimulatedEngine, SimulatedKit
from tests.lab.experiments import describe
from workbench.app.ab_bench import Bench
from workbench.app.app import WorkbenchApp
from workbench.app.outside import LayoutEntry
from workbench.app.screens.ab_run import ABScreen
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split
from workbench.engines.engine import Engine, EngineDied, EngineError, Loaded, LoadProgress, Reply, Request
from workbench.engines.scripted import MODEL, Script

SINGLE = Layout(name="single", model="m.gguf", split=Split(split_mode="none"), context=Context(n_ctx=4096))
SPREAD = Layout(name="spread", model="m.gguf", split=Split(layers=(23, 8)), context=Context(n_ctx=4096))
ENTRIES = (
    LayoutEntry(Path("layouts/single.yaml"), SINGLE),
    LayoutEntry(Path("layouts/spread.yaml"), SPREAD),
)
SAID = {
    "A": "Rivers carve the land as they run to the sea, and what they carry makes the plains on which people live.",
    "B": "Rivers carve the land as they run down to the sea, and what they carry makes the plains where we live.",
}
QUICK = """\
name: quick
defaults: {max_tokens: 48}
prompts:
  - {id: rivers, text: Write three sentences on rivers.}
  - {id: tides, text: Why are there two tides a day?}
"""
DEEP = """\
name: deep
defaults: {max_tokens: 16}
prompts:
  - {id: short, text: Go on.}
  - {id: d1024, depth: 1024, text: Go on.}
  - {id: d2048, depth: 2048, text: Go on.}
"""


class Gate:
    """Lets engines answer; closed, they wait."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.asked = 0
        self.closes_at = 0
        """After so many requests it closes of itself; 0 is never."""

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def wait(self, cancelled: threading.Event) -> bool:
        self.asked += 1
        if self.asked == self.closes_at:
            self.close()
        while not self._open.wait(0.01):
            if cancelled.is_set():
                return False
        return not cancelled.is_set()


class RatedEngine(SimulatedEngine):
    """Answers with text, when its gate lets it."""

    def __init__(self, kit: "RatedKit", script: Script, layout: Layout, speed: float) -> None:
        super().__init__(script, layout, kit.chance, speed)
        self._kit = kit
        self._name = layout.name
        kit.opened.append(self)

    def load(self, on_progress: Callable[[LoadProgress], None]) -> Loaded:
        on_progress(LoadProgress(0.4, "weights"))
        if self._name in self._kit.fails:
            raise self._kit.fails[self._name]
        return super().load(on_progress)

    def chat(self, request: Request, on_text: Callable[[str], None]) -> Reply:
        self._cancelled.clear()
        if not self._kit.gate.wait(self._cancelled):
            return Reply(text="", stop_reason="cancelled", timing=super().chat(request, on_text).timing)
        reply = super().chat(request, on_text)
        depth = 0 if request.filler is None else request.filler.depth
        slow = 1 + depth / 4096
        timing = msgspec.structs.replace(
            reply.timing, decode_s=reply.timing.decode_s * slow, prompt_tokens=reply.timing.prompt_tokens + depth
        )
        said = SAID["B" if self._name in self._kit.differs else "A"]
        return msgspec.structs.replace(reply, text=said, timing=timing)


class RatedKit(SimulatedKit):
    """Opens engines of the given speeds by layout name, 1 where nothing is given."""

    def __init__(self, speeds: dict[str, float] | None = None, noise: int = 1) -> None:
        super().__init__(random.Random(noise), 1.0)
        self.chance = random.Random(noise)
        self.speeds = speeds or {}
        self.fails: dict[str, EngineError] = {}
        self.differs: set[str] = set()
        self.gate = Gate()
        self.opened: list[RatedEngine] = []

    def open_engine(self, layout: Layout, on_death: Callable[[EngineDied], None], beside: int = 0) -> Engine:
        script = Script(model=msgspec.structs.replace(MODEL, path=__file__), cards=("CUDA0", "CUDA1"))
        return RatedEngine(self, script, layout, self.speeds.get(layout.name, 1.0))

    @property
    def living(self) -> Sequence[RatedEngine]:
        return [engine for engine in self.opened if not engine.closed]


def make_bench(kit: RatedKit) -> Bench:
    return Bench(lambda: (kit, lambda layout, loaded: Nothing()), describe)


def write_sets(folder: Path) -> None:
    """Two prompt sets in ./prompts of a folder."""
    (folder / "prompts").mkdir()
    (folder / "prompts" / "quick.yaml").write_text(QUICK)
    (folder / "prompts" / "deep.yaml").write_text(DEEP)


def result(app: WorkbenchApp) -> ABScreen:
    """The run's screen, on top."""
    assert isinstance(app.screen, ABScreen)
    return app.screen


async def over(pilot: Pilot[None], app: WorkbenchApp) -> ABScreen:
    """The run's screen, once the run is over."""
    await until(pilot, lambda: isinstance(app.screen, ABScreen) and not app.screen.running)
    return result(app)
