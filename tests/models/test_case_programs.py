"""Common kinds of programs, and problems that were reported from training on many GPUs."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.steps.model import Steady, Steps
from tests.plugin_runs import MEASURED, judged, measure, run
from tests.probes import (
    fake_group_writes,
    fused_adamw_leaks_specs,
    is_replanned_for_scalar_value,
    needs_that,
    on_a_fake_mesh,
)

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("young_heap")]

# Tensor parallelism: feed-forward blocks on DTensors, and on local tensors.
LLAMA = """import types
import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Shard
from pytest_dtdispatch.suite import llama


def on_local_tensors(block, x):
    mesh, x = x.device_mesh, x.to_local(grad_placements=[Partial()])
    w1, w2, w3 = (linear.weight.to_local() for linear in (block.w1, block.w2, block.w3))
    out = F.linear(F.silu(F.linear(x, w1)) * F.linear(x, w3), w2)
    summed = DTensor.from_local(out, mesh, [Partial()], run_check=False)
    return summed.redistribute(placements=[Shard(1)]).to_local()


def step_of(mesh, is_local):
    torch.manual_seed(0)
    model = llama.llama("cpu")
    for module in model.modules():
        if is_local and isinstance(module, llama.FeedForward):
            module.forward = types.MethodType(on_local_tensors, module)
    return llama.training_step(llama.split(model, mesh), 64, 64, "cpu")


def test_saving(dtdispatch, mesh_factory):
    mesh = mesh_factory((4,), dim_names=("tp",))
    steps = {"before": step_of(mesh, is_local=False), "after": step_of(mesh, is_local=True)}
    compared = dtdispatch.compare(steps)
    assert not compared["after"].slower_than("before")
"""
# A decode loop that extends its cache, and one that fills it.
DECODE = """import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

TOKENS = [torch.tensor(position) for position in range(16, 48)]


def test_decode(dtdispatch, device_mesh):
    lengths = (1, 16, 64)
    token, cache, full = (distribute_tensor(torch.zeros(8, n, 64), device_mesh, [Shard(0)]) for n in lengths)
    places = distribute_tensor(torch.arange(64).view(1, 64, 1), device_mesh, [Replicate()])

    def grows(position):
        nonlocal cache
        cache = torch.cat((cache, token), dim=1)
        return (token @ cache.transpose(1, 2)).softmax(-1) @ cache

    def fills(position):
        nonlocal full
        full = torch.where(places == position, token, full)
        return (token @ full.transpose(1, 2)).softmax(-1) @ full

    dtdispatch.steps(grows, inputs=TOKENS, warmup=1, name="grows")
    steps = dtdispatch.steps(fills, inputs=TOKENS, warmup=1, name="fills")
    assert steps.misses_per_step == 0
"""
# An optimizer over lists that change: only experts that received tokens have gradients.
EXPERTS = """import torch
from torch.distributed.tensor import Shard, distribute_tensor

ROUTED = (16, 5, 9, 12, 7, 14, 10, 6, 11, 5, 9, 12)  # experts that got tokens, step by step


def step_of(mesh, foreach):
    experts = [torch.nn.Parameter(distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)])) for _ in range(16)]
    gradient = torch.ones_like(experts[0])
    optimizer = torch.optim.AdamW(experts, lr=1e-3, foreach=foreach)

    def step(routed):
        for number, expert in enumerate(experts):
            expert.grad = gradient if number < routed else None
        optimizer.step()

    return step


def test_loop(dtdispatch, device_mesh):
    dtdispatch.steps(step_of(device_mesh, foreach=True), inputs=ROUTED, warmup=1, name="foreach")
    steps = dtdispatch.steps(step_of(device_mesh, foreach=False), inputs=ROUTED, warmup=1, name="for-loop")
    assert steps.misses_per_step == 0
"""
# An optimizer that leaks a spec for each parameter on torch 2.11.
FUSED = """import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor


@pytest.mark.dtdispatch(max="spec_growth=0,cache_growth=0")
def test_fused(dtdispatch, device_mesh):
    shards = [distribute_tensor(torch.rand(16, 16), device_mesh, [Shard(0)]) for _ in range(8)]
    parameters = [torch.nn.Parameter(shard) for shard in shards]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    dtdispatch.steps(torch.optim.AdamW(parameters, lr=1e-3, fused=True).step, name="fused")
"""


@needs_that(
    lambda: "" if on_a_fake_mesh(lambda _: fake_group_writes()) else "fake collectives have undefined results"
)
def test_blocks_on_local_tensors_compute_the_same(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_llama=LLAMA)
    run(pytester, passed=1)


def counted(pytester: pytest.Pytester, program: str) -> dict[str, Steps]:
    """Count the steps of a program; return them by name."""
    pytester.makepyfile(program)
    results = judged(pytester, *MEASURED, passed=1).run.each_result()
    return {result.name: result for kind, _, result in results if kind == Steps.kind}


def test_growing_cache_misses_and_filled_cache_hits(pytester: pytest.Pytester) -> None:
    steps = counted(pytester, DECODE)
    assert all(each.missed for each in steps["grows"].steps)
    assert {"cat", "transpose", "expand"} < {miss.op.partition(".")[0] for miss in steps["grows"].missed}
    assert steps["fills"].misses == 0


@pytest.mark.skipif(on_a_fake_mesh(is_replanned_for_scalar_value), reason="this torch plans for each value")
def test_changing_list_misses(pytester: pytest.Pytester) -> None:
    steps = counted(pytester, EXPERTS)
    assert steps["foreach"].steady_after == Steady(9, 8)
    assert "length of self" in {miss.cause for miss in steps["foreach"].missed}
    assert steps["for-loop"].misses == 0


@pytest.mark.skipif(on_a_fake_mesh(fused_adamw_leaks_specs), reason="this torch leaks specs")
def test_fused_optimizer_leaks_no_spec(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_fused=FUSED)
    measure(pytester, passed=1)
