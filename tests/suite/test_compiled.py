"""Compiling cases of the suite, with few inputs and fast backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

from pytest_dtdispatch.compiled.model import Compiled
from pytest_dtdispatch.suite.models import AOT_BACKEND, add_each, assert_equals_eager, plain_tensors
from pytest_dtdispatch.torchapi.observe import has_local_mode
from tests.plugin_runs import import_compilers, measure

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.fixtures import MeshFactory

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("reset_compilers")]

import_compilers()


def two(*numbers: float, training: bool = False) -> TwoTensor:
    first = torch.tensor(numbers, dtype=torch.float32, requires_grad=training)
    return TwoTensor(first, (first.detach() * 10).requires_grad_(training))


def lists(tensor: Any) -> Any:
    return [plain.tolist() for plain in plain_tensors(tensor)]


@pytest.mark.parametrize("training", [False, True])
def test_compiled_block_computes_equal_results(training: bool) -> None:
    inputs = [two(1, 2, training=training), two(3, 4, training=training)]
    compiled = torch.compile(add_each, backend=AOT_BACKEND, fullgraph=True)
    outputs = compiled(*inputs)
    assert [lists(output) for output in outputs] == [[[2, 4], [20, 40]], [[6, 8], [60, 80]]]
    assert all(output.requires_grad is training for output in outputs)
    if training:
        torch.autograd.backward([output.sum() for output in outputs])
        assert all(lists(each.grad) == [[2, 2], [2, 2]] for each in inputs)


def test_case_of_a_changed_placement_passes(pytester: pytest.Pytester) -> None:
    suite = ("--pyargs", "pytest_dtdispatch.suite", "-m", "compile", "-k", "placement_change")
    result = measure(pytester, *suite, "--benchmark-quiet", "-odtdispatch_compile_rounds=1")
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes.get("failed"), outcomes.get("errors")) == (1, None, None)
    result.stdout.fnmatch_lines(["    recompiled double*"])


@pytest.mark.skipif(not has_local_mode(), reason="this torch has no torch.distributed._local_tensor")
def test_numbers_of_all_simulated_ranks_are_compared(mesh_factory: MeshFactory) -> None:
    mesh = mesh_factory((4,), backend="local", device="cpu")
    eager = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    result = eager + 0
    assert lists(result) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert_equals_eager(Compiled((result,), (eager,)))
    list(plain_tensors(result))[2].add_(1)
    with pytest.raises(AssertionError, match="not close"):
        assert_equals_eager(Compiled((result,), (eager,)))
