"""With param_dtype=bfloat16 and no reduce_dtype, gradients that are not reduced are summed in bfloat16: 300 passes of 1 give 256 when followed (300 when each is reduced). The advice is due, and must say reduce_dtype=torch.float32."""

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def micro_batches(mesh, **policy):
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in (*net, net):
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy))

    def step():
        for _ in range(3):
            net(torch.ones(1, 8)).float().sum().backward()
        net.zero_grad()

    return step


def test_policy(dtdispatch, device_mesh):
    for policy in (
        {"param_dtype": torch.bfloat16},
        {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32},
        {},
    ):
        steps = dtdispatch.steps(micro_batches(device_mesh, **policy), name=str(len(policy)))
        if dtdispatch.enabled:
            said = [advice.change for advice in steps.advice if "gradient_sync" in advice.change]
            assert said, "the advice is due"
            assert ("reduce_dtype" in said[0]) == (len(policy) == 1), said
