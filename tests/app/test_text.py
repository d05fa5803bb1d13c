"""Model text is data."""

import pytest
from rich.cells import cell_len

from workbench.app.text import one_line, parts, sparkline
from workbench.domain.text import clean


def test_control_characters_go_and_lines_stay() -> None:
    assert clean("a\x1b[31mb\x00\r\n\tc\x9b\u202e") == "a[31mb\n\tc"


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("plain", [(False, "plain")]),
        ("<think>\nhm\n</think>\n\nanswer", [(True, "hm\n"), (False, "answer")]),
        ("hm</think>answer", [(True, "hm"), (False, "answer")]),
        ("<think>still", [(True, "still")]),
        ("a<think>b</think>c<thinking>d</thinking>", [(False, "a"), (True, "b"), (False, "c"), (True, "d")]),
        ("<think></think>x", [(False, "x")]),
        ("2 < 3 and x</b>", [(False, "2 < 3 and x</b>")]),
    ],
)
def test_thinking_is_told_from_the_answer(reply: str, wanted: list[tuple[bool, str]]) -> None:
    assert parts(reply, finished=True) == wanted


def test_a_tag_that_is_still_coming_is_held_back() -> None:
    reply = "<think>why</think>because"
    for end in range(len(reply)):
        shown = "".join(text for _, text in parts(reply[:end], finished=False))
        assert "<" not in shown
        assert ">" not in shown
    assert parts("a <", finished=True) == [(False, "a <")]


def test_one_line_counts_cells() -> None:
    assert one_line("a\n b", 9) == "a b"
    assert cell_len(one_line("漢字漢字漢字", 7)) <= 7


def test_sparkline_leaves_what_is_unknown_blank() -> None:
    assert sparkline([0, None, 100], 4) == " ▁ █"
