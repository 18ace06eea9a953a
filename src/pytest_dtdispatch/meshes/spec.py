"""Choice of a device and a backend that this machine supports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from pytest_dtdispatch.core.environment import World, read_world
from pytest_dtdispatch.core.signatures import mesh_text
from pytest_dtdispatch.errors import DevicesError, MeshError
from pytest_dtdispatch.torchapi.groups import has_uniform_ranks
from pytest_dtdispatch.torchapi.missing_api import cuda_driver_version
from pytest_dtdispatch.torchapi.observe import has_local_mode
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

REAL = ("gloo", "nccl")  # backends that need a process for each rank
MAX_RANKS = 2**20  # a mesh is a tensor of its ranks, so that a typing error could exhaust the memory


@dataclass(frozen=True)
class MeshSpec:
    """A mesh that this machine supports.

    Args:
        mesh: size of each mesh dimension.
        device: ``cpu`` or ``cuda``.
        backend: ``fake``, ``gloo``, ``nccl`` or ``local``.
    """

    mesh: tuple[int, ...]
    device: str
    backend: str

    @property
    def world_size(self) -> int:
        """Number of ranks of the mesh."""
        return prod(self.mesh)


def choose_mesh(mesh: tuple[int, ...], device: str, backend: str, world: World | None = None) -> MeshSpec:
    """Resolve ``auto``, and raise if this machine does not support the mesh, device or backend."""
    world = world or read_world(os.environ)
    world_size = prod(mesh)
    if world_size > MAX_RANKS:
        raise MeshError(f"mesh {mesh_text(mesh)} has {world_size} ranks; at most {MAX_RANKS} are simulated")
    has_all_ranks = world_size == world.size
    is_real = backend in REAL or (backend == "auto" and world.is_many and has_all_ranks)
    has_cuda = torch.cuda.is_available()
    if device == "auto":
        enough = not is_real or torch.cuda.device_count() >= world.local_size
        device = "cuda" if has_cuda and enough and backend != "local" else "cpu"
    if device == "cuda" and not has_cuda:
        raise MeshError(f"device cuda: torch {torch.__version__} sees no CUDA device; valid here: cpu")
    if backend == "auto":
        real = "nccl" if device == "cuda" else "gloo" if world.is_many else "fake"
        backend = real if has_all_ranks else "fake"
    if backend == "nccl" and world.is_many and torch.cuda.device_count() < world.local_size:
        raise DevicesError(
            f"backend nccl needs a CUDA device for each of the {world.local_size} ranks on this machine, "
            f"and torch {torch.__version__} sees {torch.cuda.device_count()}"
        )
    if backend == "nccl" and device != "cuda":
        why = "the device is cpu" if has_cuda else f"torch {torch.__version__} sees none"
        raise MeshError(f"backend nccl needs a CUDA device, and {why}; valid here: fake, gloo")
    if backend in ("gloo", "local") and device != "cpu":
        raise MeshError(f"backend {backend} needs device cpu; on cuda use nccl or fake")
    if backend == "local" and not has_local_mode():
        raise MeshError(
            f"backend local needs torch.distributed._local_tensor, which torch {torch.__version__} does not "
            "have (torch 2.10 and later do); valid here: fake"
        )
    if backend in REAL and not has_all_ranks:
        other = f"a mesh of all {world.size} ranks" if world.is_many else "mesh 1"
        raise MeshError(
            f"backend {backend} needs a process for each of the {world_size} ranks of mesh {mesh_text(mesh)} "
            f"and this run has {world.size}: use the fake backend, or {other}"
        )
    return MeshSpec(mesh, device, backend)


def run_environment(
    mesh: tuple[int, ...], device: str, backend: str, rank_stat: str, one_thread: bool
) -> dict[str, Any]:
    """Return the properties that figures of a run depend on, without those that pytest-benchmark records.

    Args:
        mesh: shape of the run's default mesh.
        device: its device type, or ``auto``.
        backend: backend of the run's default process group, or ``auto``.
        rank_stat: statistic over the ranks, ``median`` or ``max``.
        one_thread: whether calls are measured in one intra-op thread.
    """
    world = read_world(os.environ)
    try:
        spec = choose_mesh(mesh, device, backend)
    except MeshError:  # tests with their own mesh may have rows, which must not be lost
        spec = MeshSpec(mesh, device, backend)
    on_cuda = spec.device == "cuda" and torch.cuda.is_available()
    nccl = torch.cuda.nccl.version() if on_cuda and dist.is_nccl_available() else ()
    return {
        "torch_version": torch.__version__,
        "torch_build": str(getattr(torch.version, "git_version", "unknown")),
        "cuda": torch.version.cuda or "",  # empty for a CPU build
        "device": spec.device,
        "device_name": torch.cuda.get_device_name() if on_cuda else "",
        "backend": spec.backend,
        "fake_ranks": "uniform" if spec.backend == "fake" and has_uniform_ranks() else "",
        "world_size": spec.world_size,
        "threads": 1 if one_thread else torch.get_num_threads(),
        "cache_interface": ShardingCaches().interface,
        "driver": cuda_driver_version() if on_cuda else "",  # newest CUDA version that it supports
        "nccl": ".".join(map(str, nccl)),
        "ranks": world.size,  # processes that measured
        "rank_stat": rank_stat if world.is_many else "",
    }
