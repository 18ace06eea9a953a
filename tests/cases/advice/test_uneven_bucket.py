"""Right: 7 rows on 4 ranks are shards of 2, 2, 2 and 1: the advice must say what is done with them (pad first, or FSDP's unshard(): 1 gather); as it stands, the collective gets unequal inputs."""

import re

from torch import nn
from torch.distributed.fsdp import fully_shard


def test_sync(dtdispatch, device_mesh):
    net = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 7))
    fully_shard(net, mesh=device_mesh)
    steps = dtdispatch.steps(lambda: {k: v.full_tensor() for k, v in net.state_dict().items()}, name="sync")
    if dtdispatch.enabled:
        gathers = [advice for advice in steps.advice if "shard" in advice.change]
        assert gathers
        for advice in gathers:
            assert advice.count <= 3, advice
            assert re.search("pad|unshard|uneven|unequal", advice.change), advice
