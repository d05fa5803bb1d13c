"""The house stands: what may be imported where, and what the packaging says."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"textual", "llama_cpp", "pynvml", "httpx"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after running `code`."""
    report = "import sys; print('\\n', *sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"import atexit\natexit.register(lambda: exec({report!r}))\n{code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import workbench.lab.session",
        "import workbench.lab.cards",
        "from workbench.cli import main; main(['--help'])",
        "from workbench.cli import main; main(['run', '--help'])",
        "from workbench.cli import main; main(['--version'])",
    ],
)
def test_loads_nothing_heavy(code: str) -> None:
    loaded = loaded_by(code)
    assert "workbench" in loaded
    assert loaded & HEAVY == set()


def test_the_report_would_show_a_heavy_module() -> None:
    assert "pynvml" in loaded_by("import pynvml")


def third_party_imports(folder: Path) -> set[str]:
    """The top-level modules that the files in `folder` import, our own and Python's left out."""
    names: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"workbench", "tests", "tools"}


def declared(lines: list[str]) -> set[str]:
    return {re.split(r"[<>=\[]", line)[0].lower() for line in lines}


def test_every_import_is_a_declared_dependency_and_every_dependency_is_used() -> None:
    owners = packages_distributions()
    needed = {owners[name][0].lower().replace("_", "-") for name in third_party_imports(ROOT / "workbench")}
    assert needed == declared(PROJECT["dependencies"])


def test_no_file_is_a_junk_drawer() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "workbench").rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 450
    }
    assert long == {}


def test_the_tools_need_nothing_but_python() -> None:
    assert third_party_imports(ROOT / "tools") == set()
