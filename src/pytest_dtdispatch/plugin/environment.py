"""Describe where a run measures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_dtdispatch.core.environment import Environment
from pytest_dtdispatch.core.world import read_world
from pytest_dtdispatch.errors import MeshError

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.options import Settings


def run_environment(settings: Settings) -> Environment:
    """Describe where the run's default mesh is measured."""
    import torch

    from pytest_dtdispatch.meshes.place import Place, choose_place, device_name, driver_version, nccl_version
    from pytest_dtdispatch.torchapi.build import torch_build
    from pytest_dtdispatch.torchapi.propagator import ShardingCaches

    world = read_world(os.environ)
    try:
        place = choose_place(settings.mesh, settings.device, settings.backend)
    except MeshError:  # tests with meshes of their own may have been measured: their rows must not be lost
        place = Place(settings.mesh, settings.device, settings.backend)
    return Environment(
        torch_version=torch.__version__,
        torch_build=torch_build(),
        cuda=torch.version.cuda or "",
        device=place.device,
        device_name=device_name(place.device),
        backend=place.backend,
        world_size=place.world_size,
        threads=torch.get_num_threads(),
        cache_interface=ShardingCaches().interface,
        driver=driver_version(place.device),
        nccl=nccl_version(place.device),
        ranks=world.size,
        rank_stat=settings.rank_stat if world.is_many else "",
    )
