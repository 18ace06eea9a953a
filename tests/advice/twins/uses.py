"""Programs in which a use of a result, gradient or parameter makes the change harmful."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from pytest_dtdispatch.torchapi.missing_api import fully_shard
from tests.advice.twins.fsdp import batches, gradients, groups, linears
from tests.advice.twins.model import (
    WIDTH,
    Entry,
    Harm,
    Lookalike,
    Program,
    Step,
    gathered,
    parameter,
    replicated,
    sharded,
)
from tests.advice.twins.redistributions import pair

Act = Callable[[Any], object]


def nothing(model: Any) -> None:
    """Do nothing."""


# FSDP2


def clip(model: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def read_shards(model: Any) -> list[float]:
    return [each.detach().full_tensor().norm().item() for each in model.parameters()]


def between_passes(mesh: DeviceMesh, is_followed: bool, act: Act) -> Step:
    """Train in three passes and act after each; follow by keeping groups gathered."""
    model = groups(linears(2), mesh, reshard_after_forward=not is_followed)
    inputs = batches()

    def step() -> object:
        for number, x in enumerate(inputs):
            if is_followed:
                model.set_reshard_after_backward(number == 2)
            model(x).square().mean().backward()
            act(model)
        return gradients(model)

    return step


def synchronized(mesh: DeviceMesh, is_followed: bool, before: Callable[[Any, int], object], act: Act) -> Step:
    """Train in two passes; follow by reducing gradients in the last one only."""
    model = groups(linears(2), mesh)
    for each in (model, *model):
        each.set_force_sum_reduction_for_comms(True)  # gloo scales no sums
    inputs = batches(2)

    def step() -> object:
        for number, x in enumerate(inputs):
            before(model, number)
            if is_followed:
                model.set_requires_gradient_sync(number == 1)
            model(x).square().mean().backward()
            act(model)
        return gradients(model)

    return step


def nothing_before(model: Any, number: int) -> None:
    """Do nothing."""


def other_factor(model: Any, number: int) -> None:
    for each in (model, *model):
        each.set_gradient_divide_factor((6.0, 3.0)[number])


def largest_gradients(model: Any) -> None:
    for each in model.parameters():
        dist.all_reduce(each.grad.to_local(), dist.ReduceOp.MAX)


class Heads(nn.Module):
    """A head that is called for each chunk of a f32 input."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = nn.functional.normalize(self.body(x).float(), dim=-1)
        return sum(self.head(chunk).float().square().mean() for chunk in hidden.chunk(4))


def narrow_head(mesh: DeviceMesh, is_followed: bool) -> Step:
    policy, model = MixedPrecisionPolicy(param_dtype=torch.bfloat16), Heads()
    for each in (model.body, model) if is_followed else (model.body, model.head, model):
        fully_shard()(each, mesh=mesh, mp_policy=policy)
    [x] = batches(1)

    def step() -> object:
        model(x).backward()
        return gradients(model)

    return step


# Conversions


def reversed_gradient(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Reverse the gradient of one of two results."""
    x, a, b = sharded(mesh).requires_grad_(), replicated(mesh), replicated(mesh)

    def step() -> object:
        x.grad = None
        first = gathered(x)
        second = first if is_followed else gathered(x)
        second.register_hook(lambda gradient: -0.1 * gradient)
        ((first @ a).sum() + (second @ b).sum()).backward()
        return x.grad

    return step


def held_results(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Hold two results; the next step changes one."""
    x, state = sharded(mesh), dict[str, Any]()

    def step() -> object:
        found: Any = 0.0
        if state:
            state["mean"].mul_(0.5)
            found = (state["last"] - state["mean"]).sum()
        x.add_(1.0)
        state["mean"] = gathered(x)
        state["last"] = state["mean"] if is_followed else gathered(x)
        return found

    return step


def two_states(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Distribute zeros for both moments of an optimizer."""
    zeros, gradient = torch.zeros(WIDTH, WIDTH), sharded(mesh)

    def distributed() -> Any:
        return distribute_tensor(zeros, mesh, [Shard(0)], src_data_rank=None)

    def step() -> object:
        first = distributed()
        second = first if is_followed else distributed()
        first.lerp_(gradient, 0.1)
        second.lerp_(gradient * gradient, 0.01)
        return first / (second.sqrt() + 1e-8)

    return step


def other_gradient_placements(mesh: DeviceMesh, is_followed: bool) -> Step:
    weight, x = parameter(replicated(mesh)), torch.rand(4, WIDTH) + mesh.get_local_rank()

    def step() -> object:
        weight.grad = None
        first = weight.to_local(grad_placements=[Partial()])
        second = first if is_followed else weight.to_local()
        ((x @ first).sum() + second.square().sum()).backward()
        return weight.grad

    return step


class Scaled(nn.Module):
    """A layer whose result a replicated parameter scales."""

    def __init__(self, mesh: DeviceMesh, is_followed: bool) -> None:
        super().__init__()
        self.mesh, self.layer, self.weight = mesh, nn.Linear(WIDTH, WIDTH), parameter(torch.ones(WIDTH))
        if is_followed:
            self.weight = parameter(DTensor.from_local(self.weight.detach(), mesh, [Replicate()]))

    def forward(self, x: torch.Tensor) -> Any:
        weight: Any = self.weight
        if not isinstance(weight, DTensor):
            weight = DTensor.from_local(weight, self.mesh, [Replicate()])
        result: Any = DTensor.from_local(self.layer(x), self.mesh, [Replicate()]) * weight
        return result.to_local()


def clipped_parameter(mesh: DeviceMesh, is_followed: bool) -> Step:
    model, x = Scaled(mesh, is_followed), torch.rand(4, WIDTH)

    def step() -> object:
        model.zero_grad()
        model(x).square().mean().backward()
        return nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return step


class Norm(nn.Module):
    def __init__(self, mesh: DeviceMesh, is_followed: bool) -> None:
        super().__init__()
        weight = distribute_tensor(torch.ones(WIDTH), mesh, [Replicate() if is_followed else Shard(0)])
        self.weight: Any = parameter(weight)
        self.is_whole = is_followed

    def forward(self, x: Any) -> Any:
        return x * (self.weight if self.is_whole else gathered(self.weight))


def partial_gradients(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Train norms on rows that each rank has a part of."""
    model = nn.Sequential(*(Norm(mesh, is_followed) for _ in range(3)))
    x, optimizer = sharded(mesh), torch.optim.AdamW(model.parameters(), lr=0.01)

    def step() -> object:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        return [*model.parameters()]

    return step


class Products(nn.Module):
    """Two linear layers, whose product the number of columns divides."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x) * self.second(x)) / rows_of(x), ()


def rows_of(x: Any) -> int:
    return len(x)


def divided(mesh: DeviceMesh, is_followed: bool) -> Step:
    model = Products()
    layout = None if is_followed else Shard(0)
    plan: dict[str, Any] = {name: ColwiseParallel(input_layouts=layout) for name in ("first", "second")}
    plan["last"] = RowwiseParallel(output_layouts=Shard(0))
    if is_followed:
        plan[""] = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
    parallelize_module(model, mesh, plan)
    x = torch.rand(4, WIDTH)
    return lambda: model(x)[0]


def two_leaves(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Give each result a gradient of its own."""
    x = sharded(mesh)

    def step() -> object:
        first = gathered(x).requires_grad_()
        second = first if is_followed else gathered(x).requires_grad_()
        (first.sum() + 3 * (second * second).sum()).backward()
        return first.grad, second.grad

    return step


def part_of_positions(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Add the first rows of a table; follow by sharding the table by rows."""
    x, table = sharded(mesh), sharded(mesh, 2 * WIDTH, WIDTH, dim=0 if is_followed else 1)
    return lambda: x + table[:WIDTH]


def gradient_by_hand(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Sum the norms of the gradients of a converted parameter and of a plain one."""
    model, x = Scaled(mesh, is_followed), torch.rand(4, WIDTH)

    def step() -> object:
        model.zero_grad()
        model(x).square().mean().backward()
        total = torch.zeros(())
        for each in model.parameters():
            total += each.grad.norm() ** 2  # type: ignore[union-attr]
        return total

    return step


# Calls and reads


def clamped(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Clamp between a number and another one for each step; follow by a tensor in place of the latter."""
    x, numbers = sharded(mesh), itertools.count(2)

    def step() -> object:
        number: Any = 1 / next(numbers)
        return x.clamp(0.0, torch.tensor(number) if is_followed else number).to_local().sum() * 0

    return step


def cascade(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Add to each tensor the next one, which is halved later."""
    weights: Any = [sharded(mesh) for _ in range(5)]

    def step() -> object:
        if is_followed:
            torch._foreach_mul_(weights[:-1], 0.5)
            torch._foreach_add_(weights[:-1], weights[1:])
        else:
            for weight, following in pairwise(weights):
                weight.mul_(0.5).add_(following)
        return weights

    return step


def rounded(mesh: DeviceMesh, is_followed: bool) -> Step:
    weights: Any = [sharded(mesh) for _ in range(4)]

    def step() -> object:
        found = [each * 1 for each in weights]
        if is_followed:
            torch._foreach_round_(found)
        else:
            for each in found:
                each.round_(decimals=1)
        return found

    return step


def running_total(mesh: DeviceMesh, is_followed: bool) -> Step:
    values = torch.rand(3)

    def step() -> object:
        total, found = torch.zeros(()), list[float]()
        for value in values:
            total += value
            found += [] if is_followed else [total.item()]
        return torch.tensor(found or torch.stack([total] * 3).tolist())

    return step


def two_shapes(mesh: DeviceMesh, is_followed: bool) -> Step:
    x = torch.rand(8)

    def step() -> object:
        if is_followed:
            return torch.stack([x.mean(), x[:1] * 2]).tolist()
        return x.mean().item(), (x[:1] * 2).item()

    return step


def written_slices(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Write to each slice of a tensor with a gradient."""
    rows, a = [replicated(mesh, WIDTH) for _ in range(4)], replicated(mesh, 4, WIDTH).requires_grad_()

    def step() -> object:
        a.grad = None
        out = a * 1
        slices = out.unbind(0) if is_followed else []
        for number, row in enumerate(rows):
            if is_followed:
                slices[number].copy_(row + slices[number])
            else:
                out[number] = row + out[number]
        out.square().sum().backward()
        return a.grad

    return step


def own_rates(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Add gradients with a rate for each parameter."""
    weights, gradients = ([sharded(mesh) for _ in range(4)] for _ in range(2))
    rates: Any = [0.1, 0.2, 0.3, 0.4]

    def step() -> object:
        if is_followed:
            torch._foreach_add_(weights, gradients, alpha=rates)
        else:
            for weight, gradient, rate in zip(weights, gradients, rates, strict=True):
                weight.add_(gradient, alpha=rate)
        return weights

    return step


def tokens_and_loss(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Read a loss, and a number of tokens that no f32 has."""
    x, numbers = torch.rand(8), torch.arange(8)

    def step() -> object:
        loss, tokens = x.mean(), numbers.sum() + 2**24 + 1
        if is_followed:
            both = torch.stack([loss, tokens]).tolist()
            return torch.tensor(both[0]), torch.tensor(int(both[1]))
        read = loss.item(), tokens.item()
        return torch.tensor(read[0]), torch.tensor(read[1])

    return step


def number_of_host(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Divide by a number that was created on the host, and reduced."""
    values, group = torch.rand(2) + mesh.get_local_rank(), mesh.get_group()

    def step() -> object:
        count = torch.tensor(4.0)
        if is_followed:
            total = int(count.item()) * 2
            stack = torch.stack([count, values[0] / total, values[1] / total])
            dist.all_reduce(stack, group=group)
            return [*stack]
        dist.all_reduce(count, group=group)
        total = int(count.item()) * 2
        found = [values[0] / total, values[1] / total]
        for each in found:
            dist.all_reduce(each, group=group)
        return [count, *found]

    return step


OTHER, RAISES, NOTHING = Harm.OTHER_RESULTS, Harm.RAISES, Harm.SAVES_NOTHING


def synchronizing(**options: Any) -> tuple[Program, Program]:
    return pair(synchronized, **{"before": nothing_before, "act": nothing, **options})


TABLE: list[Entry] = [
    Lookalike(
        "kept gathered",
        "clipped passes",
        *pair(between_passes, act=clip),
        OTHER,
        "clipping finds no gradients",
    ),
    Lookalike(
        "kept gathered",
        "shards read",
        *pair(between_passes, act=read_shards),
        RAISES,
        "gathered parameters are no DTensors",
        error="has no attribute 'full_tensor'",
    ),
    Lookalike(
        "micro-batches",
        "other factors",
        *synchronizing(before=other_factor),
        OTHER,
        "one factor divides the sum",
    ),
    Lookalike(
        "micro-batches",
        "gradients reduced by the program",
        *synchronizing(act=largest_gradients),
        RAISES,
        "there are no gradients yet",
        error="has no attribute 'to_local'",
    ),
    Lookalike(
        "repeated gathers",
        "cast input",
        *pair(narrow_head),
        RAISES,
        "only the group of the head casts its input",
        error="must have the same dtype",
    ),
    Lookalike("repeated", "hook", *pair(reversed_gradient), OTHER, "both gradients are reversed"),
    Lookalike("repeated", "held results", *pair(held_results), OTHER, "the next step changes both"),
    Lookalike("wraps", "two states", *pair(two_states), OTHER, "both moments are one tensor"),
    Lookalike(
        "wraps",
        "gradient placements",
        *pair(other_gradient_placements),
        OTHER,
        "both gradients are summed over ranks",
    ),
    Lookalike(
        "parameters",
        "clipping",
        *pair(clipped_parameter),
        RAISES,
        "lists mix DTensors and tensors",
        error="mixed torch.Tensor and DTensor",
    ),
    Lookalike(
        "replicated weights",
        "partial gradients",
        *pair(partial_gradients),
        NOTHING,
        "each op of AdamW reduces the gradients",
        counted="collectives",
    ),
    Lookalike(
        "unbind",
        "written slices",
        *pair(written_slices),
        RAISES,
        "autograd allows no write to them",
        error="is a view and is being modified inplace",
    ),
    Lookalike(
        "lists",
        "a rate for each",
        *pair(own_rates),
        RAISES,
        "it takes one rate",
        error="invalid combination of arguments",
    ),
    Lookalike("inputs", "local size", *pair(divided), OTHER, "a DTensor has another size"),
    Lookalike("repeated", "two leaves", *pair(two_leaves), OTHER, "one leaf has both gradients"),
    Lookalike(
        "implied",
        "part of a table",
        *pair(part_of_positions),
        NOTHING,
        "the slice is redistributed",
        counted="collectives",
    ),
    Lookalike(
        "parameters",
        "norm by hand",
        *pair(gradient_by_hand),
        RAISES,
        "the sum mixes DTensors and tensors",
        error="AssertionError",
    ),
    Lookalike(
        "misses",
        "number beside another",
        *pair(clamped),
        NOTHING,
        "torch makes a number of the tensor",
        counted="misses",
    ),
    Lookalike("lists", "cascade", *pair(cascade), OTHER, "each adds a tensor that is halved already"),
    Lookalike("lists", "options", *pair(rounded), OTHER, "the op on lists has no decimals"),
    Lookalike("reads", "running total", *pair(running_total), OTHER, "the last total is read three times"),
    Lookalike(
        "reads",
        "two shapes",
        *pair(two_shapes),
        RAISES,
        "a stack has one shape",
        error="stack expects each tensor to be equal size",
    ),
    Lookalike("reads", "two dtypes", *pair(tokens_and_loss), OTHER, "f32 does not have the number of tokens"),
    Lookalike(
        "numbers",
        "number of the host",
        *pair(number_of_host),
        OTHER,
        "the number is read before the reduction",
    ),
]
