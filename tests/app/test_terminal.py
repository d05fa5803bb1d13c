"""What a terminal may send: pastes in any pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.app.terminal import Pastes

START, END = "\x1b[200~", "\x1b[201~"


def fed(text: str, cuts: list[int]) -> str:
    pastes, at = Pastes(), [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return "".join(pastes.plain(text[begin:end]) for begin, end in pairwise(at))


@pytest.mark.parametrize(
    ("pasted", "text"),
    [
        ("\x1b[31mred\x1b[0m\r\nnext\rlast", "red\nnext\nlast"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b\x1b(Bc\x1b", "abc"),
        ("quit\x11 clear\x0e\x0e back\x07\x00", "quit clear back"),
        ("tab\tgrüße 🙂 [red]x[/red]", "tab\tgrüße 🙂 [red]x[/red]"),
        ("\x1b[200~again", "again"),
    ],
)
def test_a_paste_is_text_and_nothing_else(pasted: str, text: str) -> None:
    assert fed(f"a{START}{pasted}{END}\x1b[A", []) == f"a{START}{text}{END}\x1b[A"


@given(
    before=st.text("a\x1b[20~", max_size=8),
    pasted=st.text("b\n\x1b[201~m", max_size=20).filter(lambda text: END not in text),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
def test_pieces_make_no_difference(before: str, pasted: str, cuts: list[int]) -> None:
    whole = f"{before}{START}{pasted}{END}c\x1b[A"
    assert fed(whole, cuts) == fed(whole, [])
    assert fed(whole, cuts).endswith(f"{END}c\x1b[A")
