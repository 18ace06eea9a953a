# Two ops of different namespaces with one name: op_to_time must tell them apart, as the printed table does.
import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import register_sharding

from pytest_dtdispatch import TimeCaptureMode

lib = torch.library.Library("mine2", "DEF")
lib.define("add.Tensor(Tensor a, Tensor b) -> Tensor")
lib.impl("add.Tensor", lambda a, b: a.mul(b).sin().cos(), "CompositeExplicitAutograd")


def test_namespaces(device_mesh):
    @register_sharding(torch.ops.mine2.add.Tensor)
    def rule(a, b):
        return [([Replicate()], [Replicate()] * 2), ([Shard(0)], [Shard(0)] * 2)]

    a = distribute_tensor(torch.rand(64, 64), device_mesh, [Shard(0)])
    with TimeCaptureMode() as mode:
        a + a
        torch.ops.mine2.add.Tensor(a, a)
    assert {name: len(timings) for name, timings in mode.op_to_time.items()} == {
        "add.Tensor": 1,
        "mine2.add.Tensor": 1,
    }
