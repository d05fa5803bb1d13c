"""`workbench doctor`: engine, cards, machine and documents looked over, whatever of them is broken."""

import contextlib
import getpass
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import shlex
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from workbench import __version__
from workbench.domain.env import ALLOWED, READ_BY_PRESENCE, means_off
from workbench.domain.report import Facts, Finding, Mask, Problem
from workbench.lab.remedies import Remedies, required
from workbench.store.documents import DocumentError, is_there
from workbench.store.fit import RIGHT
from workbench.store.models import DEMO, ModelError, resolve_model
from workbench.store.places import Places, list_layouts, list_prompt_sets, places, read_config

T = TypeVar("T")
LEAST_DISK_MIB = 1024.0
LEAST_MEMORY_MIB = 1024.0
PORTS = {11434: "Ollama", 8080: "llama-server", 8000: "vLLM", 1234: "LM Studio", 5000: "TabbyAPI"}
"""Where servers listen that nobody told to listen elsewhere."""
ENGINE = "llama-cpp-python"
PACKAGES = (ENGINE, "nvidia-ml-py", "textual", "httpx", "msgspec")
SHIM = "pynvml"
"""A package that says of itself that it is not to be used; it prints on the screen."""
SHOWN = ALLOWED | {
    "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE", "NO_COLOR", "TERM", "TEXTUAL_COLOR_SYSTEM", "TEXTUAL_FPS",
    "TEXTUAL_THEME", "WORKBENCH_ASCII", "WORKBENCH_HOME", "WORKBENCH_MOUSE", "WORKBENCH_SLOW",
}  # fmt: skip
"""Environment variables whose values are told."""


def mask() -> Mask:
    """What is not to be told of this user and machine."""
    user: str | None = None
    with contextlib.suppress(KeyError, OSError):
        user = getpass.getuser()
    home = os.path.expanduser("~")
    return Mask(home=None if home == "~" else home, user=user, host=platform.node() or None)


class TookTooLong(Exception):
    """A question that was not answered in time."""


def within(seconds: float, ask: Callable[[], T]) -> T:
    """The answer, asked on a thread that is left behind if none comes. Raises TookTooLong, and what `ask` raises."""
    answers: list[T] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            failures.append(error)

    asking = threading.Thread(target=work, daemon=True)
    asking.start()
    asking.join(seconds)
    if failures:
        raise failures[0]
    if not answers:
        raise TookTooLong
    return answers[0]


def look_at_machine(env: Mapping[str, str] = os.environ) -> list[Finding]:
    """All that needs neither engine nor driver."""
    found = [_versions(), _environment(env), _host()]
    try:
        at = places(env)
    except Exception as error:
        return [*found, Finding(subject="folders", problems=(Problem(what=str(error), fix="export HOME=~"),))]
    return [*found, _folders(at), _documents(at), _servers()]


def _versions() -> Finding:
    facts: Facts = {"workbench": __version__, "python": platform.python_version(), "system": platform.platform()}
    problems = []
    for package in PACKAGES:
        facts[package] = version_of(package)
        if facts[package] is None and package != ENGINE:  # of which look_at_engine tells more
            fix = f"{Remedies().python} -m pip install '{required(package)}'"
            problems.append(Problem(what=f"the package {package} is not installed", fix=fix))
    if version_of(SHIM) is not None:
        fix = f"{Remedies().python} -m pip uninstall -y {SHIM}"
        what = f"the package {SHIM} is deprecated and prints over the screen; nvidia-ml-py does its work"
        problems.append(Problem(what=what, fix=fix, broken=False))
    try:
        resolve_model(DEMO)
        facts["bundled model"] = "there"
    except ModelError:
        facts["bundled model"] = None
        what = "the bundled model is not installed, so `workbench demo` cannot run"
        problems.append(Problem(what=what, fix=Remedies().install_demo(), broken=False))
    return Finding(subject="versions", facts=facts, problems=tuple(problems))


def version_of(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _environment(env: Mapping[str, str]) -> Finding:
    facts: Facts = {name: env[name] for name in sorted(SHOWN & env.keys())}
    problems = [
        Problem(
            what=f"{name}={env[name]} switches it on: llama.cpp only asks whether it is set",
            fix=f"unset {name}", broken=False,
        )
        for name in sorted(READ_BY_PRESENCE & env.keys())
        if means_off(env[name])
    ]  # fmt: skip
    return Finding(subject="environment", facts=facts, problems=tuple(problems))


def _host() -> Finding:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    free = memory.available / 2**20
    facts: Facts = {
        "cores": psutil.cpu_count(),
        "memory_mib": round(memory.total / 2**20),
        "available_mib": round(free),
        "swap_mib": round(swap.total / 2**20),
    }
    problems = []
    if free < LEAST_MEMORY_MIB:
        what = f"{free:.0f} MiB of memory are free; the demonstration alone takes about 900"
        problems.append(Problem(what=what, fix="ps aux --sort=-rss | head", broken=False))
    return Finding(subject="host", facts=facts, problems=tuple(problems))


# ── folders ───────────────────────────────────────────────────────────────────────────────
def _folders(at: Places) -> Finding:
    rows: list[Facts] = []
    problems: list[Problem] = []
    for name in ("config", "state", "log", "data", "runtime"):
        path: Path = getattr(at, name)
        there = nearest_folder(path)
        why = unwritable(path, there)
        free = None
        with contextlib.suppress(OSError):
            free = round(shutil.disk_usage(there).free / 2**20)
        rows.append({"name": name, "path": str(path), "writable": why is None, "free_mib": free})
        if why is not None:
            problems.append(Problem(what=f"the {name} folder {path} cannot be written: {why[0]}", fix=why[1]))
        elif free is not None and free < LEAST_DISK_MIB and name != "config":
            what = f"{free} MiB are free on the disk of the {name} folder {path}"
            problems.append(Problem(what=what, fix=f"df -h {there}", broken=False))
    return Finding(subject="folders", facts=tuple(rows), problems=tuple(problems))


def nearest_folder(path: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            if folder.exists():
                return folder
    return Path("/")


def unwritable(path: Path, there: Path) -> tuple[str, str] | None:
    """Why nothing can be written to a folder, and what mends it; None if it can be, or can be made."""
    if not there.is_dir():
        return f"{there} is no folder", f"mv {there} {there}.old"
    if there == path:
        # Not os.access alone: a file system may be read-only, or full of quotas.
        try:
            with tempfile.TemporaryFile(dir=path):
                return None
        except OSError as error:
            reason = error.strerror or str(error)
    elif os.access(there, os.W_OK | os.X_OK):
        return None
    else:
        reason = f"{there} is not yours to write to"
    if there.stat().st_uid == os.getuid():
        return reason, f"chmod u+rwx {there}"
    return reason, f"sudo install -d -o \"$(id -un)\" {path}"


# ── documents and servers ─────────────────────────────────────────────────────────────────
def _documents(at: Places) -> Finding:
    problems: list[Problem] = []
    try:
        read_config(at)
        config = "sound" if is_there(at.config / "config.yaml") else None
    except DocumentError as error:
        config = "wrong"
        problems.append(broken_document(error, broken=True))
    counts: Facts = {"config.yaml": config}
    listed: Sequence[tuple[str, Sequence[tuple[Path, Any]]]] = (
        ("layouts", list_layouts(at)), ("prompt sets", list_prompt_sets(at)),
    )  # fmt: skip
    for name, documents in listed:
        wrong = [document for _, document in documents if isinstance(document, DocumentError)]
        counts[name] = len(documents) - len(wrong)
        problems += [broken_document(error, broken=False) for error in wrong]
    return Finding(subject="documents", facts=counts, problems=tuple(problems))


def broken_document(error: DocumentError, *, broken: bool) -> Problem:
    """Where a document is wrong, and the command that says how; not what stands there, which may be a secret."""
    place = str(error.path) if error.line is None else f"{error.path}:{error.line}"
    key = _known(error.key or "")
    what = f"{place}: {key}: is not right" if key else f"{place}: cannot be used"
    return Problem(what=what, fix=f"workbench check {shlex.quote(str(error.path))}", broken=broken)


def _known(key: str) -> str:
    """So much of a key's place as has names of ours; the user's own may be a secret."""
    names = {name for fields in RIGHT.values() for name in fields}
    known = itertools.takewhile(lambda part: part.partition("[")[0] in names, key.split("."))
    return ".".join(known)


def _servers() -> Finding:
    facts: Facts = {}
    for port, name in PORTS.items():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            facts[f"127.0.0.1:{port}"] = f"something listens, where {name} would"
    return Finding(subject="servers", facts=facts)
