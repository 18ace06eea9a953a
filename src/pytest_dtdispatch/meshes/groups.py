"""Process groups and device meshes of tests, and fake ones for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pytest_dtdispatch.core.environment import World
from pytest_dtdispatch.core.parsing import read_argument, read_choice, read_mesh, read_names
from pytest_dtdispatch.core.signatures import mesh_text
from pytest_dtdispatch.errors import MeshError, RanksError, first_message
from pytest_dtdispatch.meshes.spec import REAL, MeshSpec, choose_mesh
from pytest_dtdispatch.ranks.exchange import Exchange, join
from pytest_dtdispatch.torchapi.groups import (
    debug_level_of_fake_groups,
    forget_group_that_failed,
    init_fake_group,
    init_group,
    keep_backends_while_groups_end,
    start_rpc,
    stop_rpc,
)
from pytest_dtdispatch.torchapi.observe import local_mode_type
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import group_backend


class ProcessGroupOwner:
    """Owner of the process group of a test. A group that the user opened is used, and never closed.

    Opening and closing clear torch's caches of meshes: a mesh on a new group compares equal to one on the old
    group, so that cache entries of the old group would be hits.

    Args:
        exchange: store for the synchronization of ranks; None for a single rank.
        test: key of the test, equal on all ranks and different in each run of the test.
    """

    def __init__(self, exchange: Exchange | None = None, test: str = "") -> None:
        self._exchange = exchange or join(World(), timeout_s=60.0)
        self._test = test
        self._ours: Any = None
        self._opened = 0
        self._simulation = ExitStack()
        self._has_rpc = False

    def group(self, spec: MeshSpec, backend_is_chosen: bool = True, world_size: int | None = None) -> Any:
        """Return the process group, opening it if none is open."""
        world = self._exchange.world
        if spec.device == "cuda" and world.is_many:
            torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
        if not dist.is_initialized():
            self._open(spec.backend, max(world_size or 0, spec.world_size))
            return dist.group.WORLD
        size = dist.get_world_size()
        if spec.world_size > size:
            advice = "it was open before the test; destroy it first, or use a smaller mesh"
            if dist.group.WORLD is self._ours:
                advice = "open the largest mesh of a test first, or name it in the marker"
            raise MeshError(
                f"mesh {mesh_text(spec.mesh)} needs {spec.world_size} ranks, "
                f"and the process group that is open has {size}: {advice}"
            )
        backend = group_backend(spec.device)
        if backend_is_chosen and backend != spec.backend:
            raise MeshError(f"backend {spec.backend} was requested, and the open process group is {backend}")
        return dist.group.WORLD

    def mesh(
        self,
        spec: MeshSpec,
        dim_names: tuple[str, ...] | None = None,
        backend_is_chosen: bool = True,
        world_size: int | None = None,
    ) -> DeviceMesh:
        """Create a mesh on the open group, or on a new one. Arguments are those of :meth:`group`."""
        if dim_names is not None and len(dim_names) != len(spec.mesh):
            raise MeshError(f"mesh {mesh_text(spec.mesh)} has {len(spec.mesh)} dimensions, not {dim_names}")
        self.group(spec, backend_is_chosen, world_size)
        return init_device_mesh(spec.device, spec.mesh, mesh_dim_names=dim_names)

    def start_rpc(self) -> None:
        """Start RPC between the ranks of the open group: ``worker0``, ``worker1`` and so on."""
        if group_backend() not in REAL:
            raise MeshError(f"RPC needs backend gloo or nccl, and the process group is {group_backend()}")
        world = self._exchange.world
        try:
            self._exchange.meet(self._key("rpc"), None, "start RPC")
            store = self._exchange.group_store(self._key("rpc"))
            start_rpc(world.rank, world.size, store, self._exchange.timeout_s)
        except (RanksError, RuntimeError) as error:
            raise MeshError(f"RPC did not start: {first_message(error)}") from None
        self._has_rpc = True

    def close(self) -> None:
        """Destroy the group if this object opened it and it is still open; ranks synchronize first."""
        if self._ours is None:
            return
        self._simulation.close()
        if dist.is_initialized() and dist.group.WORLD is self._ours:
            all_came = True
            if group_backend() in REAL:
                try:
                    self._exchange.meet(self._key("close"), None, "close its process group")
                    all_came = not self._exchange.lost
                except RanksError:  # the next synchronization with that rank raises, and fails the test
                    all_came = False
            if self._has_rpc:
                stop_rpc(all_came, self._exchange.timeout_s)
                self._has_rpc = False
            keep_backends_while_groups_end()
            dist.destroy_process_group()
        self._ours = None
        ShardingCaches().clear_all()

    def _key(self, purpose: str) -> str:
        return f"{purpose}/{self._test}/{self._opened}"

    def _open(self, backend: str, world_size: int) -> None:
        ShardingCaches().clear_all()
        self._opened += 1
        if backend in REAL:
            exchange, world = self._exchange, self._exchange.world
            exchange.meet(self._key("open"), None, "open a process group")
            try:
                init_group(
                    backend,
                    store=exchange.group_store(self._key("group")),
                    rank=world.rank,
                    world_size=world.size,
                    timeout=timedelta(seconds=exchange.timeout_s),
                )
            except RuntimeError as error:
                forget_group_that_failed()
                raise MeshError(f"no {backend} process group: {first_message(error)}") from None
        else:
            self._simulation.enter_context(debug_level_of_fake_groups())
            init_fake_group(world_size)
        self._ours = dist.group.WORLD
        if backend == "local":
            self._simulation.enter_context(local_mode_type()(world_size))


@contextmanager
def fake_mesh(
    mesh: int | str | Sequence[int], dim_names: Sequence[str] | None = None, device: str = "cpu"
) -> Iterator[DeviceMesh]:
    """Open a fake process group in this process, with a mesh on it, and close it at the end.

    Ops on DTensors run on one rank's shards. Collectives send nothing, so the values of a redistributed
    tensor are not meaningful. The process group is the default group inside the context. On exit it is
    destroyed, and torch's caches of it are cleared.

    Args:
        mesh: shape of the mesh, ``(2, 4)``, ``"2x4"`` or ``4``.
        dim_names: names of its dimensions.
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for CUDA if torch has a device.

    Returns:
        A context manager; its value is the mesh.

    Raises:
        MeshError: a process group is already open, or the mesh is not possible here.

    Example:
        >>> with fake_mesh((2, 4), dim_names=("dp", "tp")) as mesh:
        ...     mesh.size()
        8
    """
    __tracebackhide__ = True
    shape = read_argument("fake_mesh: mesh", mesh, read_mesh, MeshError)
    names = None
    if dim_names is not None:
        names = read_argument("fake_mesh: dim_names", dim_names, read_names, MeshError)
    read_device = partial(read_choice, choices=("cpu", "cuda", "auto"))
    on = read_argument("fake_mesh: device", device, read_device, MeshError)
    spec = choose_mesh(shape, on, "fake")
    if dist.is_initialized():
        raise MeshError(
            f"fake_mesh: a process group is open ({group_backend()}, {dist.get_world_size()} ranks): "
            "create the mesh on it with torch's init_device_mesh, or destroy it first"
        )
    owner = ProcessGroupOwner()
    try:
        yield owner.mesh(spec, names)
    finally:
        owner.close()
