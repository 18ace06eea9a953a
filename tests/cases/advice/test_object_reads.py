"""Right: all_gather_object makes these reads, its user can neither stack nor defer them: nothing, or what replaces the call."""

import re

import torch.distributed as dist


def test_objects(dtdispatch, device_mesh):
    def step():
        dist.all_gather_object([None] * device_mesh.size(), {"loss": 1.0})

    steps = dtdispatch.steps(step, warmup=1, steps=2)
    if dtdispatch.enabled:
        assert not any(
            re.search("stack|keep values|after the step", advice.change) for advice in steps.advice
        ), steps.advice
