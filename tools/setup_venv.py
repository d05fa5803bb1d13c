"""Make `.venv`: the engine built for this machine, then everything else. Standard library only.

llama-cpp-python comes as source, and pip keeps the wheel that it built under the source's name
alone, whatever the build options were. So the engine is asked what it can do after it was
installed, and built again when a backend is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

# llama_supports_gpu_offload() says yes to any build with RPC, so CUDA is looked up by name.
_ASK = """
import ctypes, importlib.metadata, json
from llama_cpp.llama_cpp import _lib, llama_supports_rpc
rpc = bool(llama_supports_rpc())
find = _lib.ggml_backend_reg_by_name
find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
version = importlib.metadata.version("llama_cpp_python").split("+")[0]
print(json.dumps({"version": version, "rpc": rpc, "cuda": bool(find(b"CUDA"))}))
"""
_LINE_EVERY_S = 20.0
_CPU_CORE_MINUTES = 11
_CUDA_CORE_MINUTES = 96
_CAUSES = (
    (r"No CMAKE_CXX_COMPILER|CMAKE_CXX_COMPILER not set|CMAKE_C_COMPILER not set|No CMAKE_C_COMPILER",
     "no working C++ compiler; install one (Debian, Ubuntu: apt install build-essential)"),
    (r"Killed signal|fatal error: Killed|out of memory|Cannot allocate memory",
     "the compiler ran out of memory; try again with CMAKE_BUILD_PARALLEL_LEVEL=1"),
    (r"No space left on device", "the disk is full"),
    (r"Temporary failure in name resolution|NewConnectionError|Network is unreachable|ReadTimeoutError|ConnectionError"
     r"|No matching distribution found",
     "the package index did not answer or does not have it; look at the network and at pip's settings"),
    (r"Unsupported gpu architecture|unsupported GNU version|nvcc fatal|CUDA_ARCHITECTURES",
     "nvcc does not go with this compiler or card; set CMAKE_ARGS=-DGGML_CUDA=OFF to do without CUDA"),
)  # fmt: skip


class SetupError(Exception):
    """The environment could not be made; the message is for people."""


@dataclass(frozen=True)
class Requirements:
    """What pyproject.toml pins: the engine and its version, and the package with the bundled model."""

    engine: str
    engine_version: str
    demo: str

    @classmethod
    def read(cls, pyproject: Path) -> Requirements:
        """From the project table."""
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        engine = next(line for line in project["dependencies"] if line.startswith("llama-cpp-python"))
        return cls(engine, engine.partition("==")[2], project["optional-dependencies"]["demo"][0])


@dataclass(frozen=True)
class Capabilities:
    """What an installed engine can do; version None when there is none that can be imported."""

    version: str | None = None
    rpc: bool = False
    cuda: bool = False


def find_nvcc(env: Mapping[str, str]) -> str | None:
    """The CUDA compiler: on the path, in CUDA_HOME, or where NVIDIA's packages put it."""
    homes = [env[name] for name in ("CUDA_HOME", "CUDA_PATH") if env.get(name)]
    places = [Path(home, "bin") for home in (*homes, "/usr/local/cuda")]
    return shutil.which("nvcc", path=os.pathsep.join([env.get("PATH", ""), *map(str, places)]))


def has_nvidia_driver() -> bool:
    """Whether this machine runs NVIDIA's driver; a CUDA toolkit alone is not enough."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def likely_cause(log: str) -> str | None:
    """What is probably missing, from the words of a failed build's log."""
    return next((cause for pattern, cause in _CAUSES if re.search(pattern, log)), None)


def build_progress(log: str) -> str:
    """What a running build does now, from its log so far."""
    steps = re.findall(r"^\s*\[(\d+)/(\d+)\]", log, re.MULTILINE)
    if steps:
        done, total = steps[-1]
        return f"compiling, {done} of {total}"
    return "building" if "Building wheel" in log else "fetching and preparing"


def clock(seconds: float) -> str:
    """Elapsed time: `2:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def capabilities(python: Path, env: Mapping[str, str]) -> Capabilities:
    """Ask the engine that this Python imports."""
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, env=env, cwd=python.parent)
    if done.returncode != 0:
        return Capabilities()
    return Capabilities(**json.loads(done.stdout.strip().splitlines()[-1]))


class Setup:
    """One environment: a checkout's root, where to talk, and the environment variables."""

    def __init__(self, root: Path, out: TextIO, env: Mapping[str, str]) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.stamp = self.venv / "workbench-setup"
        self.log = root / "build" / "setup.log"
        self.out = out
        self.env = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1", **env}
        self.nvcc = find_nvcc(env) if has_nvidia_driver() else None
        if "-DGGML_CUDA=OFF" in env.get("CMAKE_ARGS", ""):
            self.nvcc = None

    def run(self) -> None:
        """Bring `.venv` up to date; quick when it is. Raises SetupError."""
        key = self._key()
        if self._python_works() and self.stamp.exists() and self.stamp.read_text() == key:
            return
        self.stamp.unlink(missing_ok=True)
        self.log.parent.mkdir(exist_ok=True)
        self.log.write_text("")
        needs = Requirements.read(self.root / "pyproject.toml")
        if not self._python_works():
            self._step("Making .venv", [sys.executable, "-m", "venv", "--clear", str(self.venv)])
        self._install_engine(needs)
        self._pip("Installing the other packages", "-e", f"{self.root}[dev]")
        self._pip("Installing the bundled model (98 MB)", "--no-deps", needs.demo)
        self.stamp.write_text(key)

    def _key(self) -> str:
        digest = hashlib.sha256()
        for path in (self.root / "pyproject.toml", Path(__file__)):
            digest.update(path.read_bytes())
        digest.update(f"{self.root} cuda={self.nvcc is not None}".encode())
        return digest.hexdigest()

    def _python_works(self) -> bool:
        return self.python.exists() and subprocess.run([self.python, "-c", ""], capture_output=True).returncode == 0

    def _missing(self, needs: Requirements) -> str | None:
        """What the installed engine lacks, for people; None if it has all."""
        has = capabilities(self.python, self.env)
        if has.version != needs.engine_version:
            return f"{needs.engine} is not installed"
        lacks = ([] if has.rpc else ["RPC"]) + ([] if has.cuda or not self.nvcc else ["CUDA"])
        return f"the installed engine was built without {' and '.join(lacks)}" if lacks else None

    def _install_engine(self, needs: Requirements) -> None:
        lacking = self._missing(needs)
        if lacking is None:
            return
        compilers = [self.env["CXX"]] if self.env.get("CXX") else ["c++", "g++", "clang++"]
        if not any(shutil.which(name.split()[0], path=self.env.get("PATH")) for name in compilers):
            raise SetupError("No C++ compiler was found. Install one (Debian, Ubuntu: apt install build-essential).")
        backends = ["RPC", "CUDA"] if self.nvcc else ["RPC"]
        build_env = {"CMAKE_ARGS": " ".join([self.env.get("CMAKE_ARGS", ""), *(f"-DGGML_{b}=ON" for b in backends)])}
        if self.nvcc:
            build_env["CUDACXX"] = self.nvcc
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        minutes = max(1, round((_CUDA_CORE_MINUTES if self.nvcc else _CPU_CORE_MINUTES) / cores))
        self._say(f"Building the engine, llama.cpp with {' and '.join(backends)}: about {minutes} min on {cores} cores"
                  " the first time, seconds if pip has kept the build.")  # fmt: skip
        self._pip("Building the engine", "--verbose", needs.engine, env=build_env)
        lacking = self._missing(needs)
        if lacking is not None:
            self._say(f"{lacking[0].upper()}{lacking[1:]}; pip had kept an older build."
                      f" Building again, about {minutes} min.")  # fmt: skip
            self._pip("Building the engine", "--verbose", "--no-cache-dir", "--force-reinstall", "--no-deps",
                      "--no-binary", "llama-cpp-python", needs.engine, env=build_env)  # fmt: skip
            lacking = self._missing(needs)
        if lacking is not None:
            raise SetupError(f"The engine was built, but {lacking}. The build's log is {self._shown(self.log)}.")

    def _pip(self, title: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        command = [str(self.python), "-m", "pip", "install", "--progress-bar", "off", *arguments]
        self._step(title, command, env)

    def _step(self, title: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Run a command with its output in the log, showing that it is alive."""
        start = time.monotonic()
        offset = self.log.stat().st_size
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**self.env, **(env or {})}, cwd=self.root,
            )  # fmt: skip
        tty = self.out.isatty()
        width = shutil.get_terminal_size().columns - 1
        shown_at = start
        if not tty:
            self._say(f"{title} …")
        try:
            while True:
                try:
                    code = process.wait(timeout=0.25)
                    break
                except subprocess.TimeoutExpired:
                    now = time.monotonic()
                if tty or now - shown_at >= _LINE_EVERY_S:
                    shown_at = now
                    doing = f" · {build_progress(self._logged(offset))}" if env else ""
                    line = f"{title} · {clock(now - start)}{doing}"
                    self.out.write(f"\r{line[:width]:<{width}}" if tty else f"  {line}\n")
                    self.out.flush()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            if tty:
                self.out.write("\r" + " " * width + "\r")
        elapsed = clock(time.monotonic() - start)
        if code != 0:
            log_text = self._logged(offset)
            end = "\n".join(f"  | {line}" for line in log_text.rstrip().splitlines()[-30:])
            cause = likely_cause(log_text)
            raise SetupError(
                f"{title} failed after {elapsed}. The end of the log:\n{end}\nThe whole log is {self._shown(self.log)}."
                + (f"\nLikely: {cause}." if cause else "")
            )
        self._say(f"{title} · done in {elapsed}")

    def _logged(self, offset: int) -> str:
        return self.log.read_bytes()[offset:].decode(errors="replace")

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def _say(self, line: str) -> None:
        print(line, file=self.out, flush=True)


def main() -> int:
    """Set up the checkout that this file lies in; the exit status."""
    try:
        Setup(Path(__file__).resolve().parent.parent, sys.stdout, os.environ).run()
    except SetupError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; run it again to go on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
