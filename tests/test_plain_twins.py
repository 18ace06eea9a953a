"""Steps of the suite compared with equal local programs on plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.plain_twins import (
    plain_decode_steps,
    plain_decode_token,
    plain_fsdp_training_step,
    plain_llama_step,
    plain_tensor_parallel_step,
)
from pytest_dtdispatch.suite.decode import decode_steps, decode_token
from pytest_dtdispatch.suite.llama import llama_step
from pytest_dtdispatch.suite.models import fsdp_step_or_skip, tensor_parallel_step

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_dtdispatch.plugin.fixtures import MeshFactory

pytestmark = pytest.mark.torch

Make = Callable[["DeviceMesh"], Callable[[], Any]]
TWINS: dict[str, tuple[Make, Make, tuple[int, ...], tuple[str, ...]]] = {
    "tensor-parallel": (tensor_parallel_step, plain_tensor_parallel_step, (2, 4), ("dp", "tp")),
    "FSDP2": (fsdp_step_or_skip, plain_fsdp_training_step, (8,), ("dp",)),
    "Llama": (llama_step, plain_llama_step, (4,), ("tp",)),
    "decode": (decode_steps, plain_decode_steps, (4,), ("tp",)),
}
MATMULS = ("mm.", "addmm.", "bmm.", "_scaled_dot_product")


class LocalOps(TorchDispatchMode):
    """Records local ops with their input shapes, and whether any op ran on a DTensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, tuple[Any, ...]]] = []
        self.has_dtensors = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            self.has_dtensors = True
            return NotImplemented
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors):  # ops run by propagation
            self.seen.append((func.__name__, tuple(tuple(tensor.shape) for tensor in tensors)))
        return func(*args, **(kwargs or {}))


def local_ops(step: Callable[[], Any]) -> LocalOps:
    step()
    ops = LocalOps()
    with ops:
        step()
    return ops


def matmuls(ops: LocalOps) -> list[tuple[str, tuple[Any, ...]]]:
    return sorted(each for each in ops.seen if each[0].startswith(MATMULS))


@pytest.mark.parametrize(("make", "make_plain", "shape", "names"), TWINS.values(), ids=TWINS)
def test_plain_twin_runs_equal_matmuls_without_dtensors(
    mesh_factory: MeshFactory, make: Make, make_plain: Make, shape: tuple[int, ...], names: tuple[str, ...]
) -> None:
    mesh = mesh_factory(shape, dim_names=names, backend="fake", device="cpu")
    step, plain = local_ops(make(mesh)), local_ops(make_plain(mesh))
    assert matmuls(plain) == matmuls(step) != []
    assert not plain.has_dtensors
    fewer = {name for name, _ in step.seen} - {name for name, _ in plain.seen}
    assert any("all_" in name or "reduce_scatter" in name for name in fewer)
    assert len(plain.seen) < len(step.seen)


def test_decoding_a_token_caches_only_its_position(mesh_factory: MeshFactory) -> None:
    mesh = mesh_factory((4,), dim_names=("tp",), backend="fake", device="cpu")
    for decode in (decode_token(mesh), plain_decode_token(mesh)):
        assert [cached_by(decode, number) for number in (3, 4, 5, 9)] == [{3}, {4}, {5}, {9}]


def cached_by(decode: Callable[[int], Any], number: int) -> set[int]:
    """Decode a token, and return the lengths of the caches that it is appended to."""
    ops = LocalOps()
    with ops:
        assert decode(number).shape == (2, 1, 64)
    appended = [shapes for name, shapes in ops.seen if name.startswith("cat.") and len(shapes) == 2]
    return {cache[2] for cache, _ in appended if len(cache) == 4}
