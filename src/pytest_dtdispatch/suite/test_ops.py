"""Single ops: PyTorch's own paths, meshes of several shapes, numbers, and growth of a cost with size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.core.signatures import mesh_text
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.models import rows_split
from pytest_dtdispatch.suite.paths import PATHS
from pytest_dtdispatch.torchapi.missing_api import coalesced_collectives, flattened
from pytest_dtdispatch.torchapi.missing_api import foreach_add as list_adder


# torch warns of random ops on every CPU mesh.
@pytest.mark.filterwarnings("ignore:DTensor random operators may not have complete support:UserWarning")
@pytest.mark.parametrize("path", PATHS)
def test_path(dtdispatch: DtDispatch, mesh_factory: MeshFactory, path: str) -> None:
    """Measure one path on a miss and on a hit."""
    dtdispatch.call(PATHS[path](mesh_factory((256,), dim_names=("dp",))), name=path)


@pytest.mark.parametrize("mesh", [(4,), (256,), (16, 16), (8, 8, 4)], ids=mesh_text)
def test_add(dtdispatch: DtDispatch, mesh_factory: MeshFactory, mesh: tuple[int, ...]) -> None:
    """Add 512x512 to itself, its rows split over the first mesh dimension."""
    device_mesh = mesh_factory(mesh)
    a = rows_split(device_mesh, 512, 512)
    with dtdispatch.capture():
        a + a


@pytest.mark.parametrize("mesh", [(2, 2, 2), (2, 2, 2, 2)], ids=mesh_text)
def test_unbind_stack(dtdispatch: DtDispatch, mesh_factory: MeshFactory, mesh: tuple[int, ...]) -> None:
    """Unbind a tensor and stack the results, on meshes of three and four dimensions."""
    a = rows_split(mesh_factory(mesh), 8, 8)
    try:
        with dtdispatch.capture():
            torch.stack(a.unbind(1))
    except NotImplementedError as error:
        pytest.skip(f"torch {torch.__version__}: {error}")


def test_to_local_backward(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    """Convert a DTensor to its local tensor, whose gradient is converted back."""
    a: Any = rows_split(device_mesh, 8, 8).requires_grad_()
    gradient = torch.ones_like(a.to_local())
    with dtdispatch.capture():
        a.to_local().backward(gradient)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
def test_coalesced(dtdispatch: DtDispatch, device_mesh: DeviceMesh, kind: str) -> None:
    """Pass eight plain tensors to one collective; DTensor itself has no coalesced collectives."""
    tensors = [torch.rand(8, 8, device=device_mesh.device_type) for _ in range(8)]
    run = coalesced_collectives()[kind]
    dtdispatch.call(lambda: [each.wait() for each in run(tensors, device_mesh)], name=f"{kind}_coalesced")


def test_add_flattened(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Capture an op on a flattened mesh of two dimensions."""
    a = rows_split(flattened_or_skip(mesh_factory((4, 2), dim_names=("dp", "tp"))), 16, 16)
    with dtdispatch.capture():
        a + a


def test_all_reduce(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Sum over both dimensions before and after flattening the mesh, for which newer versions reduce once."""
    mesh = mesh_factory((4, 2), dim_names=("dp", "tp"))
    summands = DTensor.from_local(torch.rand(16, 16, device=mesh.device_type), mesh, [Partial()] * 2)

    def reduce() -> DTensor:
        return summands.redistribute(placements=[Replicate()] * 2)

    dtdispatch.call(reduce, name="all_reduce")
    each = dtdispatch.steps(reduce, name="by dimension")
    flattened_or_skip(mesh)
    dtdispatch.call(reduce, name="all_reduce_flattened")
    together = dtdispatch.steps(reduce, name="flattened")
    assert together.misses_per_step == each.misses_per_step == 0
    assert together.collectives_per_step <= each.collectives_per_step


def flattened_or_skip(mesh: DeviceMesh) -> Any:
    """Flatten a mesh, or skip the test if this torch cannot."""
    flat = flattened(mesh)
    if flat is None:
        pytest.skip(f"torch {torch.__version__} flattens no mesh: DeviceMesh has no _flatten")
    return flat


@pytest.mark.parametrize(
    ("number", "is_tensor"), [(2, False), (2.5, False), (2.5, True)], ids=["int", "float", "0-dim tensor"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=["f32", "i64"])
def test_add_number(
    dtdispatch: DtDispatch, device_mesh: DeviceMesh, dtype: torch.dtype, number: float, is_tensor: bool
) -> None:
    """Add a number to a DTensor, and count steps that each add a different number."""
    a = rows_split(device_mesh, 16, 16).to(dtype)
    numbers: Iterator[Any] = itertools.count(number)
    if is_tensor:
        numbers = (torch.tensor(each, device=device_mesh.device_type) for each in numbers)
    first = next(numbers)
    with dtdispatch.capture():
        result: Any = a + first
    assert result.dtype == (torch.ones(1, dtype=dtype, device=device_mesh.device_type) + first).dtype
    steps = dtdispatch.steps(lambda: a + next(numbers))
    assert steps.misses_per_step == 0


def test_stack_of_tensors(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    """Stack 2 to 16 tensors."""

    def stack(length: int) -> Callable[[], Any]:
        tensors: list[torch.Tensor] = [rows_split(device_mesh, 8, 8) for _ in range(length)]
        return lambda: torch.stack(tensors)

    dtdispatch.scaling(stack, (2, 4, 8, 16))


def test_foreach_of_tensors(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    """Add 2 to 16 pairs of tensors in one call."""
    add = list_adder()

    def foreach_add(length: int) -> Callable[[], Any]:
        tensors = [rows_split(device_mesh, 8, 8) for _ in range(length)]
        return lambda: add(tensors, tensors)

    dtdispatch.scaling(foreach_add, (2, 4, 8, 16))


def add_on(mesh: DeviceMesh) -> Callable[[], Any]:
    """Prepare an addition of small tensors, whose local op is next to nothing."""
    a = rows_split(mesh, 8, 8)
    return lambda: a + a


def test_mesh_dimensions(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Add on meshes of one to three dimensions, 4 ranks in each."""

    def add(dimensions: int) -> Callable[[], Any]:
        return add_on(mesh_factory((4,) * dimensions))

    dtdispatch.scaling(add, (1, 2, 3))


def test_world_size(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Add on 4 to 65,536 ranks."""

    def add(ranks: int) -> Callable[[], Any]:
        return add_on(mesh_factory((ranks,)))

    dtdispatch.scaling(add, (4, 64, 1024, 65536))
