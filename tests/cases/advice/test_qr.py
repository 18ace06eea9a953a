"""Right: qr needs the whole matrix whichever dimension is sharded; 'shard another dimension' saves nothing (1 gather with Shard(0), 1 with Shard(1))."""

import re

import torch
from torch.distributed.tensor import Shard, distribute_tensor


def test_qr(dtdispatch, device_mesh):
    for dim in (0, 1):
        g = distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(dim)])
        steps = dtdispatch.steps(lambda g=g: torch.linalg.qr(g)[0], name=f"S{dim}")
        if dtdispatch.enabled:
            assert steps.collectives_per_step == 1
            assert not any(
                re.search("other dim|different dim|local tensor", advice.change) for advice in steps.advice
            )
