"""Right: each layer's tolist() is needed before the next layer runs, so no read can wait until after the step. bincount's own read can go (scatter_add of known length): 3 of 6. More is accepted only of grouped products, which take the sizes on the device (not tried on CUDA; the CPU's reads each size)."""

import re

import torch


def test_routing(dtdispatch, device_mesh):
    routers = [torch.nn.Linear(16, 8, bias=False) for _ in range(3)]

    def step():
        h = torch.rand(12, 16)
        for router in routers:
            choice = router(h).argmax(-1)
            sizes = torch.bincount(choice, minlength=8).tolist()
            h = torch.cat([part * 2 for part in h[choice.argsort()].split(sizes)])

    steps = dtdispatch.steps(step, name="routing")
    if dtdispatch.enabled:
        for advice in steps.advice:
            assert not re.search("stack|after the step", advice.change), advice
            assert advice.count <= 3 or "group" in advice.change, advice
