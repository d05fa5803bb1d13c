"""Conversations and splits, journalled turn by turn: one file of JSON lines a session.

The first line is a header with a version; each record is flushed as it is written, and synced
to disk when a turn ends. A journal is locked while a session writes it.
"""

import contextlib
import io
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from workbench.domain.conversation import Conversation, Turn
from workbench.domain.decoding import decoded
from workbench.domain.layout import Layout
from workbench.domain.memory import CardMemory
from workbench.domain.rules import check_layout
from workbench.domain.text import visible
from workbench.domain.timing import Probe
from workbench.store.appending import ends_whole, open_locked, read_plain

VERSION = 1
KEEP = 50


class JournalError(Exception):
    """A journal that cannot be read or written, in one message for people."""

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


class JournalBusy(JournalError):
    """A living session writes this journal."""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="journal"):
    """The first line. `started` is in seconds since 1970."""

    version: int
    started: float


class LayoutServes(msgspec.Struct, frozen=True, tag="layout"):
    """This layout is loaded and answers."""

    layout: Layout


class TurnBegun(msgspec.Struct, frozen=True, tag="begun"):
    """A prompt was sent; it will be turn `index`, and later ones fall away."""

    index: int
    prompt: str


class TextArrived(msgspec.Struct, frozen=True, tag="text"):
    """More of the reply to the prompt that was sent last."""

    text: str


class TurnEnded(msgspec.Struct, frozen=True, tag="turn"):
    """Turn `index` is over."""

    index: int
    turn: Turn


class ConversationSet(msgspec.Struct, frozen=True, tag="conversation"):
    """The conversation is now this: cleared, cut, shortened or taken over."""

    conversation: Conversation


class SplitTried(msgspec.Struct, frozen=True, kw_only=True, tag="tried"):
    """A split of this session and what it did."""

    layout: Layout
    cards: tuple[CardMemory, ...]
    probe: Probe | None = None


Record = LayoutServes | TurnBegun | TextArrived | TurnEnded | ConversationSet | SplitTried
_encoder = msgspec.json.Encoder()
_lines: msgspec.json.Decoder[Header | Record] = msgspec.json.Decoder(Header | Record)


class _Version(msgspec.Struct):
    """As much of any version's header as is needed to refuse it."""

    version: int


_versions: msgspec.json.Decoder[_Version] = msgspec.json.Decoder(_Version)


class Unfinished(msgspec.Struct, frozen=True):
    """A prompt without an end, and what had arrived of its reply."""

    index: int
    prompt: str
    partial: str


class JournalState(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal tells of its session. `problems` are lines that could not be used, for people."""

    layout: Layout | None = None
    conversation: Conversation = Conversation()
    unfinished: Unfinished | None = None
    tried: tuple[SplitTried, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to go on with."""
        return self.layout is None and not self.conversation.turns and self.unfinished is None


class Journal:
    """A session's journal, open for writing and locked. Safe to call from several threads."""

    def __init__(self, path: Path, file: io.FileIO) -> None:
        """`file` is open for appending and locked; use create, reopen or take_latest."""
        self.path = path
        self._file = file
        self._lock = threading.Lock()
        self._is_torn = False
        self._written = 0

    @classmethod
    def create(cls, folder: Path) -> "Journal":
        """A new journal in `folder`; the oldest beyond KEEP are removed. Raises JournalError."""
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            journal = cls(folder / name, open_locked(folder / name, os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise JournalError(f"no journal can be kept in {folder}: {error.strerror}; "
                               "this conversation will be gone at the end") from None
        journal._write(Header(version=VERSION, started=time.time()))
        journal._written = 0
        _prune(folder)
        return journal

    @classmethod
    def reopen(cls, path: Path) -> tuple["Journal", JournalState]:
        """An older journal, to go on with. Raises JournalBusy where a session lives, JournalError."""
        try:
            file = open_locked(path, 0, 0o600)
        except BlockingIOError:
            raise JournalBusy(f"the session of {path.name} is still open in another workbench; "
                              "end it there, or start without --resume") from None
        except OSError as error:
            raise JournalError(f"{path} cannot be opened: {error.strerror}; start without --resume") from None
        try:
            state = read(path)
        except JournalError:
            file.close()
            raise
        journal = cls(path, file)
        journal._is_torn = not ends_whole(path)
        return journal, state

    @classmethod
    def take_latest(
        cls, folder: Path, tell: Callable[[str], None] = lambda _: None
    ) -> tuple["Journal", JournalState] | None:
        """The newest journal that no living session owns, that can be read and that holds something; None without any.

        What is damaged or of a newer workbench is passed over, left as it is, and told.
        """
        for path in reversed(_journals(folder)):
            try:
                journal, state = cls.reopen(path)
            except JournalBusy:
                continue
            except JournalError as error:
                tell(str(error))
                continue
            if not state.is_empty:
                return journal, state
            if state.problems:
                tell(f"{path} is damaged, and nothing of it can be used; it is left as it is")
            journal.close()
        return None

    def append(self, record: Record) -> None:
        """Write one record, synced to disk where a turn or a layout is settled. Raises JournalError."""
        self._write(record)
        if isinstance(record, TurnEnded | LayoutServes | ConversationSet):
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                raise self._failed(error) from None

    def close(self) -> None:
        """Let go of the journal; one that holds nothing but its header is removed."""
        with self._lock:
            if self._file.closed:
                return
            if not self._written and self._file.seek(0, os.SEEK_END) < 200 and read(self.path).is_empty:
                self.path.unlink(missing_ok=True)
            self._file.close()

    def _write(self, record: Header | Record) -> None:
        try:
            line = _encoder.encode(record) + b"\n"
        except UnicodeEncodeError:
            raise JournalError("the text holds half a character (a lone surrogate); it is not journalled") from None
        with self._lock:
            if self._file.closed:
                return
            if self._is_torn:
                line = b"\n" + line
            self._is_torn = True
            try:
                sent = 0
                while sent < len(line):
                    sent += self._file.write(line[sent:]) or 0
            except OSError as error:
                raise self._failed(error) from None
            self._is_torn = False
            self._written += 1

    def _failed(self, error: OSError) -> JournalError:
        return JournalError(f"the journal {self.path} cannot be written: {error.strerror}; "
                            "what is said now will be gone at the end")


def read(path: Path) -> JournalState:
    """What is in a journal, damaged lines left out and reported.

    Raises JournalError for one that cannot be read or that a newer workbench wrote.
    """
    try:
        lines = read_plain(path).split(b"\n")
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}; start without --resume") from None
    _refuse_newer(path, lines[0])
    state = JournalState()
    problems = []
    if not lines[0].startswith(b'{"type":"journal"'):
        problems.append(f"{path.name}:1: the header is damaged; the rest is used")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            record = decoded(_lines, line)
        except msgspec.DecodeError:
            if number > 1 or not problems:
                cut = " (cut off)" if number == len(lines) else ""
                problems.append(f"{path.name}:{number}: damaged{cut}, left out")
            continue
        if isinstance(record, LayoutServes | SplitTried) and check_layout(record.layout):
            problems.append(f"{path.name}:{number}: a layout that breaks a rule, left out")
            continue
        state = _after(state, record)
    return msgspec.structs.replace(state, problems=tuple(problems))


def _refuse_newer(path: Path, header: bytes) -> None:
    try:
        version = decoded(_versions, header).version
    except msgspec.DecodeError:
        return
    if version > VERSION:
        raise JournalError(f"{path} was written by a newer workbench (journal version {version}, this one reads "
                           f"{VERSION}); use that one, or start without --resume")


def _after(state: JournalState, record: Header | Record) -> JournalState:
    """The state once `record` has happened."""
    replace = msgspec.structs.replace
    match record:
        case LayoutServes(layout):
            return replace(state, layout=layout)
        case TurnBegun(index, prompt):
            return replace(state, conversation=state.conversation.upto(index),
                           unfinished=Unfinished(index, prompt, ""))
        case TextArrived(text) if state.unfinished is not None:
            return replace(state, unfinished=replace(state.unfinished, partial=state.unfinished.partial + text))
        case TurnEnded(index, turn):
            return replace(state, conversation=state.conversation.upto(index).with_turn(turn), unfinished=None)
        case ConversationSet(conversation):
            return replace(state, conversation=conversation, unfinished=None)
        case SplitTried():
            return replace(state, tried=(*state.tried, record))
    return state


def _journals(folder: Path) -> list[Path]:
    """Journals, the one written last at the end."""
    stamped = []
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(OSError):
            stamped.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(stamped)]


def _prune(folder: Path) -> None:
    for path in _journals(folder)[:-KEEP]:
        with contextlib.suppress(OSError), open_locked(path, 0, 0o600):
            path.unlink()
