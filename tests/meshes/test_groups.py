"""Process groups of tests: ours are opened and closed, a user's is used; caches are cleared with either."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.errors import MeshError
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi.groups import init_fake_group
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.probes import has_rule

pytestmark = pytest.mark.torch

OpenGroup = Callable[[int], None]


def fake(*mesh: int) -> MeshSpec:
    return MeshSpec(mesh, "cpu", "fake")


@pytest.fixture
def open_group() -> Iterator[OpenGroup]:
    """Return a function that opens a fake group as a user does; destroy it after the test."""
    yield init_fake_group
    if dist.is_initialized():
        dist.destroy_process_group()
    ShardingCaches().clear_all()


def sharded(mesh: Any) -> Any:
    rest = [Replicate()] * (mesh.ndim - 1)
    return distribute_tensor(torch.rand(16, 16), mesh, [Shard(0), *rest])


def entries() -> int:
    """Return the number of entries of every cache that may refer to a process group."""
    caches = ShardingCaches()
    of_python: int = caches.readers()[-1]()[3]
    return caches.cold_entries() + of_python


@pytest.mark.parametrize(
    "shape",
    [
        (2,),
        (256,),
        (65536,),
        (16, 16),
        (8, 8, 4),
        pytest.param((4, 4, 4, 4), marks=[pytest.mark.slow, pytest.mark.long]),
    ],
    ids=str,
)
def test_mesh_of_any_size_can_be_measured(group_owner: ProcessGroupOwner, shape: tuple[int, ...]) -> None:
    mesh = group_owner.mesh(fake(*shape))
    assert tuple(mesh.shape) == shape
    a, book = sharded(mesh), ResultStore()
    with SignatureCapture(book, Plan(rounds=6, repeat=5, max_time_s=0.2)):
        a + a
    [add] = book.measurements()
    misses, hits = add.of(State.MISS), add.of(State.HIT)
    assert misses is not None
    assert hits is not None
    assert 1 <= add.figures.rounds <= 6  # a single round if one miss exceeds the time
    assert len(misses.ns) == add.figures.rounds
    assert 1 <= len(hits.ns) <= 5 * add.figures.rounds  # fewer if hits are slow
    assert add.mesh == "x".join(map(str, shape))


def test_group_has_enough_ranks_for_its_meshes(group_owner: ProcessGroupOwner) -> None:
    small = group_owner.mesh(fake(2), world_size=8)
    large = group_owner.mesh(fake(2, 4), ("dp", "tp"))
    assert (small.size(), large.size(), dist.get_world_size()) == (2, 8, 8)
    assert large.mesh_dim_names == ("dp", "tp")
    assert large["tp"].size() == 4
    assert group_owner.group(fake(2, 4)) is dist.group.WORLD
    with pytest.raises(MeshError, match=r"needs 16 ranks.* has 8: open the largest mesh of a test first"):
        group_owner.mesh(fake(4, 4))


def test_opening_and_closing_a_group_clears_every_cache() -> None:
    owner = ProcessGroupOwner()
    owner.close()  # no-op without a group
    for is_left_to_us in (True, False):
        init_fake_group(4)
        a = sharded(init_device_mesh("cpu", (4,)))
        a @ a
        dist.destroy_process_group()
        assert entries() > 0
        owner.group(fake(4))
        assert entries() == 0
        a = sharded(owner.mesh(fake(4)))
        a @ a
        if has_rule("argmax.default"):  # the Python cache, if there is a native one
            a.argmax(1)
        if not is_left_to_us:  # a test may destroy the group itself
            dist.destroy_process_group()
        assert entries() > 0
        owner.close()
        owner.close()
        assert not dist.is_initialized()
        assert entries() == 0
        assert ShardingCaches().native_stats() == (0, 0)


def exception_hooks() -> list[object]:
    return [sys.excepthook, sys.unraisablehook, threading.excepthook, *logging.getLogger().handlers]


@pytest.mark.parametrize("spec", [fake(4), MeshSpec((1,), "cpu", "gloo")], ids=str)
@pytest.mark.parametrize("is_left_to_us", [True, False])
def test_group_leaves_no_exception_hook(spec: MeshSpec, is_left_to_us: bool) -> None:
    before, owner = exception_hooks(), ProcessGroupOwner()
    owner.group(spec)
    if not is_left_to_us:
        dist.destroy_process_group()
    owner.close()
    assert exception_hooks() == before


# An equal mesh on a new group


def test_results_on_new_group_have_new_mesh(group_owner: ProcessGroupOwner) -> None:
    old = group_owner.mesh(fake(4))
    sharded(old).add(1.0)
    group_owner.close()
    new = group_owner.mesh(fake(4))
    assert new == old  # equal, so an entry of the old mesh would match
    assert new is not old
    b = sharded(new)
    answered_first = ShardingCaches().readers()[0]
    before = answered_first()
    result: Any = b.add(1.0)
    hits, misses, *_ = answered_first()
    assert (hits, misses) == (before[0], before[1] + 1)
    assert result.device_mesh is new


def test_uncleared_cache_returns_the_old_mesh(open_group: OpenGroup) -> None:
    """The reason to clear the caches: if torch changes this, the clearing can be removed."""
    open_group(4)
    old = init_device_mesh("cpu", (4,))
    sharded(old).add(1.0)
    dist.destroy_process_group()
    open_group(4)
    assert sharded(init_device_mesh("cpu", (4,))).add(1.0).device_mesh is old


def test_ops_that_redistribute_run_on_the_new_group() -> None:
    owner = ProcessGroupOwner()
    for subgroups in (0, 3):
        mesh = owner.mesh(fake(2, 4))
        for _ in range(subgroups):  # changes the numbers, and so the names, of the groups of the next mesh
            dist.new_group([0, 1])
        mesh = owner.mesh(fake(2, 4))
        a = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0), Shard(1)])
        assert a.redistribute(placements=[Replicate(), Replicate()]).to_local().shape == (8, 8)
        product: Any = a @ a
        assert product.device_mesh is mesh
        owner.close()


# Groups of the user


def test_user_group_is_used_and_never_destroyed(open_group: OpenGroup) -> None:
    open_group(8)
    group, gloo = dist.group.WORLD, MeshSpec((1,), "cpu", "gloo")
    too_large = "mesh 4x4 needs 16 ranks, and the process group that is open has 8: it was open before"
    other = "backend gloo was requested, and the open process group is fake"
    owner = ProcessGroupOwner()
    for place, message in ((fake(4, 4), too_large), (gloo, other)):
        with pytest.raises(MeshError, match=rf"^{message}[^\n]*$"):
            owner.mesh(place)
    assert owner.group(fake(2, 4)) is owner.group(gloo, backend_is_chosen=False) is group
    mesh = owner.mesh(fake(4))
    assert sharded(mesh).add(1.0).device_mesh is mesh
    owner.close()
    assert dist.group.WORLD is group


def test_group_opened_by_a_test_is_not_closed(open_group: OpenGroup) -> None:
    owner = ProcessGroupOwner()
    owner.group(fake(4))
    dist.destroy_process_group()
    open_group(2)
    owner.close()
    assert dist.get_world_size() == 2
