"""Conversions that a plan of ``parallelize_module`` makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.advice.twins.model import WIDTH, Entry, Harm, Lookalike, Step, Twin
from tests.advice.twins.redistributions import pair


class Linears(nn.Module):
    """Linear layers whose products a last one takes.

    Args:
        count: number of the layers before the last one.
        prepare: what the forward computes of its argument, under the same name.
        is_residual: whether the forward adds its argument to the result.
    """

    def __init__(self, count: int, prepare: Callable[[Any], Any] | None, is_residual: bool) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count))
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.prepare, self.is_residual = prepare, is_residual


class Block(Linears):
    def forward(self, x: Any) -> Any:
        y = 1.0
        for each in self.first:
            y = y * each(x)
        return x + self.last(y) if self.is_residual else self.last(y)


class PreparedBlock(Linears):
    def forward(self, x: Any) -> Any:
        x = self.prepare(x) if self.prepare else x
        return self.last(self.first[0](x) * self.first[1](x))


def in_plan(
    mesh: DeviceMesh,
    is_followed: bool,
    *,
    layout: Any = None,
    count: int = 2,
    blocks: int = 1,
    prepare: Callable[[Any], Any] | None = None,
    is_residual: bool = False,
) -> Step:
    """Train blocks by tensor parallelism; follow by converting the input of each block once."""
    layout = layout or Replicate()
    kind = PreparedBlock if prepare else Block
    model = nn.Sequential(*(kind(count, prepare, is_residual) for _ in range(blocks)))
    plan: dict[str, Any] = {"*.first.*": ColwiseParallel(input_layouts=None if is_followed else layout)}
    plan["*.last"] = RowwiseParallel(output_layouts=layout)
    if is_followed:
        plan["*"] = PrepareModuleInput(input_layouts=layout, desired_input_layouts=Replicate())
    parallelize_module(model, mesh, plan)
    x = torch.rand(4, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> object:
        optimizer.zero_grad()
        x.requires_grad_().grad = None
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss, x.grad, *model.parameters()

    return step


def after_norm(mesh: DeviceMesh, is_followed: bool, count: int = 3) -> Step:
    """Train a block whose argument is a DTensor of a norm; follow by preparing it once."""
    model = nn.Sequential(nn.LayerNorm(WIDTH), Block(count, None, is_residual=False))
    linear = ColwiseParallel(input_layouts=None if is_followed else Shard(1))
    plan: dict[str, Any] = {"0": SequenceParallel(), "1.first.*": linear}
    plan["1.last"] = RowwiseParallel(output_layouts=Shard(1))
    if is_followed:
        plan["1"] = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    parallelize_module(model, mesh, plan)
    x = torch.rand(2, 4, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> object:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss, *model.parameters()

    return step


TABLE: list[Entry] = [
    Twin("inputs", "gate and up", *pair(in_plan), "redistributions", 1, is_quick=True),
    Twin("inputs", "q, k and v", *pair(in_plan, count=3, blocks=2), "redistributions", 4),
    Twin(
        "inputs",
        "sequence parallel",
        *pair(in_plan, layout=Shard(0), count=3, blocks=2),
        "redistributions",
        8,
    ),
    Twin("repeated", "after a norm", *pair(after_norm), "redistributions", 4, is_quick=True),
    Lookalike(
        "inputs",
        "residual",
        *pair(in_plan, is_residual=True),
        Harm.RAISES,
        "the sum mixes a DTensor and a tensor",
        error="mixed torch.Tensor and DTensor",
        is_quick=True,
    ),
    Lookalike(
        "inputs",
        "prepared argument",
        *pair(in_plan, prepare=lambda x: x * torch.arange(WIDTH)),
        Harm.RAISES,
        "the product mixes a DTensor and a tensor",
        error="mixed torch.Tensor and DTensor",
    ),
    Lookalike(
        "inputs",
        "one linear layer",
        *pair(in_plan, count=1),
        Harm.SAVES_NOTHING,
        "one conversion is one",
        counted="redistributions",
    ),
]
