"""A screen full of what strangers might write. `python -m tests.app.hostile [plain]` opens it in the terminal."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.app.stage import LAYOUT, cuda_cards, make_app
from workbench.app.app import WorkbenchApp
from workbench.app.outside import LayoutEntry, ModelEntry, Outside
from workbench.app.run import show
from workbench.domain.layout import Layout
from workbench.engines.scripted import MODEL, Script
from workbench.lab.cards import Inventory

STEERING = {
    "\x1b[2J": "[2J",  # clears
    "\x1b[5;5H": "[5;5H",  # moves the cursor
    "\x1b]0;owned\x07": "]0;owned",  # sets the title
    "\x1b]8;;http://evil.example\x1b\\": "]8;;http://evil.example\\",  # begins a link
    "\x1bP+q544e\x1b\\": "P+q544e\\",  # asks the terminal to answer
    "\x9b31m": "31m",
    "\x00\x07\x08\x0b\x0c\x0e\x7f\x85": "",
    "\u202e\u2066\u200b\u2060\ufeff\u00ad\U000e0041": "",
    "\ud800": "\ufffd",
}
"""What each piece does, or would, and what is shown of it."""
MARKUP = "[@click=app.quit]q[/] [bold red]r[/] [link=http://evil.example]l[/link] $x [/"
TOWER = "o" + "\u0301" * 60


def hostile(name: str, *, plain: bool = False, lines: bool = False) -> str:
    """A text with all of it; `plain` as it should be shown."""
    parts = [shown if plain else piece for piece, shown in STEERING.items()]
    tower = TOWER[:5] if plain else TOWER
    divided = f"{name}\tb\nc" if lines or not plain else f"{name} b c"
    return f"{divided} {'.'.join(parts)} {MARKUP} {tower}"


def hostile_app(*, plain: bool = False) -> WorkbenchApp:
    """The screen: model, reply, card, layouts and models are all hostile."""

    def text(name: str) -> str:
        return hostile(name, plain=plain)

    entries = (
        LayoutEntry(Path(f"layouts/{text('file').replace('/', '_')}.yaml"), error=text("error")),
        LayoutEntry(Path("layouts/named.yaml"), Layout(name=text("layout"), model="m.gguf")),
    )
    models = (
        ModelEntry(Path("m.gguf"), msgspec.structs.replace(MODEL, name=text("metadata"), quantisation=text("q"))),
        ModelEntry(Path(f"{text('file').replace('/', '_')}.gguf"), error=text("broken")),
    )
    cards = tuple(msgspec.structs.replace(card, description=text("card")) for card in cuda_cards(2))
    said, code = (hostile(name, plain=plain, lines=True) for name in ("reply", "code"))
    link = f"[click](http://evil.example/{MARKUP.split()[0]})"
    reply = f"<think>{text('thought')}</think>{said}\n\n`{code}`\n\n{link}\n\nThe end."
    script = Script(
        reply=reply, tok_s=0.0, model=msgspec.structs.replace(MODEL, name=text("metadata"), quantisation="Q4_1")
    )

    def find_models(found: Callable[[ModelEntry], None]) -> None:
        for entry in models:
            found(entry)

    outside = Outside(
        list_layouts=lambda: entries,
        find_models=find_models,
        find_cards=lambda: Inventory(cards=cards),
        hint=hostile("hint", plain=plain, lines=True),
    )
    return make_app(script, outside, first=msgspec.structs.replace(LAYOUT, name="named"))


if __name__ == "__main__":
    sys.exit(show(hostile_app(plain="plain" in sys.argv[1:])))
