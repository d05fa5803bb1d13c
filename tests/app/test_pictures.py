"""Pictures of the screen: what is drawn does not change unawares."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from tests.app.stage import LAYOUT, cuda_cards, make_app, measured, snapshot, until
from workbench.app.app import WorkbenchApp
from workbench.app.messages import Metered
from workbench.app.outside import DEMO_HINT, Outside
from workbench.domain.conversation import Turn
from workbench.domain.split import Split
from workbench.domain.timing import Probe, Timing
from workbench.engines.scripted import MODEL, PROSE_AND_CODE, Script
from workbench.lab.cards import Inventory
from workbench.lab.events import Changed, LayoutLoaded, Measurement

Before = Callable[[Pilot[None]], Coroutine[Any, Any, None]]
TIMING = Timing(
    prompt_tokens=24, evaluated_tokens=24, tokens=128, decoded_tokens=127, ttft_s=0.31, prefill_s=0.3, decode_s=2.228
)
REPLY = "<think>A short answer will do.</think>" + PROSE_AND_CODE


def stage(count: int) -> WorkbenchApp:
    """A 70B model on H200s, with made-up figures."""
    cards = cuda_cards(count)
    model = msgspec.structs.replace(MODEL, name="Llama-3.3-70B", quantisation="Q4_K_M", n_layer=80, size_mib=40000.0)
    script = Script(
        tok_s=0, cards=tuple(card.name for card in cards), model=model, kv_mib=2500.0, compute_mib=312.0
    )
    first = msgspec.structs.replace(LAYOUT, split=Split(tensor_split=(1.0,) * count))
    return make_app(script, Outside(find_cards=lambda: Inventory(cards=cards), hint=DEMO_HINT), first=first)


async def settled(pilot: Pilot[None], *, talked: bool = True) -> WorkbenchApp:
    """Loaded, metered and, if `talked`, with one turn; nothing in it depends on the clock."""
    app = pilot.app
    assert isinstance(app, WorkbenchApp)
    await until(pilot, lambda: measured(app) == 1 and app.main.split.current is not None)
    cards = cuda_cards(len(app.main.split.names))
    for at in range(12):
        app.post_message(Metered(snapshot(cards, float(at))))
        await pilot.pause()
    if talked:
        turn = Turn(prompt="Tell me about rivers.", reply=REPLY, stop_reason="max_tokens", timing=TIMING)
        app.session.restore(app.session.conversation.with_turn(turn))
        await until(pilot, lambda: [view.turn for view in app.main.chat.log_view.turns] == [turn])
    assert app.session.layout is not None
    assert app.session.loaded is not None
    loaded = LayoutLoaded(app.session.layout, app.session.loaded, "beside", 0.09)
    app.main.change.took_over(loaded, app.session.history)
    await pilot.pause()
    return app


async def chat(pilot: Pilot[None]) -> None:
    await settled(pilot)


async def hint(pilot: Pilot[None]) -> None:
    await settled(pilot, talked=False)


async def draft(pilot: Pilot[None]) -> None:
    app = await settled(pilot)
    await pilot.press("f6", *["right"] * 9)
    assert app.session.layout is not None
    assert app.session.loaded is not None
    probe = Probe(depth=128, tokens=32, prefill_tok_s=1400.0, decode_tok_s=57.5)
    cards = app.session.loaded.cards
    before = Measurement(layout=app.session.layout, label="layer 1:1", cards=cards, probe=probe)
    after = Measurement(
        layout=msgspec.structs.replace(app.session.layout, split=Split(tensor_split=(3, 1))),
        label="layer 3:1",
        cards=tuple(
            msgspec.structs.replace(card, weights_mib=card.weights_mib + (120 if at == 0 else -120 / (len(cards) - 1)))
            for at, card in enumerate(cards)
        ),
        probe=msgspec.structs.replace(probe, decode_tok_s=57.0),
    )
    app.main.change.show((before, after), Changed(before=before, after=after))
    await pilot.pause()


async def trouble(pilot: Pilot[None]) -> None:
    app = await settled(pilot)
    app.say("CUDA0: out of memory (asked for 1990 MiB, free 640 MiB) · layer 1:1 serves on", problem=True)
    app.main.status.progress(0.62, "going back to layer 1:1: weights on CUDA1")
    await pilot.pause()


async def suggestion(pilot: Pilot[None]) -> None:
    app = await settled(pilot)
    app.say("CUDA0: out of memory (asked for 1990 MiB, free 640 MiB) · layer 1:1 serves on", problem=True)
    app.main.suggest("layer 20:61, n_ctx 8192 fits, 57 MiB to spare on card 1")
    await pilot.pause()


async def history(pilot: Pilot[None]) -> None:
    await draft(pilot)
    await pilot.press("ctrl+l", "up")
    await pilot.pause()


async def keys(pilot: Pilot[None]) -> None:
    await settled(pilot)
    await pilot.press("f6", "f1")
    await pilot.pause()


@pytest.mark.parametrize(
    ("size", "count", "before"),
    [
        pytest.param((120, 40), 2, hint, id="hint-120x40"),
        pytest.param((120, 40), 2, draft, id="draft-120x40"),
        pytest.param((160, 48), 2, draft, id="draft-160x48"),
        pytest.param((80, 24), 2, chat, id="chat-80x24"),
        pytest.param((80, 24), 2, draft, id="draft-80x24"),
        pytest.param((60, 20), 2, draft, id="draft-60x20"),
        pytest.param((80, 24), 2, trouble, id="trouble-80x24"),
        pytest.param((80, 24), 2, suggestion, id="suggestion-80x24"),
        pytest.param((80, 24), 2, history, id="history-80x24"),
        pytest.param((120, 40), 2, history, id="history-120x40"),
        pytest.param((120, 40), 8, draft, id="draft-8-cards-120x40"),
        pytest.param((80, 24), 8, draft, id="draft-8-cards-80x24"),
        pytest.param((160, 48), 16, draft, id="draft-16-cards-160x48"),
        pytest.param((80, 24), 2, keys, id="help-80x24"),
    ],
)
def test_picture(snap_compare: Callable[..., bool], size: tuple[int, int], count: int, before: Before) -> None:
    app = stage(count)
    try:
        assert snap_compare(app, terminal_size=size, run_before=before)
    finally:
        app.session.close()
