"""Right: a maximum can't be stacked with sums: 2 of 4 all_reduces remain, at most 2 are saved (said: 3). One gather of all four numbers would do as well, if it is said."""

import torch
import torch.distributed as dist


def test_metrics(dtdispatch, device_mesh):
    losses, peak = [torch.rand(()) for _ in range(3)], torch.rand(())

    def total(number, op=dist.ReduceOp.SUM):
        dist.all_reduce(number, op=op)

    def step():
        for loss in losses:
            total(loss.clone())
        total(peak.clone(), dist.ReduceOp.MAX)

    steps = dtdispatch.steps(step, name="metrics")
    if dtdispatch.enabled:
        assert any(advice.count for advice in steps.advice)
        assert all(advice.count <= 2 or "gather" in advice.change for advice in steps.advice)
