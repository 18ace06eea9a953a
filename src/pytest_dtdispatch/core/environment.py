"""Where figures were taken: what must be equal before two runs may be compared."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_dtdispatch.errors import UnsupportedTorchError

NO_TORCH = "torch is not installed"
CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Environment:
    """What a run's figures depend on beyond the machine that pytest-benchmark describes.

    Args:
        torch_version: as ``torch.__version__`` says.
        torch_build: git revision that torch was built from.
        cuda: CUDA version of the build, empty for a CPU build.
        device: device type that the run's default mesh is on.
        device_name: name of the GPU, empty on a CPU.
        backend: backend of the run's default process group.
        world_size: ranks in the run's default mesh.
        threads: intra-op threads of torch that figures were taken in.
        cache_interface: which sharding-propagation caches this torch has.
        driver: newest CUDA version that the driver of the GPU takes, empty on a CPU.
        nccl: version of NCCL, empty on a CPU.
        ranks: processes that took part.
        rank_stat: what stands for all of them, empty where there was one.
    """

    torch_version: str
    torch_build: str
    cuda: str
    device: str
    device_name: str
    backend: str
    world_size: int
    threads: int
    cache_interface: str
    driver: str = ""
    nccl: str = ""
    ranks: int = 1
    rank_stat: str = ""

    @property
    def summary(self) -> str:
        """One line: what differs most often between two runs on one machine.

        Example:
            >>> Environment("2.13.0+cpu", "abc", "", "cpu", "", "fake", 4, 2, "native+python").summary
            'torch 2.13.0+cpu, cpu, native+python caches, 2 threads'
        """
        parts = (self.device_name, self.driver and f"driver {self.driver}", self.nccl and f"NCCL {self.nccl}")
        known = ", ".join(filter(None, parts))
        device = f"{self.device} ({known})" if known else self.device
        return f"torch {self.torch_version}, {device}, {self.cache_interface} caches, {self.threads_text}"

    @property
    def threads_text(self) -> str:
        """Threads of torch: ``1 thread``, ``2 threads``."""
        return "1 thread" if self.threads == 1 else f"{self.threads} threads"

    def as_dict(self) -> dict[str, str | int]:
        """Plain data for a file."""
        return asdict(self)


def cpu_model() -> str:
    """Name the CPU, as far as this system does."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def load_text() -> str:
    """Say how many processes lately ran, or waited to, on how many cores, and whether that is busy."""
    cores = os.cpu_count() or 1
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return f"load unknown on {cores} cores"
    # Two of what the system calls cores are often one core, and slow each other.
    busy = ": the machine is busy, and figures may scatter" if load > cores / 2 else ""
    return f"load {load:.1f} on {cores} core{'s' * (cores > 1)}{busy}"


def has_torch() -> bool:
    """Tell whether torch is installed, without importing it."""
    try:
        return "torch" in sys.modules or importlib.util.find_spec("torch") is not None
    except ModuleNotFoundError:  # something refuses to find it
        return False


def require_torch() -> None:
    """Refuse to go on without torch.

    Raises:
        UnsupportedTorchError: in one line.
    """
    if not has_torch():
        raise UnsupportedTorchError(f"{NO_TORCH}: a mesh and what is measured on it need torch 2.5 or later")
