"""The real app and session over scripted engines. `python -m tests.app.stage` opens it in the terminal."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from workbench.app.app import WorkbenchApp
from workbench.app.keymap import Keymap
from workbench.app.memory import Memory
from workbench.app.outside import DEMO_HINT, Outside
from workbench.app.run import show
from workbench.domain.card import Card, CardKind
from workbench.domain.forecast import CardAccount, KindAccount
from workbench.domain.layout import Context, Layout
from workbench.domain.split import Split
from workbench.engines.engine import Engine, Loaded
from workbench.engines.scripted import Script
from workbench.lab.aside import Aside
from workbench.lab.cards import Inventory
from workbench.lab.foresight import Blind
from workbench.lab.kit import OnDeath
from workbench.lab.rooms import Running
from workbench.lab.session import Session
from workbench.meters.sample import CardSample, HostSample, Snapshot

LAYOUT = Layout(name="even", model="scripted.gguf", split=Split(tensor_split=(1, 1)), context=Context(n_ctx=4096))


class Suggesting(Blind):
    """Suggests the same whatever did not fit, and forecasts each load a little wrong."""

    def __init__(self, layout: Layout, sentence: str = "fits, 57 MiB to spare on card 1") -> None:
        self._found = layout, sentence

    def nearest(self, layout: Layout, running: Running | None) -> tuple[Layout, str]:
        return self._found

    def after_load(self, layout: Layout, loaded: Loaded | None) -> tuple[CardAccount, ...]:
        return tuple(
            CardAccount(
                name=card.name,
                kinds=(
                    KindAccount("weights", card.weights_mib, card.weights_mib),
                    KindAccount("kv", card.kv_mib, card.kv_mib),
                    KindAccount("compute", card.compute_mib + 1.5, card.compute_mib),
                ),
                other_forecast_mib=598.0,
                other_mib=610.0 if number == 0 else None,
                foreign_mib=345.0 if number == 0 else None,
            )
            for number, card in enumerate(loaded.cards if loaded else ())
        )


class ScriptKit:
    """Opens scripted engines."""

    def __init__(self, script: Script, foresight: Blind | None = None) -> None:
        self.foresight = foresight or Blind()
        self._script = script
        self.beside = False

    def open_engine(self, layout: Layout, on_death: OnDeath, beside: int = 0) -> Engine:
        return self._script.open_engine(layout, on_death)

    def stand_beside(self, serving: Layout, loaded: Loaded, following: Layout) -> bool:
        return self.beside

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass

    def aside(self, size: int) -> Aside:
        return Aside(size)


def cuda_cards(count: int) -> tuple[Card, ...]:
    return tuple(
        Card(
            name=f"CUDA{number}",
            kind=CardKind.CUDA,
            description="NVIDIA H200",
            smi_index=count - 1 - number,
            total_mib=143771.0,
            free_mib=140000.0,
        )
        for number in range(count)
    )


def snapshot(cards: tuple[Card, ...], at: float, *, lost: str = "", used: Sequence[float] = ()) -> Snapshot:
    """Made-up figures that follow `at`."""
    samples = tuple(
        CardSample(
            name=card.name,
            lost=card.name == lost,
            total_mib=card.total_mib,
            used_mib=(card.total_mib or 0) * (used[number] if used else 0.12 + 0.1 * number % 0.6),
            utilisation=(17 * at + 31 * number) % 100,
            power_w=310 + 13.0 * number,
            temperature_c=48.0 + number,
            sm_clock_mhz=1980.0,
        )
        for number, card in enumerate(cards)
    )
    return Snapshot(at=at, cards=samples, host=HostSample(cpu_percent=12.0, total_mib=64000.0, available_mib=48000.0))


async def until(pilot: Pilot[None], predicate: Callable[[], object]) -> None:
    """Let the app run until `predicate` holds."""
    deadline = time.monotonic() + 20
    while not predicate():
        if time.monotonic() > deadline:
            said = [said.message for said in pilot.app.said] if isinstance(pilot.app, WorkbenchApp) else []
            raise AssertionError(f"not within 20 s; said: {said}")
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    app: WorkbenchApp, size: tuple[int, int] = (120, 40), *, loaded: bool = True
) -> AsyncIterator[Pilot[None]]:
    """The app in a terminal of that size, its first layout loaded and measured; closed at the end."""
    try:
        async with app.run_test(size=size) as pilot:
            if loaded:
                await until(pilot, lambda: measured(app) == 1 and app.main.split.current is not None)
            yield pilot
    finally:
        app.session.close()


def measured(app: WorkbenchApp) -> int:
    """How many splits were measured."""
    return sum(1 for entry in app.session.history if entry.probe)


async def ask(pilot: Pilot[None], app: WorkbenchApp, prompt: str) -> None:
    """Type a prompt, send it, and see the reply to its end."""
    turns = len(app.session.conversation.turns)
    app.main.go_to(app.main.chat.prompt)
    app.main.chat.prompt.fill(prompt, app.main.chat.prompt.editing)
    await pilot.press("enter")
    await until(pilot, lambda: len(app.session.conversation.turns) > turns and not app.main.chat.answering)


def make_app(
    script: Script,
    outside: Outside | None = None,
    *,
    first: Layout | None = LAYOUT,
    kit: ScriptKit | None = None,
    keymap: Keymap | None = None,
    memory: Memory | None = None,
) -> WorkbenchApp:
    kit = kit or ScriptKit(script)
    outside = outside or Outside(hint=DEMO_HINT)
    return WorkbenchApp(
        lambda listener: Session(kit, listener), outside, first=first, keymap=keymap, memory=memory
    )


def main() -> None:
    script = Script(load_s=2.0, cards=("CUDA0", "CUDA1"))
    app = make_app(script, Outside(find_cards=lambda: Inventory(cards=cuda_cards(2)), hint=DEMO_HINT))
    show(app)


if __name__ == "__main__":
    main()
