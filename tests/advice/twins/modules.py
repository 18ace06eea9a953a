"""Modules of many small ops, whose dispatch takes longer than the ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map

from tests.advice.twins.model import WIDTH, Entry, Harm, Lookalike, Step, Twin
from tests.advice.twins.redistributions import pair

OPS = 10  # elementwise ops before others


class Chain(nn.Module):
    """Many small elementwise ops, and one other function.

    Args:
        op: repeated function.
        last: function of the result.
    """

    def __init__(self, op: Callable[..., Any], last: Callable[[Any], Any]) -> None:
        super().__init__()
        self.op, self.last = op, last

    def forward(self, *tensors: Any) -> Any:
        x, *rest = tensors
        for _ in range(OPS):
            x = self.op(x, *rest)
        return self.last(x)


def gate(x: Any) -> Any:
    return torch.sigmoid(x * 0.5) + 0.1


def soft_cap(x: Any) -> Any:
    return torch.tanh(x / 30.0) * 30.0


def gated(x: Any, y: Any) -> Any:
    return x * torch.sigmoid(y) + 0.1


def small_ops(
    mesh: DeviceMesh,
    is_followed: bool,
    op: Callable[..., Any] = gate,
    inputs: int = 1,
    last: Callable[[Any], Any] = lambda x: x,
    placement: Any = None,
) -> Step:
    """Train through a module; follow by running it on local tensors."""
    module: Any = Chain(op, last)
    over = placement or Shard(0)
    tensors: Any = [distribute_tensor(torch.rand(WIDTH, WIDTH), mesh, [over]) for _ in range(inputs)]
    if is_followed:
        layouts = tuple([over] for _ in tensors)
        module = local_map(module, out_placements=[over], in_placements=layouts, device_mesh=mesh)
    for each in tensors:
        each.requires_grad_()

    def step() -> object:
        result = module(*tensors)
        result.sum().backward()
        found = [result, *(each.grad for each in tensors)]
        for each in tensors:
            each.grad = None
        return found

    return step


def lookalike(name: str, effect: str, **options: Any) -> Lookalike:
    return Lookalike(
        "modules", name, *pair(small_ops, **options), Harm.OTHER_RESULTS, effect, needs_times=True
    )


TABLE: list[Entry] = [
    Twin("modules", "gate", *pair(small_ops), "calls", 70, needs_times=True),
    Twin("modules", "soft cap", *pair(small_ops, op=soft_cap), "calls", 80, needs_times=True),
    Twin(
        "modules",
        "two inputs",
        *pair(small_ops, op=gated, inputs=2),
        "calls",
        89,
        needs_times=True,
    ),
    lookalike("softmax over shards", "each rank normalizes its rows", last=lambda x: x.softmax(0)),
    lookalike("cumulative sum", "each rank begins at 0", last=lambda x: x.cumsum(0)),
    lookalike("rows in reverse order", "each rank reverses its rows", op=soft_cap, last=lambda x: x.flip(0)),
]
