"""Where things live: documents, state, logs, runs and short-lived files."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import platformdirs

from workbench.domain.faults import Fault, is_unprintable, nearest
from workbench.domain.layout import Layout
from workbench.domain.prompts import PromptSet
from workbench.domain.rules import is_endpoint
from workbench.domain.servers import is_variable, url_fault
from workbench.store.config import Config
from workbench.store.documents import DocumentError, is_there, read_document, read_layout, read_prompt_set

HOME_VARIABLE = "WORKBENCH_HOME"
_YAML = (".yaml", ".yml")
LONGEST_CURRENCY = 12
_Document = TypeVar("_Document", Layout, PromptSet)


class HomeError(Exception):
    """It cannot be told where the user's folders are: why, and what would be right."""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The folders in use; none is made before something is written there.

    With `WORKBENCH_HOME` set, all but `./layouts` and `./prompts` are under it.
    """

    config: Path
    state: Path
    log: Path
    data: Path
    runtime: Path

    @property
    def layouts(self) -> tuple[Path, ...]:
        """Where layouts are looked for, nearest first."""
        return Path("layouts"), self.config / "layouts"

    @property
    def prompts(self) -> tuple[Path, ...]:
        """Where prompt sets are looked for, nearest first."""
        return Path("prompts"), self.config / "prompts"

    @property
    def journals(self) -> Path:
        """Where conversations are journalled."""
        return self.state / "journals"

    @property
    def screen_state(self) -> Path:
        """What the screen was like when it was left."""
        return self.state / "screen.json"

    @property
    def keymap(self) -> Path:
        """The user's own keys."""
        return self.config / "keymap.yaml"

    @property
    def runs(self) -> Path:
        """Where runs are kept, a folder each."""
        return self.data / "runs"

    @property
    def engine_log(self) -> Path:
        """The file that the libraries of all workers print to."""
        return self.log / "engine.log"


def places(env: Mapping[str, str] = os.environ) -> Places:
    """The folders of this user. Raises HomeError."""
    if home := env.get(HOME_VARIABLE):
        root = Path(os.path.expanduser(home))
        if str(root).startswith("~"):
            raise HomeError(f"{HOME_VARIABLE}={home} names no folder; set it to one of yours")
        return Places(config=root / "config", state=root / "state", log=root / "log", data=root / "data",
                      runtime=root / "run")
    dirs = platformdirs.PlatformDirs("workbench", appauthor=False)
    try:
        return Places(config=dirs.user_config_path, state=dirs.user_state_path, log=dirs.user_log_path,
                      data=dirs.user_data_path, runtime=_runtime(env) or dirs.user_state_path / "run")
    except RuntimeError:
        raise HomeError(f"there is no home folder; set HOME, or {HOME_VARIABLE} to a folder of yours") from None


def _runtime(env: Mapping[str, str]) -> Path | None:
    """A folder in the login session's own, if there is one that is really this user's.

    platformdirs would fall back to a well-known name in /tmp, with a warning on the screen.
    """
    session = Path(env.get("XDG_RUNTIME_DIR") or "/nowhere")
    is_ours = session.is_dir() and session.stat().st_uid == os.getuid() and os.access(session, os.W_OK)
    return session / "workbench" if is_ours else None


def private_folder(path: Path) -> Path:
    """`path`, made for this user alone if it is not there. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def read_config(at: Places | None = None) -> Config:
    """The user's configuration; the defaults if there is none. Raises DocumentError."""
    path = (at or places()).config / "config.yaml"
    return read_document(path, Config, check_config) if is_there(path) else Config()


def check_config(config: Config) -> list[Fault]:
    """Every fault that the types do not tell."""
    faults = [Fault(f"model_folders[{at}]", "is no folder's name; write one, for example ~/models")
              for at, folder in enumerate(config.model_folders or ()) if not folder.strip() or is_unprintable(folder)]
    if config.price is not None:
        given = {"per_hour": config.price.per_hour, "per_kwh": config.price.per_kwh}
        faults += [Fault(f"price.{key}", f"is {value:g}; a price is above 0, for example 2.5")
                   for key, value in given.items() if value is not None and not 0 < value < math.inf]
        if not 0 < len(config.price.currency) <= LONGEST_CURRENCY or is_unprintable(config.price.currency):
            faults.append(Fault("price.currency", f"is not 1 to {LONGEST_CURRENCY} letters; write for example EUR"))
        if all(value is None for value in given.values()):
            faults.append(Fault("price", "has neither per_hour nor per_kwh; give one, for example per_hour: 2.5"))
    if not all(map(is_variable, config.api_keys)):  # what stands there may be the key itself: it is not repeated
        faults.append(Fault("api_keys", "has a name that no environment variable can have; write the name of the "
                            "variable that holds the key, such as OPENAI_API_KEY, never the key"))
    faults += [Fault(f"api_keys.{name}[{at}]", message) for name, urls in config.api_keys.items()
               for at, url in enumerate(urls) if (message := url_fault(url)) is not None]
    faults += [Fault(f"rpc_servers[{at}]", f"`{server}` is no host:port; write for example gpu-2:50052")
               for at, server in enumerate(config.rpc_servers) if not is_endpoint(server)]
    return faults


def list_layouts(at: Places | None = None) -> list[tuple[Path, Layout | DocumentError]]:
    """Every layout there is, nearest folder first, or what is wrong with it."""
    return _read_all((at or places()).layouts, _YAML, read_layout)


def list_prompt_sets(at: Places | None = None) -> list[tuple[Path, PromptSet | DocumentError]]:
    """Every prompt set there is, nearest folder first, or what is wrong with it."""
    return _read_all((at or places()).prompts, (*_YAML, ".jsonl"), read_prompt_set)


def find_layout(name_or_path: str, at: Places | None = None) -> Path:
    """The file of a layout, given by path or by name. Raises DocumentError, naming near ones."""
    return _find(name_or_path, "layout", (at or places()).layouts, lambda: list_layouts(at))


def find_prompt_set(name_or_path: str, at: Places | None = None) -> Path:
    """The file of a prompt set, given by path or by name. Raises DocumentError, naming near ones."""
    return _find(name_or_path, "prompt set", (at or places()).prompts, lambda: list_prompt_sets(at))


def documents(folders: tuple[Path, ...], ends: tuple[str, ...] = (*_YAML, ".jsonl")) -> list[Path]:
    """The files of documents in these folders, unread; folders that cannot be read have none."""
    found = []
    for folder in folders:
        try:
            found += sorted(path for path in folder.iterdir()
                            if path.suffix.lower() in ends and not path.name.startswith("."))
        except OSError:
            continue
    return found


def _read_all(
    folders: tuple[Path, ...], ends: tuple[str, ...], read: Callable[[Path], _Document]
) -> list[tuple[Path, _Document | DocumentError]]:
    out: list[tuple[Path, _Document | DocumentError]] = []
    for path in documents(folders, ends):
        try:
            out.append((path, read(path)))
        except DocumentError as error:
            out.append((path, error))
    return out


def _find(
    asked: str, noun: str, folders: tuple[Path, ...], read: Callable[[], list[tuple[Path, _Document | DocumentError]]]
) -> Path:
    path = Path(os.path.expanduser(asked))
    is_path = os.sep in asked or path.suffix.lower() in (*_YAML, ".jsonl")
    exists = os.path.exists(path)  # unlike the path's own, it is False for what no name can be
    if is_path and (exists or os.sep in asked):
        if not exists:
            raise DocumentError(asked, None, None, "does not exist" + _hint(path.stem, read()))
        return path
    documents = read()
    by_file = [found for found, _ in documents if asked in (found.stem, found.name)]
    by_name = [found for found, document in documents if getattr(document, "name", None) == asked]
    for found in by_file + by_name:
        return found
    if os.path.isdir(path):
        raise DocumentError(asked or "''", None, None, f"is a folder; name a {noun}")
    looked = " and ".join(str(folder) for folder in folders)
    raise DocumentError(asked, None, None, f"no {noun} of that name in {looked}" + _hint(path.stem, documents))


def _hint(stem: str, documents: list[tuple[Path, _Document | DocumentError]]) -> str:
    names = dict.fromkeys(found.stem for found, _ in documents)
    near = nearest(stem, names)
    return near or (f"; there are {', '.join(names)}" if names else "; give the path of one")
