"""The chat as a file: Markdown to read, or JSON lines to work with."""

import os
from datetime import datetime
from pathlib import Path

import msgspec

from workbench.app.panes.turn import figures
from workbench.domain.conversation import Conversation
from workbench.domain.text import clean
from workbench.store.documents import DocumentError
from workbench.store.writing import write_atomically


def suggested_name(now: datetime) -> str:
    """`chat-20261130-1720.md`."""
    return f"chat-{now:%Y%m%d-%H%M}.md"


def save_chat(conversation: Conversation, title: str, name: str, *, overwrite: bool = False) -> Path:
    """Write all turns to a file, as its ending says: `.md`, or `.jsonl` with one turn a line.

    Raises DocumentError for another ending, a file that is there already unless it may overwrite,
    and what the disk refuses.
    """
    path = Path(os.path.expanduser(name))
    if path.suffix not in (".md", ".jsonl"):
        raise DocumentError(path, None, None, "should end in .md for Markdown or in .jsonl for JSON lines")
    text = as_markdown(conversation, title) if path.suffix == ".md" else as_jsonl(conversation)
    try:
        write_atomically(path, text.encode(), overwrite=overwrite)
    except FileExistsError:
        raise DocumentError(path, None, None, "exists already; choose another name or overwrite it") from None
    except OSError as error:
        raise DocumentError(path, None, None, f"cannot be written: {error.strerror}; choose another folder") from None
    return path.resolve()


def as_markdown(conversation: Conversation, title: str) -> str:
    """Headings, prompts and replies as they were written, and each reply's figures."""
    blocks = [f"# {title}"]
    if conversation.system:
        blocks += ["## System", clean(conversation.system)]
    for turn in conversation.turns:
        said = " · ".join(filter(None, (figures(turn).plain, turn.split)))
        blocks += ["## You", clean(turn.prompt), "## Model", clean(turn.reply), f"*{said}*" if said else ""]
    return "\n\n".join(block.strip("\n") for block in blocks if block.strip()) + "\n"


def as_jsonl(conversation: Conversation) -> str:
    """One turn a line with all that is known of it; before them a line with the system prompt, if there is one."""
    lines = [msgspec.json.encode({"system": conversation.system})] if conversation.system else []
    lines += [msgspec.json.encode(turn) for turn in conversation.turns]
    return "".join(line.decode() + "\n" for line in lines)
