"""Right (torch 2.13): AdamW(fused=True) takes DTensors of two meshes in one group, with the results of foreach=False; plain tensors beside them raise.

Advised were separate optimizers for plain parameters "and for each mesh", in both cases.
"""

import re

import pytest
import torch
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


def stepped(mesh, plain, **options):
    torch.manual_seed(0)
    params = [
        torch.nn.Parameter(distribute_tensor(torch.rand(8, 8), mesh["dp"], [Shard(0)])) for _ in range(2)
    ]
    params += [
        torch.nn.Parameter(distribute_tensor(torch.rand(8, 8), mesh, [Shard(0), Shard(1)])) for _ in range(2)
    ]
    params += [torch.nn.Parameter(torch.rand(8)) for _ in range(plain)]
    for param in params:
        param.grad = torch.rand_like(param)
    optimizer = torch.optim.AdamW(params, lr=1e-2, **options)
    for _ in range(3):
        optimizer.step()
    return optimizer, [(p.to_local() if isinstance(p, DTensor) else p).detach() for p in params]


@pytest.mark.parametrize("plain", [0, 1])
def test_fused(dtdispatch, mesh_factory, plain):
    mesh = mesh_factory((2, 4), dim_names=("dp", "tp"))
    loop, expected = stepped(mesh, plain, foreach=False)
    if plain:
        with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
            stepped(mesh, plain, fused=True)
    else:
        torch.testing.assert_close(stepped(mesh, plain, fused=True)[1], expected)
    budget = dtdispatch.budget(loop.step)
    if dtdispatch.enabled:
        changes = [advice.change for advice in budget.advice]
        assert any("fused" in change for change in changes), changes  # 1 op in place of 32
        for change in changes:
            assert not re.search("(each|every|per) mesh", change), change
            if plain and "fused" in change:
                assert re.search("plain|separate|apart|own optimizer", change), change
            elif not plain:
                assert not re.search("separate|mixture", change), change
