"""Choose device and backend: what was asked for, against what this machine has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist

from pytest_dtdispatch.errors import MeshError
from pytest_dtdispatch.records.signature import mesh_text

RANKS = 1  # processes that take part in a run
MAX_RANKS = 2**20  # a mesh is a tensor of its ranks: a slip of the finger must not fill the memory


@dataclass(frozen=True)
class Place:
    """A mesh that can be had on this machine.

    Args:
        mesh: extent of each mesh dimension, in ranks.
        device: ``cpu`` or ``cuda``.
        backend: ``fake``, ``gloo`` or ``nccl``.
    """

    mesh: tuple[int, ...]
    device: str
    backend: str

    @property
    def world_size(self) -> int:
        """Ranks that the mesh needs."""
        return prod(self.mesh)


def choose_place(mesh: tuple[int, ...], device: str, backend: str) -> Place:
    """Resolve ``auto``, and refuse what this machine cannot give.

    Args:
        mesh: extent of each mesh dimension, in ranks.
        device: ``auto``, ``cpu`` or ``cuda``. Auto is CUDA where there is a device.
        backend: ``auto``, ``fake``, ``gloo`` or ``nccl``. Auto is NCCL on CUDA where this run has a process
            for each rank of the mesh, else fake.

    Raises:
        MeshError: the device is not there, or the backend cannot run this mesh here.
    """
    has_cuda = torch.cuda.is_available()
    if device == "auto":
        device = "cuda" if has_cuda else "cpu"
    if device == "cuda" and not has_cuda:
        raise MeshError(f"device cuda: torch {torch.__version__} sees no CUDA device; valid here: cpu")
    world_size = prod(mesh)
    if world_size > MAX_RANKS:
        raise MeshError(f"mesh {mesh_text(mesh)} has {world_size} ranks; at most {MAX_RANKS} are simulated")
    if backend == "auto":
        backend = "nccl" if device == "cuda" and world_size == RANKS else "fake"
    if backend == "nccl" and device != "cuda":
        why = "the device is cpu" if has_cuda else f"torch {torch.__version__} sees none"
        raise MeshError(f"backend nccl needs a CUDA device, and {why}; valid here: fake, gloo")
    if backend == "gloo" and device != "cpu":
        raise MeshError("backend gloo needs device cpu; on cuda use nccl or fake")
    started = int(os.environ.get("WORLD_SIZE", RANKS)) if "TORCHELASTIC_RUN_ID" in os.environ else RANKS
    if backend != "fake" and started > RANKS:
        raise MeshError(f"this run has {started} ranks, and this version measures 1; use the fake backend")
    if backend != "fake" and world_size > RANKS:
        raise MeshError(
            f"backend {backend} needs a process for each of the {world_size} ranks of mesh {mesh_text(mesh)} "
            f"and this run has {RANKS}: use the fake backend, or mesh 1"
        )
    return Place(mesh, device, backend)


def device_name(device: str) -> str:
    """Name the GPU; nothing on a CPU, or where there is none."""
    return torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else ""


def group_backend() -> str:
    """Name the backend of the process group that is open."""
    return str(dist.get_backend())
