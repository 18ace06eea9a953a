"""Right: a tensor that is written between two redistributions has two values, so none of the two is saved, by whatever way it is written.

Advised was to redistribute it once. `nothing` is the control: there one is saved. Also run with `--dtdispatch-nproc 2`.
"""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

WRITES = {
    "nothing": lambda w: None,
    "w.mul_(2)": lambda w: w.mul_(2),
    "w.data.mul_(2)": lambda w: w.data.mul_(2),
    "w.data.copy_(...)": lambda w: w.data.copy_(w.data * 2),
    "dist.all_reduce(w.to_local())": lambda w: dist.all_reduce(w.to_local()),
    "a second DTensor on the shard": lambda w: DTensor.from_local(
        w.to_local(), w.device_mesh, w.placements
    ).mul_(2),
}


@pytest.mark.parametrize("name", WRITES)
@torch.no_grad()
def test_written(dtdispatch, device_mesh, name):
    def step(w):
        before = w.redistribute(placements=[Replicate()])
        WRITES[name](w)
        return before, w.redistribute(placements=[Replicate()])

    def ones():
        return distribute_tensor(torch.ones(8, 8), device_mesh, [Shard(0)])

    is_fake, whole = dist.get_backend() == "fake", ones().redistribute(placements=[Replicate()]).to_local()
    before, after = (each.to_local()[0, 0].item() for each in step(ones()))
    # A fake all_reduce writes nothing, and before torch 2.10 nor does a fake all_gather.
    if not is_fake or ("all_reduce" not in name and bool((whole == 1).all())):
        assert (before, after) == (1, 1 if name == "nothing" else 2)
    w = ones()
    steps = dtdispatch.steps(lambda: step(w), name=name)
    if dtdispatch.enabled:
        saved = sum(advice.count for advice in steps.advice if advice.change)
        assert saved == (1 if name == "nothing" else 0), steps.advice
