"""Right: set_requires_gradient_sync(False) is for passes whose gradients one step of the optimizer adds up. `follow_micro_batches.py` shows what is lost elsewhere.

Each reduction is needed if the optimizer steps after each pass, as in the epochs of PPO, or if the passes are of two models. The control saves 3 of 6.
"""

import re

import torch
from torch.distributed.fsdp import fully_shard


def build(mesh):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    for each in (*model, model):
        fully_shard(each, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def advised(dtdispatch, step):
    advice = dtdispatch.steps(step).advice
    return [
        one
        for one in advice
        if re.search("gradient_sync|no_sync", one.change) or "reduce_scatter" in one.saves
    ]


def test_optimizer_steps_between(dtdispatch, device_mesh):
    model, optimizer = build(device_mesh)

    def epochs():
        for _ in range(2):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert not advised(dtdispatch, epochs)


def test_two_models(dtdispatch, device_mesh):
    actor_and_critic = build(device_mesh), build(device_mesh)

    def step():
        for model, _ in actor_and_critic:
            model(torch.ones(4, 8)).sum().backward()
        for _, optimizer in actor_and_critic:
            optimizer.step()
            optimizer.zero_grad()

    assert not advised(dtdispatch, step)


def test_one_model_accumulates(dtdispatch, device_mesh):
    model, optimizer = build(device_mesh)

    def step():
        for _ in range(2):
            model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = advised(dtdispatch, step)
    if dtdispatch.enabled:
        assert sum(one.count for one in found) == 3
