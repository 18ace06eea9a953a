# A step gets another mesh of equal ranks and names, which is not equal (not a slice): the reason of the miss is the mesh.
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard


def test_mesh_reason(dtdispatch, mesh_factory):
    root = mesh_factory((2, 4), dim_names=("dp", "tp"))
    piece, own = root["tp"], DeviceMesh("cpu", [0, 1, 2, 3], mesh_dim_names=("tp",))
    assert piece.mesh.tolist() == own.mesh.tolist()
    meshes = iter([piece, piece, own])

    def step():
        a = DTensor.from_local(torch.rand(4, 4), next(meshes), [Shard(0)])
        return a + a

    missed = dtdispatch.steps(step, warmup=2, steps=1).steps[0].missed
    if piece == own:  # torch 2.9 compares no roots
        assert not missed
    else:
        assert [each.op for each in missed] == ["add.Tensor"]
        assert "mesh" in missed[0].reason, missed[0].reason
