"""Collectives without a wait: repetitions leave none, so torch does not warn at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pytest_dtdispatch.comparing.measure import run_and_measure_variants
from pytest_dtdispatch.comparing.model import Variants
from pytest_dtdispatch.comparing.scaling import run_and_measure_sizes
from pytest_dtdispatch.compiled.measure import run_and_measure_compile
from pytest_dtdispatch.compiled.model import Compilation
from pytest_dtdispatch.replay.repeat import run_call
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import wait_for
from tests.measured_runs import Make, measured_call
from tests.probes import needs

pytestmark = [
    pytest.mark.torch,
    needs("torch._C._distributed_c10d._get_work_registry_size"),
    pytest.mark.usefixtures("nothing_stays", "young_heap"),
]

Block = Callable[[], torch.Tensor]


def unwaited() -> int:
    """Return the number of collectives that torch still waits for."""
    return torch._C._distributed_c10d._get_work_registry_size()


@pytest.fixture
def block(mesh: DeviceMesh) -> Block:
    """Return a tensor-parallel block, whose result is still being written by a collective."""
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    model = parallelize_module(layers, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.rand(4, 8)
    return lambda: model(x)


def sizes_of(fn: Callable[[], Any], plan: Plan) -> Any:
    return run_and_measure_sizes(run_call, lambda _: fn, (1, 2), ShardingCaches(), plan)


def left_by(body: Callable[[], Any]) -> int:
    """Return the number of collectives a call leaves unwaited, and wait for those of its result."""
    before = unwaited()
    result = body()
    left = unwaited() - before
    wait_for(result)
    return left


@pytest.mark.parametrize("result", ["tensor", "DTensor", "nested"])
def test_repetitions_leave_no_extra_unwaited_collectives(result: str, block: Block, shard: Make) -> None:
    a, before = shard(8, 8), unwaited()
    gather: Callable[[], Any] = {
        "tensor": block,
        "DTensor": lambda: a.redistribute(placements=[Replicate()], async_op=True),
        "nested": lambda: {"loss": (block(), None)},
    }[result]
    assert left_by(gather) == 1
    assert left_by(lambda: measured_call(gather)[0]) == 1
    assert unwaited() == before


@pytest.fixture(params=["dropped", "hidden", "coalesced"])
def hide(request: pytest.FixtureRequest, block: Block) -> Iterator[Callable[[], Any]]:
    """Return a callable that leaves a collective hidden from its result; the fixture waits for it."""
    outputs: list[torch.Tensor] = []
    before = unwaited()

    def started() -> Any:
        result: Any = block()
        outputs.append(result.elem)
        return result

    newest = hasattr(collectives, "_wrap_tensor_autograd")
    name = "_wrap_tensor_autograd" if newest else "_maybe_wrap_tensor"
    group = torch.distributed.distributed_c10d._get_default_group().group_name

    def drop() -> None:
        started()

    def drop_coalesced() -> None:  # like all_reduce_coalesced of torch 2.15
        reduced = torch.ops._c10d_functional.all_reduce_coalesced([torch.ones(8)], "sum", group)
        outputs.extend(reduced)
        list(map(getattr(collectives, name), reduced))

    hidden = {"dropped": drop, "hidden": lambda: SimpleNamespace(loss=started()), "coalesced": drop_coalesced}
    yield hidden[request.param]
    for output in outputs:
        collectives.wait_tensor(output)
    assert unwaited() == before


def test_repetitions_leave_no_hidden_unwaited_collectives(hide: Callable[[], Any]) -> None:
    plan = Plan(5, 2)
    assert left_by(hide) == 1
    assert left_by(lambda: measured_call(hide, plan=plan) and None) == 1
    assert left_by(lambda: sizes_of(hide, plan) and None) == 2
    variants = Variants("two", {"a": hide, "b": hide}, lambda one, other: True)
    assert left_by(lambda: run_and_measure_variants(variants, ShardingCaches(), plan) and None) == 2


def test_raising_repetition_leaves_no_hook(hide: Callable[[], Any]) -> None:
    calls = iter(range(100))
    _, figures = measured_call(lambda: (hide(), 1 // max(0, 6 - next(calls))))
    assert "ZeroDivisionError" in figures.notes[0]


def test_compile_leaves_no_unwaited_collective(block: Block) -> None:
    compilation = Compilation(lambda: {"loss": (block(), None)}, backend="aot_eager", others=((),))
    before = unwaited()
    compiled = run_and_measure_compile(compilation, "f", ShardingCaches(), Plan(1, 5))
    assert unwaited() == before
    assert compiled.function
    assert compiled.function.measurement.figures.rounds == 1


def test_sizes_and_steps_leave_no_unwaited_collective(block: Block) -> None:
    assert left_by(lambda: sizes_of(block, Plan(7, 2))) == 0
    assert left_by(lambda: run_and_count(StepCalls("block", block, 2, 3))) == 0


def test_capture_leaves_no_extra_unwaited_collectives(block: Block, capture: Make) -> None:
    results: list[torch.Tensor] = []
    assert left_by(lambda: (capture(lambda: results.append(block())), results)[1]) == 1
