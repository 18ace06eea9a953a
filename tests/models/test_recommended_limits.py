"""The limits that README and the quick start recommend hold on training steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin_runs import measure
from tests.probes import FSDP_WITHOUT_CUDA, needs

pytestmark = [pytest.mark.torch, pytest.mark.long]

ROOT = Path(__file__).parent.parent.parent
# An FSDP2 and a tensor-parallel step, each with clipping and three optimizers.
STEPS = """
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import SGD, AdamW

def fsdp(model, mesh):
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

def tensor_parallel(model, mesh):
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

@pytest.mark.parametrize("optimizer, how", [(AdamW, {"fused": True}), (AdamW, {"foreach": True}), (SGD, {})])
@pytest.mark.parametrize("parallelize", [fsdp, tensor_parallel])
def test_step(dtdispatch, device_mesh, parallelize, optimizer, how):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    parallelize(model, device_mesh)
    update = optimizer(model.parameters(), lr=0.01, **how)

    def step():
        update.zero_grad()
        model(torch.rand(4, 8)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()

    dtdispatch.steps(step)
"""


def recommended() -> set[str]:
    """Return the limits of the workflow in README, and of the configuration in the quick start."""
    workflow = re.search(r"run: pytest --dtdispatch --dtdispatch-max (\S+)", (ROOT / "README.md").read_text())
    configuration = re.search(
        r'^dtdispatch_max = \["(.*)"\]', (ROOT / "docs/quickstart.md").read_text(), re.MULTILINE
    )
    assert workflow is not None
    assert configuration is not None
    return {workflow[1], configuration[1]}


@needs(FSDP_WITHOUT_CUDA)
def test_recommended_limits_hold_on_training_steps(pytester: pytest.Pytester) -> None:
    [limits] = recommended()
    pytester.makepyfile(test_it=STEPS)
    measure(pytester, f"--dtdispatch-max={limits}", passed=6)
