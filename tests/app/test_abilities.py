"""What is made of a terminal by its surroundings, and how the screen looks without line drawing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color

from workbench.app.abilities import ascii_only, encoding, mouse, slow, textual_defaults
from workbench.app.plain import Plain

SSH = {"SSH_CONNECTION": "a 1 b 2"}


@pytest.mark.parametrize(
    ("env", "name", "plain"),
    [
        ({}, "utf-8", False),
        ({"LANG": "de_DE.UTF-8"}, "utf-8", False),
        ({"LC_CTYPE": "UTF-8"}, "utf-8", False),
        ({"LANG": "C.utf8", "LC_ALL": ""}, "utf-8", False),
        ({"LANG": "de_DE.ISO-8859-1"}, "iso8859-1", True),
        ({"LANG": "de_DE.ISO-8859-15@euro"}, "iso8859-15", True),
        ({"LANG": "C"}, "ascii", True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "ascii", True),  # Python's own doing
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, "utf-8", False),
        ({"LANG": "en_GB.UTF-8", "LC_ALL": "POSIX"}, "ascii", True),
        ({"LANG": "en_GB.UTF-8", "TERM": "linux"}, "utf-8", True),
        ({"LANG": "en_GB.UTF-8", "TERM": "vt100"}, "utf-8", True),
        ({"LANG": "C", "WORKBENCH_ASCII": "0"}, "ascii", False),
        ({"LANG": "C.UTF-8", "WORKBENCH_ASCII": "1"}, "utf-8", True),
        ({"LANG": "C.UTF-8", "WORKBENCH_ASCII": ""}, "utf-8", False),
    ],
)
def test_line_drawing_follows_locale_and_terminal(env: dict[str, str], name: str, plain: bool) -> None:
    assert encoding(env) == name
    assert ascii_only(env) is plain


def test_a_link_is_slow_over_ssh_unless_the_user_says_otherwise() -> None:
    assert textual_defaults({}) == {}
    over_ssh = {"TEXTUAL_FPS": "15", "TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"}
    assert textual_defaults(SSH) == over_ssh
    assert textual_defaults({**SSH, "COLORTERM": "truecolor"}) == {**over_ssh, "TEXTUAL_COLOR_SYSTEM": "256"}
    assert textual_defaults({**SSH, "WORKBENCH_SLOW": "0"}) == {}
    assert slow({"WORKBENCH_SLOW": "1"})


def test_an_old_terminal_gets_no_colours_and_the_mouse_can_be_left_alone() -> None:
    assert textual_defaults({"TERM": "vt220"}) == {"NO_COLOR": "1"}
    assert mouse({})
    assert not mouse({"WORKBENCH_MOUSE": "0"})


def drawn(text: str, name: str = "utf-8") -> str:
    return "".join(segment.text for segment in Plain(name).apply([Segment(text)], Color.parse("black")))


def test_frames_bars_and_arrows_are_ascii_and_letters_stay() -> None:
    assert drawn("╭─ Split ─╮│▸RPC0 ██▓▓▒░··▁▃█ ‹layer› row✗ 48°") == "+- Split -+|>RPC0 ##%%+:.._-# <layer> row! 48C"
    assert drawn("─ Grüße 你好 🙂 🔎") == "- Grüße 你好 ?? > "
    assert drawn("─ Grüße 你好", "iso8859-1") == "- Grüße ????"
    assert drawn("─ Grüße 你好", "ascii") == "- Gr??e ????"


@given(st.text(max_size=20), st.sampled_from(["utf-8", "ascii", "iso8859-1"]))
def test_nothing_moves(text: str, name: str) -> None:
    assert cell_len(drawn(text, name)) == cell_len(text)
