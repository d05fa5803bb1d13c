"""The run log: a folder a run, `run.json` and one JSON line a load or sample in `samples.jsonl`.

A line is written in one go as soon as its sample is taken, so that whatever ends the process
takes at most the sample in flight. A run is locked while it is written.
"""

import contextlib
import io
import os
import secrets
import threading
import time
from pathlib import Path

import msgspec

from workbench.domain.decoding import decoded
from workbench.domain.faults import nearest
from workbench.domain.run import VERSION, Run, RunHeader, check_run
from workbench.domain.samples import LoadRecord, Sample, is_plausible
from workbench.domain.text import visible
from workbench.store.appending import ends_whole, open_locked, read_plain
from workbench.store.places import Places, places
from workbench.store.writing import write_atomically

HEADER, SAMPLES = "run.json", "samples.jsonl"
Record = Sample | LoadRecord
_lines: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder()


class RunError(Exception):
    """A run that cannot be read, written or gone on with, in one message for people."""

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


class RunUnwritable(RunError):
    """The disk or its permissions refuse; nothing is wrong with what was asked."""


class _Version(msgspec.Struct):
    """As much of any version's header as is needed to refuse it."""

    version: int


_versions: msgspec.json.Decoder[_Version] = msgspec.json.Decoder(_Version)
_headers: msgspec.json.Decoder[RunHeader] = msgspec.json.Decoder(RunHeader)


class RunLog:
    """A run that is being written, locked. Its folder is made by `create`."""

    def __init__(self, folder: Path, file: io.FileIO, *, is_torn: bool) -> None:
        self.folder = folder
        self._file = file
        self._is_torn = is_torn
        self._lock = threading.Lock()

    @classmethod
    def create(cls, folder: Path, header: RunHeader) -> "RunLog":
        """A new run in `folder`, which must be new or empty. Raises RunError."""
        taken = f"{folder} is not empty; name a new folder, or go on with `--resume {folder}`"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(not entry.name.startswith(".") for entry in folder.iterdir()):
                raise RunError(taken)
            file = open_locked(folder / SAMPLES, os.O_CREAT, 0o644)
            try:
                _write_header(folder, header, overwrite=False)
            except FileExistsError:
                file.close()
                raise RunError(taken) from None
            except OSError:
                file.close()
                (folder / SAMPLES).unlink()
                folder.rmdir()
                raise
            return cls(folder, file, is_torn=False)
        except BlockingIOError:
            raise RunError(f"{folder} is being written by another workbench; name a new folder") from None
        except OSError as error:
            what = f"{folder} cannot be written: {error.strerror}"
            raise RunUnwritable(f"{what}; choose another with --out, `workbench doctor` tells what mends it") from None

    @classmethod
    def reopen(cls, folder: Path) -> tuple["RunLog", Run]:
        """An older run, to go on with. Raises RunError."""
        _read_header(folder)
        try:
            file = open_locked(folder / SAMPLES, os.O_CREAT, 0o644)
        except BlockingIOError:
            raise RunError(f"{folder} is being written by another workbench; wait for it, or end it") from None
        except OSError as error:
            what = f"{folder / SAMPLES} cannot be written: {error.strerror}"
            raise RunUnwritable(f"{what}; check its permissions") from None
        try:
            run = read_run(folder)
        except RunError:
            file.close()
            raise
        return cls(folder, file, is_torn=not ends_whole(folder / SAMPLES)), run

    def append(self, record: Record) -> None:
        """Write one line. Raises RunError."""
        line = _encoder.encode(record) + b"\n"
        with self._lock:
            if not os.fstat(self._file.fileno()).st_nlink:
                raise RunUnwritable(f"{self.folder / SAMPLES} was deleted while the run was on; begin a new run")
            if self._is_torn:
                line = b"\n" + line
            self._is_torn = True
            try:
                sent = 0
                while sent < len(line):
                    sent += self._file.write(line[sent:]) or 0
            except OSError as error:
                what = f"{self.folder / SAMPLES} cannot be written: {error.strerror}"
                raise RunUnwritable(f"{what}; make room, then go on with `--resume {self.folder}`") from None
            self._is_torn = False

    def update(self, header: RunHeader) -> None:
        """Write `run.json` anew, in one step. Raises RunError."""
        try:
            _write_header(self.folder, header)
        except OSError as error:
            raise RunUnwritable(f"{self.folder / HEADER} cannot be written: {error.strerror}; make room, "
                                f"then go on with `--resume {self.folder}`") from None

    def close(self) -> None:
        """Let go of the run."""
        with self._lock:
            self._file.close()


def new_run_id(name: str) -> str:
    """An id that sorts by time: `20261130-141502-demo-even-vs-demo-3-1-4f2a`."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{secrets.token_hex(2)}"


def read_run(folder: Path) -> Run:
    """A run with every line that can be used; the others are reported in it. Raises RunError."""
    header = _read_header(folder)
    try:
        lines = read_plain(folder / SAMPLES).split(b"\n")
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise RunError(f"{folder / SAMPLES} cannot be read: {error.strerror}; check its permissions") from None
    planned = {each.key: each for each in header.plan}
    samples: dict[str, Sample] = {}
    loads: list[LoadRecord] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            record = decoded(_lines, line)
        except msgspec.DecodeError:
            cut = " (cut off)" if number == len(lines) else ""
            problems.append(f"{SAMPLES}:{number}: damaged{cut}, left out")
            continue
        if not is_plausible(record):
            problems.append(f"{SAMPLES}:{number}: has a figure that cannot be, left out")
        elif isinstance(record, LoadRecord):
            loads.append(record)
        elif planned.get(record.planned.key) != record.planned:
            problems.append(f"{SAMPLES}:{number}: a sample that this run did not plan, left out")
        elif record.planned.key in samples:
            problems.append(f"{SAMPLES}:{number}: a sample that was there already, left out")
        else:
            samples[record.planned.key] = record
    return Run(header=header, samples=tuple(samples.values()), loads=tuple(loads), problems=tuple(problems))


def _write_header(folder: Path, header: RunHeader, *, overwrite: bool = True) -> None:
    write_atomically(folder / HEADER, msgspec.json.format(_encoder.encode(header), indent=1), overwrite=overwrite)


def _read_header(folder: Path) -> RunHeader:
    path = folder / HEADER
    try:
        data = read_plain(path)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{folder} is no run: it has no {HEADER}; `workbench runs list` names them") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}; check its permissions") from None
    with contextlib.suppress(msgspec.DecodeError):
        version = decoded(_versions, data).version
        if version > VERSION:
            raise RunError(f"{folder} was written by a newer workbench (run version {version}, this one reads "
                           f"{VERSION}); use that one")
    try:
        header = decoded(_headers, data)
    except msgspec.DecodeError as error:
        raise RunError(f"{path} is damaged: {error}; its run cannot be used") from None
    for key, message in check_run(header):
        raise RunError(f"{path}: {key}: {message}; its run cannot be used")
    return header


def list_runs(at: Places | None = None) -> list[tuple[Path, RunHeader | RunError]]:
    """Every run of this user, or what is wrong with it; the newest first, whatever its folder is called."""
    out: list[tuple[float, Path, RunHeader | RunError]] = []
    try:
        folders = list(((at or places()).runs).iterdir())
    except OSError:
        return []
    for folder in folders:
        if not folder.is_dir() or folder.name.startswith(".") or _was_never_begun(folder):
            continue
        try:
            header = _read_header(folder)
            out.append((header.created, folder, header))
        except RunError as error:
            out.append((_changed(folder), folder, error))
    return [(folder, found) for _, folder, found in sorted(out, key=lambda each: each[:2], reverse=True)]


def _changed(folder: Path) -> float:
    """When a folder was last written to, seconds since 1970; 0 where nobody knows."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _was_never_begun(folder: Path) -> bool:
    """Whether a run ended before anything was written down: a full disk, a kill at once."""
    try:
        found = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
        return all(entry.name == SAMPLES and not entry.stat().st_size for entry in found)
    except OSError:
        return False


def find_run(asked: str, at: Places | None = None) -> Path:
    """The folder of a run, given by path, by id, or by the only id that begins so; `last` is the newest.

    Raises RunError, naming near ones.
    """
    path = Path(os.path.expanduser(asked))
    if os.sep in asked or (asked and os.path.exists(path / HEADER)):
        return path
    folders = [folder for folder, _ in list_runs(at)]
    if asked == "last" and folders:
        return folders[0]
    found = [folder for folder in folders if folder.name == asked]
    found = found or [folder for folder in folders if asked and folder.name.startswith(asked)]
    if len(found) == 1:
        return found[0]
    if found:
        raise RunError(f"{asked} begins the id of {len(found)} runs; write more of it")
    names = [folder.name for folder in folders]
    hint = nearest(asked, names) or "; `workbench runs list` names them"
    raise RunError(f"there is no run {asked} in {(at or places()).runs}{hint}")
