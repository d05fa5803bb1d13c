"""The split editor, by its keys, over scripted engines."""

import msgspec
import pytest
from textual.widgets import Static

from tests.app.stage import LAYOUT, ask, cuda_cards, make_app, measured, running, snapshot, until
from workbench.app.app import WorkbenchApp
from workbench.app.messages import Accounted, Metered
from workbench.app.outside import Outside
from workbench.app.split_rows import rows
from workbench.domain.draft import draft_of
from workbench.domain.duty import CardDuty, Duty
from workbench.domain.forecast import CardForecast, Forecast
from workbench.domain.layout import Context
from workbench.domain.split import Split
from workbench.engines.scripted import MODEL, Script
from workbench.lab.cards import Inventory


def text(app: WorkbenchApp, selector: str) -> str:
    return str(app.main.query_one(selector, Static).render())


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 20)])
async def test_five_layers_move_and_the_change_is_told(size: tuple[int, int]) -> None:
    app = make_app(Script(tok_s=0))
    async with running(app, size) as pilot:
        await ask(pilot, app, "one")
        await pilot.press("f6", "left_square_bracket")
        assert "11    −5" in text(app, "#split-rows")
        assert "20    +5" in text(app, "#split-rows")
        assert "Enter applies" in str(app.main.split.border_subtitle)
        await pilot.press("enter")
        await until(pilot, lambda: measured(app) == 2)
        assert app.session.layout is not None
        assert app.session.layout.split.layers == (11, 20)
        await until(pilot, lambda: "1:1 → 11:20" in text(app, "#change"))
        change = text(app, "#change")
        assert "tok/s" in change
        assert "CUDA0 −30 MiB, CUDA1 +30 MiB" in change
        assert "one load each: no verdict" in " ".join(change.split())
        assert not app.main.split.changed
        assert "layer 11:20" in app.main.header.left
        await ask(pilot, app, "two")
        assert [turn.split for turn in app.session.conversation.turns] == ["layer 1:1", "layer 11:20"]


async def test_escape_reverts_the_draft_and_then_goes_to_the_prompt() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("f6", "right", "down", "right", "right")
        assert app.main.split.draft is not None
        assert app.main.split.draft.counts == (15, 16)
        for there in ("split", "prompt"):
            await pilot.press("escape")
            assert not app.main.split.changed
            assert app.main.where == there
        assert measured(app) == 1


async def test_layers_off_the_cards_are_a_row_of_their_own() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("f6", "down", "down", "right", "right", "right")
        rows = text(app, "#split-rows").split("\n")
        assert rows[-1].startswith("▸off cards")
        assert "3" in rows[-1]
        assert "28/31" in text(app, "#split-layers")
        await pilot.press("enter")
        await until(pilot, lambda: measured(app) == 2)
        assert app.session.layout is not None
        assert app.session.layout.split.layers == (13, 15)


async def test_a_number_of_layers_can_be_typed() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("f6", "g", "1", "2", "3", "backspace")
        assert "12" in text(app, "#split-layers")
        await pilot.press("enter")
        assert app.main.split.draft is not None
        assert app.main.split.draft.counts == (6, 6)
        await pilot.press("g", "5", "escape")
        assert app.main.split.draft.on_cards == 12


async def test_modes_that_cannot_work_say_why_and_are_not_applied() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("f6", "m", "m")
        assert "‹row✗›" in text(app, "#split-mode")
        assert "device CUDA0 does not support split buffers" in text(app, "#forecast")
        await pilot.press("enter")
        await until(pilot, lambda: app.said and "split buffers" in app.said[-1].message)
        assert measured(app) == 1


async def test_tensor_mode_is_refused_where_the_architecture_or_the_layout_rules_it_out() -> None:
    script = Script(tok_s=0, model=msgspec.structs.replace(MODEL, arch="mamba"))
    layout = msgspec.structs.replace(LAYOUT, context=Context(n_ctx=4096, flash_attn=False))
    for app, word in (
        (make_app(script), "mamba"),
        (make_app(Script(tok_s=0), first=layout), "flash attention"),
    ):
        async with running(app) as pilot:
            await pilot.press("f6", "m")
            assert "tensor✗" in text(app, "#split-mode")
            assert word in text(app, "#forecast")


async def test_tensor_mode_moves_shares() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("f6", "m", *["right_square_bracket"] * 5, "enter")
        await until(pilot, lambda: measured(app) == 2)
        assert app.session.layout is not None
        assert app.session.layout.split == Split(split_mode="tensor", tensor_split=(3, 1))
        assert "75%" in text(app, "#split-rows")


async def test_the_main_card_counts_in_mode_none_only() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await pilot.press("f6", "1")
        await until(pilot, lambda: app.said and "mode none only" in app.said[-1].message)
        await pilot.press("m", "m", "m", "1")
        assert "main card CUDA1" in text(app, "#split-layers")
        await pilot.press("enter")
        await until(pilot, lambda: measured(app) == 2)
        assert app.session.layout is not None
        assert app.session.layout.split == Split(split_mode="none", main_gpu=1)


async def test_evening_out_and_by_free_memory() -> None:
    cards = cuda_cards(2)
    app = make_app(Script(tok_s=0), Outside(find_cards=lambda: Inventory(cards=cards)))
    async with running(app) as pilot:
        split = app.main.split
        await pilot.press("f6", "f")
        await until(pilot, lambda: app.said and "not known" in app.said[-1].message)
        app.post_message(Metered(snapshot(cards, 1.0, used=(0.25, 0.75))))
        await until(pilot, lambda: split.free_mib)
        await pilot.press("f")
        assert split.draft is not None
        assert split.draft.counts == (23, 8)
        await pilot.press("equals_sign")
        assert split.draft.counts == (16, 15)


async def test_by_the_speed_that_a_reply_has_shown() -> None:
    cards = cuda_cards(2)
    app = make_app(Script(tok_s=0), Outside(find_cards=lambda: Inventory(cards=cards)))
    async with running(app) as pilot:
        split = app.main.split
        await pilot.press("f6", "v")
        await until(pilot, lambda: app.said and "tells how fast" in app.said[-1].message)
        done = tuple(CardDuty(name=f"CUDA{i}", share=share, ideal=0.5) for i, share in enumerate((0.7, 0.3)))
        app.post_message(Accounted(Duty(mode="layer", cards=done, tokens=9, seconds=3.0)))
        app.post_message(Metered(snapshot(cards, 1.0, used=(0.25, 0.75))))
        await until(pilot, lambda: split.free_mib and split.speeds)
        await pilot.press("v")
        assert split.draft is not None
        assert split.draft.counts == (0, 31)
        await pilot.press("m", "v")
        assert split.draft.shares == (30, 70)


@pytest.mark.parametrize("count", [8, 16])
async def test_every_card_of_many_is_reachable_on_24_lines(count: int) -> None:
    names = tuple(f"CUDA{number}" for number in range(count))
    first = msgspec.structs.replace(LAYOUT, split=Split(tensor_split=(1.0,) * count))
    app = make_app(Script(tok_s=0, cards=names), first=first)
    async with running(app, (80, 24)) as pilot:
        await pilot.press("f6", *["down"] * (count + 3))
        scroll = app.main.query_one("#split-scroll")
        await until(pilot, lambda: scroll.scroll_y + scroll.size.height >= count)
        assert "▸off cards" in text(app, "#split-rows")
        assert app.main.query_one("#forecast").region.bottom <= 24
        assert app.main.query_one("#change").region.bottom <= 24


async def test_a_draft_of_eight_cards_shows_all_of_them_on_24_lines_and_then_what_changed() -> None:
    names = tuple(f"CUDA{number}" for number in range(8))
    first = msgspec.structs.replace(LAYOUT, split=Split(tensor_split=(1.0,) * 8))
    app = make_app(Script(tok_s=0, cards=names), first=first)
    async with running(app, (80, 24)) as pilot:
        scroll, change = app.main.query_one("#split-scroll"), app.main.query_one("#change")
        await pilot.press("f6", *["down"] * 8)
        assert change.region.height > 2
        await pilot.press("equals_sign", "up", "right")
        await until(pilot, lambda: scroll.size.height >= 8 and not change.region)
        held = [CardForecast(name=name, weights_mib=50, kv_mib=at, compute_mib=10, other_mib=12, free_mib=300)
                for at, name in enumerate((*names, "host"))]  # fmt: skip
        split = first.split
        app.main.split.show_forecast(
            Forecast(source="llama.cpp", split=split, cards=tuple(held[:8]), host=held[8], n_ctx=2048, max_n_ctx=8192)
        )
        await until(pilot, lambda: "79 MiB" in text(app, "#split-rows"))
        assert text(app, "#split-mode").endswith("layers on cards 31/31")
        assert text(app, "#forecast").splitlines() == [
            "✓ fits, 221 MiB to spare on card 7 · by llama.cpp", "n_ctx up to 8192"
        ]  # fmt: skip
        assert scroll.size.height >= 8
        await pilot.press("tab")
        await until(pilot, lambda: change.region.height > 2)
        await pilot.press("shift+tab")
        await until(pilot, lambda: scroll.size.height >= 8)
        await pilot.press("enter")
        await until(pilot, lambda: measured(app) == 2 and change.region.height > 2)
        chosen = app.main.split.chosen
        await until(pilot, lambda: scroll.scroll_y <= chosen < scroll.scroll_y + scroll.size.height)


def test_a_card_that_keeps_little_shows_how_much_it_lost() -> None:
    current = draft_of(Split(layers=(27, 27, 27)), 80, 3)
    draft = msgspec.structs.replace(current, counts=(1, 53, 27))
    first = str(rows(draft, current, ("A", "B", "C"), 0, 60, focused=False, memory=("1 MiB",) * 3)).splitlines()[0]
    assert first.split() == ["▸A", "█" + "░" * 8, "1", "−26", "1", "MiB"]
