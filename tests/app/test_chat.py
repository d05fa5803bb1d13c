"""The chat, over a scripted engine."""

from pathlib import Path

import pytest
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownFence

from tests.app.stage import ask, make_app, running, until
from workbench.app.app import WorkbenchApp
from workbench.app.panes.chat import LIVE_TURNS
from workbench.app.panes.markdown import PIECE, Answer, ReplyMarkdown, last_block
from workbench.app.panes.turn import Thinking, TurnView
from workbench.domain.conversation import Turn
from workbench.engines.engine import EngineDied
from workbench.engines.scripted import PROSE_AND_CODE, Script


def last(app: WorkbenchApp) -> TurnView:
    return app.main.chat.log_view.turns[-1]


def figures(view: TurnView) -> str:
    return str(view.query_one(".figures", Static).render())


async def test_a_reply_arrives_whole_with_its_figures() -> None:
    app = make_app(Script(tok_s=0))
    async with running(app) as pilot:
        await ask(pilot, app, "go")
        assert last(app).query_one(Answer).text == PROSE_AND_CODE
        assert "tok/s · first token" in figures(last(app))
        assert figures(last(app)).endswith("tokens")
        assert app.main.chat.prompt.text == ""
        assert not app.main.query_one("#hint").display


async def test_a_long_reply_is_drawn_as_its_whole_text_would_be() -> None:
    script = Script(reply=PROSE_AND_CODE * 14, tok_s=800)
    app = make_app(script)
    async with running(app) as pilot:
        await ask(pilot, app, "go")
        pieces = list(last(app).query(ReplyMarkdown))
        assert len(pieces) > 1
        assert "".join(piece.source for piece in pieces) == script.reply
        drawn = [block.name for piece in pieces for block in piece.children]
        whole = ReplyMarkdown(script.reply)
        await app.main.chat.log_view.mount(whole)
        await until(pilot, lambda: len(whole.children) == len(drawn))
        assert drawn == [block.name for block in whole.children]
        assert all(fence._highlighted_code.spans for fence in last(app).query(MarkdownFence))


def test_a_piece_ends_where_a_block_does() -> None:
    text = "a\n\nb\n\n```\nc\n\nd"
    assert text[last_block(text) :].startswith("```")
    assert last_block("one block") == 0
    assert PIECE > 0


async def test_escape_stops_and_keeps_what_there_is() -> None:
    app = make_app(Script(reply="word " * 5000, tok_s=200))
    async with running(app) as pilot:
        app.main.chat.prompt.fill("go", None)
        await pilot.press("enter")
        await until(pilot, lambda: "word" in (last(app).reply if app.main.chat.answering else ""))
        await pilot.press("escape")
        await until(pilot, lambda: not app.main.chat.answering)
        turn = app.session.conversation.turns[0]
        assert turn.stop_reason == "cancelled"
        assert 0 < len(turn.reply) < 20000
        assert last(app).query_one(Answer).text == turn.reply
        assert "stopped by you" in figures(last(app))


async def test_thinking_is_one_line_until_it_is_unfolded() -> None:
    app = make_app(Script(reply="<think>\nlet me see\nagain\n</think>\n\nSo it is.", tok_s=0))
    async with running(app) as pilot:
        await ask(pilot, app, "go")
        fold = last(app).query_one(Thinking)
        assert fold.size.height == 1
        assert "4 words" in str(fold.render())
        assert last(app).query_one(Answer).text == "So it is."
        await pilot.press("ctrl+t")
        await until(pilot, lambda: fold.size.height == 3)
        assert "let me see" in str(fold.render())


async def test_model_text_is_data() -> None:
    app = make_app(Script(reply="[bold]x[/] <b>y</b> \x1b[31mz\x07 [link](javascript:alert(1)) <script>no", tok_s=0))
    async with running(app) as pilot:
        await ask(pilot, app, "[red]me[/red]")
        assert "[red]me[/red]" in str(last(app).query_one(".you", Static).render())
        shown = str(last(app).query_one("MarkdownParagraph", Static).render())
        assert shown == "[bold]x[/] <b>y</b> [31mz [link](javascript:alert(1)) <script>no"


async def test_links_are_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    app = make_app(Script(reply="see [this](https://example.org/x)", tok_s=0))
    monkeypatch.setattr(app, "open_url", lambda url, new_tab=True: opened.append(url))
    async with running(app) as pilot:
        await ask(pilot, app, "go")
        markdown = last(app).query_one(ReplyMarkdown)
        markdown.post_message(Markdown.LinkClicked(markdown, "https://example.org/x"))
        await until(pilot, lambda: app.clipboard == "https://example.org/x")
        assert opened == []


async def test_editing_an_earlier_turn_replaces_it_and_what_followed() -> None:
    app = make_app(Script(reply="yes", tok_s=0))
    async with running(app) as pilot:
        for prompt in ("one", "two", "three"):
            await ask(pilot, app, prompt)
        await pilot.press("tab", "left", "e")
        assert app.main.chat.prompt.text == "two"
        await pilot.press("2", "enter")
        await until(pilot, lambda: [turn.prompt for turn in app.session.conversation.turns] == ["one", "two2"])
        await until(pilot, lambda: not app.main.chat.answering)
        assert [view.prompt for view in app.main.chat.log_view.turns] == ["one", "two2"]


async def test_the_last_prompt_can_be_sent_again_and_escape_leaves_editing() -> None:
    app = make_app(Script(reply="yes", tok_s=0))
    async with running(app) as pilot:
        await ask(pilot, app, "one")
        await pilot.press("ctrl+r")
        assert app.main.chat.prompt.text == "one"
        assert "editing turn 1" in str(app.main.chat.prompt.border_title)
        await pilot.press("escape")
        assert app.main.chat.prompt.text == ""
        assert app.main.chat.prompt.editing is None


async def test_prompts_come_back_and_what_was_unsent_too() -> None:
    app = make_app(Script(reply="yes", tok_s=0))
    async with running(app) as pilot:
        for prompt in ("one", "two"):
            await ask(pilot, app, prompt)
        prompt_box = app.main.chat.prompt
        await pilot.press("x", "up")
        assert prompt_box.text == "two"
        await pilot.press("up", "up")
        assert prompt_box.text == "one"
        await pilot.press("down", "down")
        assert prompt_box.text == "x"


async def test_a_prompt_of_several_lines() -> None:
    app = make_app(Script(reply="yes", tok_s=0))
    async with running(app) as pilot:
        await pilot.press("a", "ctrl+j", "b", "enter")
        await until(pilot, lambda: app.session.conversation.turns)
        assert app.session.conversation.turns[0].prompt == "a\nb"


async def test_a_new_chat_asks_once_before_it_clears() -> None:
    app = make_app(Script(reply="yes", tok_s=0))
    async with running(app) as pilot:
        await ask(pilot, app, "one")
        await pilot.press("ctrl+n")
        assert len(app.main.chat.log_view.turns) == 1
        await pilot.press("ctrl+n")
        await until(pilot, lambda: not app.main.chat.log_view.turns)
        assert app.session.conversation.turns == ()
        assert app.main.query_one("#hint").display


async def test_old_turns_are_drawn_as_one_piece() -> None:
    app = make_app(Script(reply="yes **and** no", tok_s=0))
    async with running(app) as pilot:
        for number in range(LIVE_TURNS + 2):
            await ask(pilot, app, f"prompt {number}")
        views = app.main.chat.log_view.turns
        live = [bool(view.query(Answer)) for view in views]
        assert live == [False] * 2 + [True] * LIVE_TURNS


async def test_a_conversation_is_drawn_when_it_is_taken_up() -> None:
    app = make_app(Script(reply="yes", tok_s=0))
    async with running(app) as pilot:
        turns = tuple(Turn(prompt=f"p{number}", reply="r", stop_reason="stop") for number in range(9))
        conversation = app.session.conversation.__class__(turns=turns)
        app.session.restore(conversation)
        await until(pilot, lambda: len(app.main.chat.log_view.turns) == 9)
        await until(pilot, lambda: last(app).query(".figures") and figures(last(app)) != "… Esc stops")
        await ask(pilot, app, "more")
        assert last(app).index == 9


async def test_a_dead_engine_leaves_the_text_and_serves_again() -> None:
    script = Script(reply="word " * 50, tok_s=0, fail_after=20)
    app = make_app(script)
    async with running(app) as pilot:
        script.fail_chat = EngineDied("card CUDA1 is gone", card="CUDA1")
        await ask(pilot, app, "go")
        assert app.session.conversation.turns[0].reply.count("word") == 20
        assert "the reply broke off" in figures(last(app))
        await until(pilot, lambda: any("CUDA1" in said.message and said.problem for said in app.said))
        assert app.main.status.display
        await ask(pilot, app, "again")
        assert app.session.conversation.turns[1].stop_reason == "stop"


async def test_the_log_stays_where_the_user_scrolled() -> None:
    app = make_app(Script(reply=("some words on a line " * 8 + "\n\n") * 100, tok_s=400))
    async with running(app, (80, 24)) as pilot:
        app.main.chat.prompt.fill("go", None)
        await pilot.press("enter")
        log = app.main.chat.log_view
        await until(pilot, lambda: log.max_scroll_y > 30)
        assert log.scroll_y > log.max_scroll_y - 12
        log.focus()
        await pilot.press("home")
        await until(pilot, lambda: log.scroll_y == 0)
        height = log.max_scroll_y
        await until(pilot, lambda: log.max_scroll_y > height + 20)
        assert log.scroll_y == 0


async def test_a_reply_is_written_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app(Script(reply="yes", tok_s=0))
    async with running(app) as pilot:
        await ask(pilot, app, "one")
        await pilot.press("tab", "w", "w")
        await until(pilot, lambda: (tmp_path / "reply-2.md").exists())
        assert (tmp_path / "reply-1.md").read_text() == "yes\n"
