"""torch.optim.ASGD keeps step, eta and mu on the parameter's device and reads all three in each step: 9 reads for 3 parameters."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import Shard, distribute_tensor


def test_devices():
    with FakeTensorMode():  # shows where the states of a parameter on a GPU are
        p = torch.nn.Parameter(torch.zeros(2, device="cuda"))
        p.grad = torch.zeros(2, device="cuda")
        optimizer = torch.optim.ASGD([p], lr=0.01)
        with pytest.raises(
            RuntimeError, match="_local_scalar_dense"
        ):  # the first read: a FakeTensor has no value
            optimizer.step()
        assert {optimizer.state[p][name].device.type for name in ("step", "eta", "mu")} == {"cuda"}


def test_reads(dtdispatch, device_mesh, monkeypatch):
    parameters = [
        torch.nn.Parameter(distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])) for _ in range(3)
    ]
    gradients = [distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)]) for _ in parameters]
    optimizer = torch.optim.ASGD(parameters, lr=0.01)

    def step():
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        optimizer.step()

    counted = [len(each.reads) for each in dtdispatch.steps(step).steps]
    calls, item = [], torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda self: calls.append(1) or item(self))
    step()
    monkeypatch.undo()
    assert len(calls) == 9
    assert counted == [9] * 5
