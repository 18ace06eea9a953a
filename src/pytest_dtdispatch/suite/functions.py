"""Functions that the suite compiles.

The AOT cases are those of ``benchmarks/dynamo/pr_time_benchmarks/benchmarks/aotdispatcher.py`` in the
PyTorch repository; the embedding is that of ``test/distributed/tensor/test_dynamic.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from pytest_dtdispatch.compiled.model import Compiled
from pytest_dtdispatch.torchapi.ops import tree_leaves
from pytest_dtdispatch.torchapi.optional import two_tensor_type
from pytest_dtdispatch.torchapi.tensors import local_of, shards_of_simulated_ranks

AOT_BACKEND = "aot_eager_decomp_partition"
INPUTS, LENGTH = 100, 100
TABLE_ROWS = {"cpu": 2_048, "cuda": 202_048}  # a CPU would copy those of the GPU for seconds
TABLE_WIDTH = 256


def add_each(*inputs: torch.Tensor) -> list[torch.Tensor]:
    """Add each input to itself."""
    return [torch.add(x, x) for x in inputs]


def aot_inputs(training: bool, subclass: bool) -> list[torch.Tensor]:
    """Make 100 inputs."""
    plain = [torch.ones(LENGTH, requires_grad=training) for _ in range(INPUTS)]
    if not subclass:
        return plain
    two_tensor = two_tensor_type()
    return [two_tensor(x, x.clone().detach().requires_grad_(training)) for x in plain]


def embedding(mesh: DeviceMesh) -> tuple[Callable[[Any], Any], Any]:
    """Prepare a look-up of 1,024 rows of a replicated table."""
    device = mesh.device_type
    table = torch.rand(TABLE_ROWS[device], TABLE_WIDTH, device=device, requires_grad=True)
    weight = distribute_tensor(table, mesh, [Replicate()])
    rows = torch.randint(low=0, high=100, size=(2, 512), device=device)

    def embedding(batch: Any) -> Any:
        return F.embedding(batch, weight.to(torch.float32))

    return embedding, DTensor.from_local(rows, mesh, [Replicate()])


def assert_equals_eager(compiled: Compiled) -> None:
    """Hold results against those of the uncompiled function: values, and where they lie."""
    for result, eager in zip(compiled.results, compiled.eager_results, strict=True):
        pairs = zip(tree_leaves(result), tree_leaves(eager), strict=True)
        for one, other in pairs:
            assert type(one) is type(other)
            assert getattr(one, "placements", ()) == getattr(other, "placements", ())
            for inner, expected in zip(plain_tensors(one), plain_tensors(other), strict=True):
                torch.testing.assert_close(inner, expected)


def assert_compiled_once(compiled: Compiled) -> None:
    """Hold results against eager ones, and that all of it was compiled in one piece."""
    assert_equals_eager(compiled)
    assert compiled.graph_breaks == compiled.recompiles == 0


def plain_tensors(tensor: Any) -> Iterator[torch.Tensor]:
    """Take a tensor of a subclass apart, and one of many simulated ranks."""
    if isinstance(tensor, two_tensor_type()):
        yield from (tensor.a, tensor.b)
    else:
        yield from shards_of_simulated_ranks(local_of(tensor))
