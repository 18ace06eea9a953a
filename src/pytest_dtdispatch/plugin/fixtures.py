"""Implementation of the fixtures, imported on first use; torch is imported with the first mesh."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.environment import read_world, require_torch
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.ranks import rank_of, test_number

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_dtdispatch.api import DtDispatch
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
    from pytest_dtdispatch.plugin.run import Run
    from pytest_dtdispatch.ranks.exchange import Exchange

MeshFactory = Callable[..., "DeviceMesh"]
_EXCHANGE: pytest.StashKey[Exchange] = pytest.StashKey()
_GROUPS: pytest.StashKey[ProcessGroupOwner] = pytest.StashKey()


def measuring(request: pytest.FixtureRequest) -> Iterator[DtDispatch]:
    """Return the recorder of a test."""
    run: Run | None = request.config.stash.get(resolve.RUN, None)
    if run is None or run.skip_reason(request.node):
        from pytest_dtdispatch.api import DtDispatch

        yield DtDispatch()
        return
    with run.measuring(request.node) as recorder:
        yield recorder


def open_group(request: pytest.FixtureRequest) -> ProcessGroup:
    """Return the process group of a test, opening it if none is open."""
    settings, groups = resolve.context_of(request.node).settings, _groups(request)
    from pytest_dtdispatch.meshes.spec import choose_mesh

    with resolve.plain_errors():
        spec = choose_mesh(settings.mesh, settings.device, settings.backend)
        group: ProcessGroup = groups.group(spec, settings.backend != "auto")
        if settings.rpc:
            groups.start_rpc()
    return group


def factory(request: pytest.FixtureRequest) -> MeshFactory:
    """Return the mesh factory of a test."""
    context, groups = resolve.context_of(request.node), _groups(request)
    settings = context.settings
    from pytest_dtdispatch.meshes.spec import choose_mesh

    in_marker = context.marked.get("mesh", (1,))

    def make(
        shape: tuple[int, ...] | None = None,
        dim_names: tuple[str, ...] | None = None,
        backend: str | None = None,
        device: str | None = None,
    ) -> Any:
        backend = backend or settings.backend
        if dim_names is None and shape is None:
            dim_names = settings.dim_names
        with resolve.plain_errors():
            names = None if dim_names is None else resolve.checked("dim_names", dim_names)
            spec = choose_mesh(
                resolve.checked("mesh", settings.mesh if shape is None else shape),
                resolve.checked("device", device or settings.device),
                resolve.checked("backend", backend),
            )
            room = prod(in_marker) if spec.backend == "fake" else None
            return groups.mesh(spec, names, backend != "auto", room)

    return make


def _groups(request: pytest.FixtureRequest) -> ProcessGroupOwner:
    """Return the owner of a test's process group, and close it with the first fixture that requested it."""
    stash: pytest.Stash = request.node.stash
    if _GROUPS not in stash:
        with resolve.plain_errors():
            require_torch()
            from pytest_dtdispatch.meshes.groups import ProcessGroupOwner

            owner = ProcessGroupOwner(_exchange(request.config), str(test_number(request.config)))
        stash[_GROUPS] = owner

        def close() -> None:
            del stash[_GROUPS]
            owner.close()

        request.addfinalizer(close)
    return stash[_GROUPS]


def _exchange(config: pytest.Config) -> Exchange:
    """Return the exchange through which ranks of a real process group synchronize."""
    rank = rank_of(config)
    exchange = rank.exchange if rank else config.stash.get(_EXCHANGE, None)
    if exchange is None:
        from pytest_dtdispatch.ranks.exchange import join

        world = read_world(os.environ)
        exchange = join(world, resolve.run_settings(config).timeout)
        if world.is_many:  # with one process, each test gets a separate store
            config.stash[_EXCHANGE] = exchange
    return exchange
