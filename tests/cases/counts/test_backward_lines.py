# Work in backward has the line and the module of the forward that created its node, also of ops on plain tensors.
import pytest
import torch
from torch.distributed.fsdp import fully_shard


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))  # line 13


def step_of(mesh):
    model = torch.nn.Sequential(*(Block() for _ in range(4)))
    if mesh is not None:
        for each in (*model, model):
            fully_shard(each, mesh=mesh)
    x = torch.rand(8, 64)

    def step():
        loss = model(x).sum()
        loss.backward()
        model.zero_grad()

    return step


@pytest.mark.parametrize("kind", ["fsdp2", "plain"])
def test_backward(dtdispatch, mesh_factory, kind):
    budget = dtdispatch.budget(step_of(mesh_factory((4,)) if kind == "fsdp2" else None), name=kind)
    matmuls = [
        cell for cell in budget.cells if cell.op == "mm" and cell.place and cell.place.phase == "backward"
    ]
    assert round(sum(cell.calls for cell in matmuls)) == 15  # 2 of each of 8 layers, but x has no gradient
    assert {cell.place.line for cell in matmuls} == {13}
    assert {cell.place.module for cell in matmuls} == {
        f"{n}.{name}" for n in range(4) for name in ("up", "down")
    }
