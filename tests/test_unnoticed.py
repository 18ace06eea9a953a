"""Counting, watching, budgeting and comparing steps has no side effects on the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from tests.measured_runs import Step, budgeted, captured, compared, counted, watched
from tests.probes import compiles_once_under_a_mode, needs_that

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("young_heap")]

Measure = Callable[[Step], object]


def in_a_capture(step: Step) -> None:
    captured(lambda: [step() for _ in range(8)])


@pytest.mark.parametrize("measure", [in_a_capture, counted, watched, budgeted])
def test_measured_step_computes_equal_losses(mesh: DeviceMesh, measure: Measure) -> None:
    def losses(run: Measure) -> list[float]:
        torch.manual_seed(0)
        weight = torch.nn.Parameter(DTensor.from_local(torch.rand(8, 8), mesh, [Replicate()]))
        optimizer = torch.optim.SGD([weight], lr=0.01)
        found: list[float] = []

        def step() -> None:
            x: Any = DTensor.from_local(torch.rand(4, 8), mesh, [Shard(0)])
            loss: Any = torch.relu(x @ weight).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.to_local().item())

        run(step)
        return [*found, torch.rand(1).item()]

    found = losses(measure)
    assert found == losses(lambda step: [step() for _ in found[1:]])
    assert len(set(found)) > 8


@needs_that(compiles_once_under_a_mode)
@pytest.mark.parametrize("measure", [in_a_capture, counted, watched, budgeted, compared])
def test_compiled_code_is_not_compiled_again(mesh: DeviceMesh, measure: Measure) -> None:
    graphs = CompileCounter()
    torch._dynamo.reset()
    weight = DTensor.from_local(torch.rand(8, 8), mesh, [Replicate()])

    @torch.compile(backend=graphs)
    def block(x: torch.Tensor) -> Any:
        placed: Any = DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
        out: Any = torch.relu(placed @ weight)
        return out.redistribute(placements=[Replicate()]).to_local()

    x = torch.rand(4, 8)
    plain = block(x)
    compiled = graphs.frame_count
    results: list[torch.Tensor] = []
    for times in (1, 2):  # the second time, it is first compiled while measured
        measure(lambda: results.append(block(x)))
        assert all(torch.equal(each, plain) for each in (*results, block(x)))
        assert graphs.frame_count == times * compiled
        torch._dynamo.reset()
