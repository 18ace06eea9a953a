"""Where figures were taken: what must be equal before two runs may be compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass


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
        threads: intra-op threads of torch.
        cache_interface: which sharding-propagation caches this torch has.
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

    def as_dict(self) -> dict[str, str | int]:
        """Plain data for a file."""
        return asdict(self)
