"""Numbers, norms, reads, conversions, misses, growth, lists of ops, and meshes."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from tests.advice.twins.fsdp import groups, linears
from tests.advice.twins.model import (
    WIDTH,
    Entry,
    Harm,
    Lookalike,
    Step,
    Twin,
    gathered,
    parameter,
    partial_sum,
    reduced_stack,
    replicated,
    sharded,
)
from tests.advice.twins.redistributions import pair

SUM, MAX, MIN = dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN


# Norms and other partial scalars


def scalars(mesh: DeviceMesh, is_followed: bool, ops: Sequence[Callable[[Any], Any]], count: int = 4) -> Step:
    """Reduce numbers of several tensors, one after another; follow by a stack for each op."""
    weights = [sharded(mesh) for _ in range(count)]

    def step() -> object:
        results = []
        for op in ops:
            if is_followed:
                results += reduced_stack(op(each) for each in weights)
            else:
                results += [op(each).full_tensor() for each in weights]
        return results

    return step


def norms_in_turn(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Scale each tensor by the norm of the previous one."""
    weights = [sharded(mesh) for _ in range(4)]

    def step() -> object:
        if is_followed:
            return reduced_stack(each.norm() for each in weights)
        results = [weights[0].norm().full_tensor()]
        for each in weights[1:]:
            results.append((each * results[-1].item()).norm().full_tensor())
        return results

    return step


def sum_and_maximum(mesh: DeviceMesh, is_followed: bool) -> Step:
    x = sharded(mesh)
    ops: list[Any] = [torch.sum, torch.amax, torch.amin]

    def step() -> object:
        if is_followed:
            return reduced_stack(op(x) for op in ops)
        return [op(x).full_tensor() for op in ops]

    return step


# Numbers of plain tensors


def reduced(
    mesh: DeviceMesh,
    is_followed: bool,
    ops: Sequence[Any],
    values: Sequence[Any] = (),
    by_kind: bool = True,
) -> Step:
    """Reduce metrics; follow by a stack for each op and dtype, or one stack of all."""
    numbers = [torch.tensor(value + dist.get_rank()) for value in values or [0.25] * len(ops)]
    group = mesh.get_group(0)

    def step() -> object:
        found = [each.clone() for each in numbers]
        if not is_followed:
            for each, op in zip(found, ops, strict=True):
                dist.all_reduce(each, op, group)
            return found
        kinds = [(str(op), each.dtype) if by_kind else () for each, op in zip(found, ops, strict=True)]
        results: dict[int, torch.Tensor] = {}
        for kind in dict.fromkeys(kinds):
            at = [index for index, each in enumerate(kinds) if each == kind]
            stack = torch.stack([found[index] for index in at])
            dist.all_reduce(stack, ops[at[0]], group)
            results |= dict(zip(at, stack.unbind(), strict=True))
        return [results[index].to(found[index].dtype) for index in range(len(found))]

    return step


def reduced_in_turn(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Reduce tokens, then the mean loss, then the variance around it."""
    values = torch.rand(8) + dist.get_rank()
    group = mesh.get_group()

    def step() -> object:
        count = torch.tensor(8.0)
        if is_followed:
            mean = values.mean()
            stack = torch.stack([count, values.sum() / count, (values - mean).square().sum()])
            dist.all_reduce(stack, SUM, group)
            return stack
        dist.all_reduce(count, SUM, group)
        mean = values.sum() / count
        dist.all_reduce(mean, SUM, group)
        spread = (values - mean).square().sum()
        dist.all_reduce(spread, SUM, group)
        return torch.stack([count, mean, spread])

    return step


def reduced_over_two_groups(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Reduce losses over one mesh dimension, and norms over the other."""
    numbers = [torch.tensor(float(number + dist.get_rank())) for number in range(4)]
    by_group = [mesh.get_group(number % 2) for number in range(4)]

    def step() -> object:
        if is_followed:
            stack = torch.stack(numbers)
            dist.all_reduce(stack, SUM, by_group[0])
            return stack
        found = [each.clone() for each in numbers]
        for each, group in zip(found, by_group, strict=True):
            dist.all_reduce(each, SUM, group)
        return torch.stack(found)

    return step


# Reads


def losses_read(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Read the loss of each micro-batch for a log."""
    weight, inputs = torch.rand(WIDTH), [torch.rand(WIDTH) for _ in range(4)]

    def step() -> object:
        losses = [(weight * x).sum() for x in inputs]
        return torch.stack(losses).tolist() if is_followed else [loss.item() for loss in losses]

    return step


def summed_on_the_host(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Sum the losses of micro-batches in Python."""
    weight, inputs = torch.rand(WIDTH, requires_grad=True), [torch.rand(WIDTH) for _ in range(4)]

    def step() -> object:
        total: Any = 0.0
        for x in inputs:
            loss = (weight * x).sum()
            loss.backward()
            if is_followed:
                total += loss.detach()
            else:
                total += loss.item()
        found, weight.grad = weight.grad, None
        return float(total), found

    return step


def rate_by_norm(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Divide the rate by the norm of the gradient, and log the loss afterwards; follow by one read."""
    weight = parameter(torch.ones(WIDTH))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    [group] = optimizer.param_groups

    def step() -> object:
        weight.grad = weight.detach().square()
        norm = weight.grad.norm()
        if not is_followed:
            number = norm.item()
            group["lr"] = 0.1 / max(number, 1.0)
        optimizer.step()
        loss = weight.detach().square().sum()
        return torch.stack([norm, loss]).tolist() if is_followed else [number, loss.item()]

    return step


def listed_and_compared(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Run another pass only if the losses of a list are small."""
    losses = [torch.rand(()) + 1 for _ in range(4)]

    def step() -> object:
        if not is_followed and sum([loss.item() for loss in losses]) > 2:
            return 0.0
        return losses[0].square().item()

    return step


def metrics_read(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Read three metrics of DTensors after the step."""
    x = sharded(mesh)

    def step() -> object:
        metrics = [x.sum().full_tensor(), x.mean().full_tensor(), x.norm().full_tensor()]
        if is_followed:
            return torch.stack(metrics).tolist()
        return [float(each) for each in metrics]

    return step


def routed(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Split tokens by sizes that the host reads, in each layer; follow by the sizes of the first layer."""
    routers = [nn.Linear(WIDTH, 4, bias=False) for _ in range(3)]
    x = torch.randn(12, WIDTH)

    @torch.no_grad()
    def step() -> object:
        hidden, sizes = x, None
        for router in routers:
            choice = router(hidden).argmax(-1)
            counts = torch.zeros(4, dtype=torch.long).scatter_add_(0, choice, torch.ones_like(choice))
            sizes = sizes if is_followed and sizes else counts.tolist()
            parts = hidden[choice.argsort()].split(sizes)
            hidden = torch.cat([part * (number + 1) for number, part in enumerate(parts)])
        return hidden

    return step


def searched(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Halve a value until it is small; follow by one read after the loop."""
    start = torch.tensor(8.0)

    def step() -> object:
        value, halved = start, 0
        for _ in range(6):
            if not is_followed and value.item() < 1:
                break
            value, halved = value / 2, halved + 1
        return value.item(), halved

    return step


def nan_skipped(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Skip the update of each weight whose gradient is not finite."""
    weights = [torch.ones(4) for _ in range(3)]
    gradients = [torch.ones(4), torch.full((4,), float("nan")), torch.ones(4)]

    def step() -> object:
        for weight, gradient in zip(weights, gradients, strict=True):
            if is_followed or bool(gradient.isfinite().all()):
                weight.sub_(gradient, alpha=0.01)
        return weights

    return step


def counters_of_torch(mesh: DeviceMesh) -> Step:
    """Let Adagrad read its counters."""
    weights = [parameter(sharded(mesh)) for _ in range(3)]
    optimizer = torch.optim.Adagrad(weights, foreach=False)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
        optimizer.state[weight]["step"] = distribute_tensor(torch.tensor(0.0), mesh, [Replicate()])
    return optimizer.step


def objects(mesh: DeviceMesh) -> Step:
    """Gather objects, whose sizes torch reads."""

    def step() -> object:
        found: list[Any] = [None] * 2
        dist.all_gather_object(found, {"loss": 1.0})
        return [each["loss"] for each in found]

    return step


# Reads of partial DTensors


def partial_read(mesh: DeviceMesh, is_followed: bool, read: Callable[[Any], object], count: int = 1) -> Step:
    x = partial_sum(mesh)

    def step() -> object:
        values = [x.sum() for _ in range(count)]
        return [read(each.full_tensor() if is_followed else each) for each in values]

    return step


def own_share(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Read the local tensor, as for a metric of this rank."""
    x = partial_sum(mesh)

    def step() -> object:
        value = x.sum()
        return (value.full_tensor() if is_followed else value.to_local()).item()

    return step


def rank_metric(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Read the number of tokens of this rank before it is reduced."""
    tokens = torch.tensor(8.0 + dist.get_rank())

    def step() -> object:
        wrapped: Any = DTensor.from_local(tokens, mesh, [Partial()])
        own = wrapped.full_tensor() if is_followed else wrapped.to_local()
        return own.item(), wrapped.full_tensor().item()

    return step


def reduced_before(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Read a number that was reduced."""
    x = partial_sum(mesh)

    def step() -> object:
        value = gathered(x.sum())
        return (value.full_tensor() if is_followed else value).item()

    return step


# Conversions


def wrapped(mesh: DeviceMesh, is_followed: bool, convert: Callable[[Any, DeviceMesh], Any]) -> Step:
    """Convert one tensor three times."""
    x = torch.rand(WIDTH, WIDTH)

    def step() -> object:
        if is_followed:
            once = convert(x, mesh)
            return once * 2, once + 1, once - 1
        return convert(x, mesh) * 2, convert(x, mesh) + 1, convert(x, mesh) - 1

    return step


def wrapped_in_batches(mesh: DeviceMesh, is_followed: bool) -> Step:
    weight = torch.rand(WIDTH, WIDTH, requires_grad=True)
    inputs = [sharded(mesh, 8, WIDTH) for _ in range(3)]

    def step() -> object:
        once = None
        for x in inputs:
            if once is None or not is_followed:
                once = DTensor.from_local(weight, mesh, [Replicate()])
            (x @ once).sum().backward()
        found, weight.grad = weight.grad, None
        return found

    return step


def unwrapped(mesh: DeviceMesh, is_followed: bool) -> Step:
    x = sharded(mesh)

    def step() -> object:
        if is_followed:
            local = x.to_local()
            return local * 2, local + 1, local - 1
        return x.to_local() * 2, x.to_local() + 1, x.to_local() - 1

    return step


def distributed_after_a_write(mesh: DeviceMesh, is_followed: bool, write: Callable[[Any], object]) -> Step:
    x = torch.rand(WIDTH, WIDTH)

    def step() -> object:
        first = distribute_tensor(x, mesh, [Shard(0)])
        write(x)
        second = first if is_followed else distribute_tensor(x, mesh, [Shard(0)])
        return first, second

    return step


def wrapped_without_graph(mesh: DeviceMesh, is_followed: bool) -> Step:
    weight = torch.rand(WIDTH, WIDTH, requires_grad=True)

    def step() -> object:
        with torch.no_grad():
            first: Any = DTensor.from_local(weight, mesh, [Shard(0)])
        second: Any = first if is_followed else DTensor.from_local(weight, mesh, [Shard(0)])
        (second * second).sum().backward()
        found, weight.grad = weight.grad, None
        return found

    return step


def wrapped_with_another_graph(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Write the result of each micro-batch to one buffer, and wrap the buffer."""
    weight, buffer = torch.rand(WIDTH, WIDTH, requires_grad=True), torch.zeros(WIDTH, WIDTH)

    def step() -> object:
        once = None
        for _ in range(2):
            doubled = buffer.detach().copy_(weight * weight)
            if once is None or not is_followed:
                once = DTensor.from_local(doubled, mesh, [Shard(0)])
            once.sum().backward()
        found, weight.grad = weight.grad, None
        return found

    return step


# Parameters


def wrapped_parameters(mesh: DeviceMesh, is_followed: bool, count: int = 4, placement: Any = None) -> Step:
    """Convert plain parameters in each step."""
    over = [placement or Shard(0)]
    weights = [parameter(torch.rand(8, WIDTH)) for _ in range(count)]
    if is_followed:
        weights = [parameter(DTensor.from_local(each.detach(), mesh, over)) for each in weights]

    def step() -> object:
        for each in weights:
            wrapped: Any = each if is_followed else DTensor.from_local(each, mesh, over)
            (wrapped * wrapped).sum().backward()
        found = [each.grad.to_local() if is_followed else each.grad for each in weights]
        for each in weights:
            each.grad = None
        return found

    return step


def batches_wrapped(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Convert another batch in each step."""
    data, numbers = torch.rand(64, 4, WIDTH), itertools.count()
    first: Any = DTensor.from_local(data[0], mesh, [Shard(0)])

    def step() -> object:
        x = first if is_followed else DTensor.from_local(data[next(numbers)], mesh, [Shard(0)])
        return x * 2

    return step


def tied(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Convert a parameter that plain ops use as well."""
    weight: Any = parameter(torch.rand(WIDTH, WIDTH))
    if is_followed:
        weight = parameter(DTensor.from_local(weight.detach(), mesh, [Replicate()]))
    x = sharded(mesh)

    def step() -> object:
        embedded = nn.functional.embedding(torch.arange(4), weight)
        wrapped = weight if is_followed else DTensor.from_local(weight, mesh, [Replicate()])
        result = embedded.sum(), (x @ wrapped).sum().full_tensor()
        (result[0] + result[1]).backward()
        found, weight.grad = weight.grad, None
        return found

    return step


def normalized(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Convert a weight that is computed from parameters in each step, as in weight normalization."""
    direction, scale = parameter(torch.rand(8, WIDTH)), parameter(torch.rand(8, 1))
    optimizer = torch.optim.SGD([direction, scale], lr=0.1)
    once: Any = DTensor.from_local((direction * scale).detach(), mesh, [Shard(0)])

    def step() -> object:
        weight = once if is_followed else DTensor.from_local(direction * scale, mesh, [Shard(0)])
        if weight.requires_grad:
            weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return direction.detach().clone(), scale.detach().clone()

    return step


# Loading


def loaded(mesh: DeviceMesh, is_followed: bool, placements: Sequence[Any] = (Shard(0),)) -> Step:
    values = [torch.rand(WIDTH, WIDTH) for _ in range(4)]
    options: Any = {"src_data_rank": None} if is_followed else {}
    return lambda: [distribute_tensor(each, mesh, list(placements), **options) for each in values]


def loaded_model(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Distribute a state dict, and load it."""
    model = groups(linears(2), mesh)
    full = {name: torch.rand(value.shape) for name, value in model.state_dict().items()}
    options: Any = {"src_data_rank": None} if is_followed else {}

    def step() -> object:
        model.load_state_dict(
            {name: distribute_tensor(value, mesh, [Shard(0)], **options) for name, value in full.items()}
        )
        return [*model.state_dict().values()]

    return step


def loaded_by_torch(mesh: DeviceMesh) -> Step:
    model = groups(linears(2), mesh)
    full = {name: torch.rand(value.shape) for name, value in model.state_dict().items()}

    def step() -> object:
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(model, dict(full), options=options)
        return [*model.state_dict().values()]

    return step


def broadcast(mesh: DeviceMesh) -> Step:
    """Send the values of rank 0, which no other rank has."""
    values = [torch.rand(WIDTH) + dist.get_rank() for _ in range(3)]

    def step() -> object:
        for each in values:
            dist.broadcast(each, 0)
        return values

    return step


def scattered(mesh: DeviceMesh) -> Step:
    """Scatter batches of rank 0."""
    own = torch.zeros(3, WIDTH)
    batches = [*torch.rand(2, WIDTH)]

    def step() -> object:
        for each in own:
            dist.scatter(each, batches if dist.get_rank() == 0 else None, 0)
        return own

    return step


# Misses and growth


def clamped(
    mesh: DeviceMesh, is_followed: bool, ops: Sequence[Callable[[Any, Any], Any]], first: int = 1
) -> Step:
    """Pass a new number in each step; no program may use numbers of another, which are cached."""
    x, numbers = sharded(mesh), itertools.count(first)

    def step() -> object:
        results = []
        for op in ops:
            number = next(numbers) / 100
            results.append(op(x, torch.tensor(number) if is_followed else number))
        return results

    return step


def of_many_sizes(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Double a batch of a new size in each step."""
    data, sizes = torch.rand(64, 2), itertools.count(8)

    def step() -> object:
        size = next(sizes)
        rows = data[:size]
        if is_followed:
            rows = nn.functional.pad(rows, (0, 0, 0, len(data) - size))
        doubled: Any = DTensor.from_local(rows, mesh, [Shard(0)]) * 2
        return doubled.to_local()[:size]

    return step


def offset(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Add rows at a new offset in each step; follow by a slice of the local table."""
    x, table, starts = replicated(mesh), replicated(mesh, 64, WIDTH), itertools.count()

    def step() -> object:
        start = next(starts)
        rows = slice(start, start + WIDTH)
        if not is_followed:
            return x + table[rows]
        return x + DTensor.from_local(table.to_local()[rows], mesh, [Replicate()], run_check=False)

    return step


def indexed(mesh: DeviceMesh) -> Step:
    """Select a new row in each step."""
    x: Any = distribute_tensor(torch.rand(64, 4), mesh, [Shard(1)])
    numbers = itertools.count()
    return lambda: x.select(0, next(numbers))


def scheduled(mesh: DeviceMesh) -> Step:
    """Let torch pass a new learning rate in each step."""
    weights = [parameter(sharded(mesh)) for _ in range(3)]
    for each in weights:
        each.grad = torch.ones_like(each)
    optimizer = torch.optim.AdamW(weights, foreach=False)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=1_000)

    def step() -> object:
        optimizer.step()
        schedule.step()
        return [each.detach().clone() for each in weights]

    return step


def retained(mesh: DeviceMesh, is_followed: bool, count: int = 1) -> Step:
    """Store the results of each step; follow by storing those of the last."""
    x = sharded(mesh)
    held: list[Any] = []

    def step() -> object:
        results = [x * (number + 2) for number in range(count)]
        if is_followed:
            held.clear()
        held.extend(results)
        return [each + 1 for each in results]

    return step


def losses_stored(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Store each loss for a log; follow by storing its number."""
    x = sharded(mesh)
    losses: list[Any] = []

    def step() -> object:
        loss = x.square().mean().full_tensor() if is_followed else x.square().mean()
        losses.append(loss.item() if is_followed else loss)
        return loss

    return step


def window(mesh: DeviceMesh, is_followed: bool, length: int = 2) -> Step:
    """Store the weights of the last steps, and average them."""
    x = sharded(mesh)
    held: deque[Any] = deque(maxlen=length)

    def step() -> object:
        x.add_(1)
        held.append(x.clone())
        if is_followed:
            while len(held) > 1:
                held.popleft()
        return sum(held) / len(held)

    return step


def previous(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Store the weights for the next step."""
    x = sharded(mesh)
    state: dict[str, Any] = {}

    def step() -> object:
        x.add_(1)
        old = state.get("old", x)
        state["old"] = x.clone()
        if is_followed:
            state.clear()
        return x - old

    return step


def replay(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Store experience up to a size, and sum it."""
    x = sharded(mesh)
    held: list[Any] = []

    def step() -> object:
        x.add_(1)
        held.append(x.clone())
        if len(held) > 3 or is_followed:
            del held[: len(held) - (1 if is_followed else 3)]
        return sum(held)

    return step


# Lists of elementwise ops


def averaged(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Update the mean of each weight."""
    weights, means = ([sharded(mesh) for _ in range(6)] for _ in range(2))

    def step() -> object:
        if is_followed:
            torch._foreach_lerp_(means, weights, 0.1)
        else:
            for mean, weight in zip(means, weights, strict=True):
                mean.lerp_(weight, 0.1)
        return [each.clone() for each in means]

    return step


def decayed(mesh: DeviceMesh, is_followed: bool) -> Step:
    weights = [sharded(mesh) for _ in range(6)]

    def step() -> object:
        if is_followed:
            torch._foreach_mul_(weights, 0.9)
        else:
            for each in weights:
                each.mul_(0.9)
        return [each.to_local().clone() for each in weights]

    return step


def zeroed(mesh: DeviceMesh, is_followed: bool, make: Callable[[DeviceMesh], Any] = sharded) -> Step:
    weights = [make(mesh) for _ in range(6)]

    def step() -> object:
        if is_followed:
            torch._foreach_zero_(weights)
        else:
            for each in weights:
                each.zero_()
        return [each.to_local().clone() for each in weights]

    return step


def copied(mesh: DeviceMesh, is_followed: bool) -> Step:
    weights, others = ([sharded(mesh) for _ in range(6)] for _ in range(2))

    def step() -> object:
        if is_followed:
            torch._foreach_copy_(weights, others)
        else:
            for each, other in zip(weights, others, strict=True):
                each.copy_(other)
        return [each.to_local().clone() for each in weights]

    return step


def added_in_turn(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Add twice the previous tensor to each tensor."""
    weights = [sharded(mesh) for _ in range(6)]

    def step() -> object:
        sums = [each.clone() for each in weights]
        if is_followed:
            torch._foreach_add_(sums[1:], [each * 2 for each in sums[:-1]])
        else:
            for number in range(1, 6):
                sums[number].add_(sums[number - 1] * 2)
        return [each.to_local() for each in sums]

    return step


def scaled_in_turn(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Multiply each tensor by the previous one."""
    weights = [sharded(mesh) for _ in range(6)]

    def step() -> object:
        if is_followed:
            products: Any = torch._foreach_mul(weights[1:], weights[:-1])
            return [each.to_local() for each in products]
        results = [weights[0]]
        for each in weights[1:]:
            results.append(each * results[-1])
        return [each.to_local() for each in results[1:]]

    return step


def of_two_layouts(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Update the means of weights, half of them sharded otherwise."""
    weights, means = ([sharded(mesh, dim=number % 2) for number in range(6)] for _ in range(2))
    means.reverse()

    def step() -> object:
        if is_followed:
            torch._foreach_lerp_(means, weights, 0.1)
        else:
            for mean, weight in zip(means, weights, strict=True):
                mean.lerp_(weight, 0.1)
        return [each.to_local().clone() for each in means]

    return step


def of_two_meshes(mesh: DeviceMesh, is_followed: bool) -> Step:
    experts = DeviceMesh("cpu", mesh.mesh, mesh_dim_names=("ep",))
    weights = [sharded(each) for each in (mesh, experts) for _ in range(3)]
    means = [sharded(each) for each in (mesh, experts) for _ in range(3)]

    def step() -> object:
        if is_followed:
            torch._foreach_lerp_(means, weights, 0.1)
        else:
            for mean, weight in zip(means, weights, strict=True):
                mean.lerp_(weight, 0.1)
        return [each.to_local().clone() for each in means]

    return step


# Replicated weights


class Norm(nn.Module):
    """A norm that gathers its weight."""

    def __init__(self, mesh: DeviceMesh, placement: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(torch.rand(WIDTH), mesh, [placement]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: Any = self.weight
        whole: torch.Tensor = weight.full_tensor() if weight.placements[0].is_shard() else weight.to_local()
        return x * x.square().mean(-1, keepdim=True).rsqrt() * whole


def norm_weights(mesh: DeviceMesh, is_followed: bool, layers: int = 4, is_trained: bool = True) -> Step:
    placement = Replicate() if is_followed else Shard(0)
    model = nn.Sequential(*(Norm(mesh, placement) for _ in range(layers)))
    x = torch.rand(4, WIDTH)

    def step() -> object:
        if not is_trained:
            with torch.no_grad():
                return model(x)
        model(x).sum().backward()
        found = [each.grad for each in model.parameters()]
        model.zero_grad()
        return found

    return step


class Running(nn.Module):
    """Statistics that are updated from shards in each call, and used whole."""

    def __init__(self, mean: torch.Tensor) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.mean.add_(x)
        mean: Any = self.mean
        return mean.full_tensor() * 2


def statistics(mesh: DeviceMesh, is_followed: bool, is_parameter: bool = False) -> Step:
    mean = distribute_tensor(torch.rand(WIDTH), mesh, [Replicate() if is_followed else Shard(0)])
    model = Running(parameter(mean) if is_parameter else mean)
    x = sharded(mesh, WIDTH)
    return lambda: model(x)


class Whole(nn.Module):
    """A module that gathers its input."""

    def forward(self, x: Any) -> Any:
        return gathered(x).softmax(0)


def whole_input(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather a result of each step in a module; follow by gathering it before the module."""
    model, x = Whole(), sharded(mesh)
    return lambda: model(gathered(x * 2) if is_followed else x * 2)


# Unbind


def selected(mesh: DeviceMesh, is_followed: bool, dim: int = 1, count: int = 8, of: int = 0) -> Step:
    """Select slices of a stack one by one."""
    x: Any = distribute_tensor(torch.rand(8, 8), mesh, [Shard(dim)])

    def step() -> object:
        if is_followed:
            return [each * 2 for each in x.unbind(of)[:count]]
        return [x.select(of, number) * 2 for number in range(count)]

    return step


def selected_of_each(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Select the first slice of several tensors."""
    several = [sharded(mesh, 4, WIDTH, dim=1) for _ in range(4)]
    return lambda: [each.unbind(0)[0] if is_followed else each.select(0, 0) for each in several]


# Meshes


def over_dims(
    mesh: DeviceMesh, is_followed: bool, op: Callable[[Any], Any] = torch.sum, rows: int = 8
) -> Step:
    """Reduce over each dimension of a mesh."""
    x: Any = distribute_tensor(torch.rand(rows, 8), mesh, [Shard(0)] * mesh.ndim)
    if is_followed:
        mesh._flatten("all")
    return lambda: op(x).full_tensor()


def with_dimension_of_size_1(
    mesh: DeviceMesh, is_followed: bool, is_new: bool = True, of: str | None = None
) -> Step:
    """Multiply batches, of a new size in each step or of one size.

    Args:
        mesh: mesh with dimensions of size 1.
        is_followed: whether the tensors are on its other dimension, ``a``.
        is_new: whether each step has a new size.
        of: dimension that the tensors are on anyway.
    """
    used = mesh["a"] if is_followed else mesh[of] if of else mesh
    weight, sizes = replicated(used), itertools.count(2)
    placements = [Shard(0) if size > 1 else Replicate() for size in used.shape]

    def step() -> object:
        rows = 2 * next(sizes) if is_new else WIDTH
        x = DTensor.from_local(torch.ones(rows, WIDTH), used, placements)
        return (x @ weight).to_local().sum()

    return step


# Needless pairs


def around(mesh: DeviceMesh, is_followed: bool, op: Callable[[Any], Any], is_trained: bool = False) -> Step:
    """Gather a tensor, run an op, and shard the result again; follow by running the op on shards."""
    x = sharded(mesh).requires_grad_(is_trained)

    def step() -> object:
        result = op(x) if is_followed else op(gathered(x)).redistribute(mesh, [Shard(0)])
        if not is_trained:
            return result
        result.square().sum().backward()
        found, x.grad = x.grad, None
        return found

    return step


def also_whole(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather a tensor, double it for its shards, and sort all of it."""
    x = sharded(mesh)

    def step() -> object:
        whole = gathered(x)
        doubled = x * 2 if is_followed else (whole * 2).redistribute(mesh, [Shard(0)])
        return doubled, whole.sort(0).values

    return step


def transposed(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather a matrix, and shard its transpose."""
    x = sharded(mesh)
    return lambda: ((x if is_followed else gathered(x)) * 2).t().redistribute(mesh, [Shard(0)])


def around_two(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather two operands of one op."""
    x, y = sharded(mesh), sharded(mesh)

    def step() -> object:
        if is_followed:
            return (x * y).relu()
        return (gathered(x) * gathered(y)).relu().redistribute(mesh, [Shard(0)])

    return step


# Optimizers and modules, whose rules need times


def stepped(mesh: DeviceMesh, is_followed: bool, plain: int = 0, meshes: int = 1, **options: Any) -> Step:
    others = [DeviceMesh("cpu", mesh.mesh, mesh_dim_names=(f"m{number}",)) for number in range(meshes)]
    weights = [parameter(sharded(each)) for each in others for _ in range(4)]
    weights += [parameter(torch.rand(WIDTH)) for _ in range(plain)]
    for each in weights:
        each.grad = torch.ones_like(each)
    choice: Any = {"fused": True} if is_followed else options or {"foreach": False}
    own = [weights[-plain:], weights[:-plain]] if plain and is_followed else [weights]
    optimizers = [torch.optim.AdamW(each, lr=0.01, **choice) for each in own]

    def step() -> object:
        for optimizer in optimizers:
            optimizer.step()
        return [each.detach().clone() for each in weights]

    return step


def stepped_without_fused(mesh: DeviceMesh, is_followed: bool, kind: Callable[..., Any]) -> Step:
    """Step an optimizer by lists; follow by ``fused=True``."""
    weights = [parameter(sharded(mesh)) for _ in range(4)]
    for each in weights:
        each.grad = torch.ones_like(each)
    choice = {"fused": True} if is_followed else {"foreach": True}
    optimizer = kind(weights, lr=0.01, **choice)

    def step() -> object:
        optimizer.step()
        return [each.detach().clone() for each in weights]

    return step


def convert_by(name: str) -> Callable[[Any, DeviceMesh], Any]:
    function = DTensor.from_local if name == "from_local" else distribute_tensor
    options: Any = {} if name == "from_local" else {"src_data_rank": None}
    return lambda x, mesh: function(x, mesh, [Shard(0)], **options)


OTHER, RAISES, NOTHING, NOT_RUN = Harm.OTHER_RESULTS, Harm.RAISES, Harm.SAVES_NOTHING, Harm.NOT_RUN
FOUR = [SUM] * 4
AB: Any = {"shape": (2, 1), "names": ("a", "b")}
BA: Any = {"shape": (1, 2), "names": ("b", "a")}
ABC: Any = {"shape": (2, 1, 1), "names": ("a", "b", "c")}
FOUR_RANKS: Any = {"shape": (2, 2), "names": ("a", "b")}
MISSES = "misses", 0  # as many misses, which take less time

TABLE: list[Entry] = [
    Twin("norms", "norms", *pair(scalars, ops=[torch.norm]), "collectives", 3, is_quick=True),
    Twin("norms", "sums", *pair(scalars, ops=[torch.sum]), "collectives", 3),
    Twin("norms", "sums and maxima", *pair(scalars, ops=[torch.sum, torch.amax]), "collectives", 6),
    Lookalike("norms", "each needs the previous", *pair(norms_in_turn), OTHER, "norms are not scaled"),
    Lookalike(
        "norms",
        "sum, maximum and minimum",
        *pair(sum_and_maximum),
        RAISES,
        "partial sums and partial maxima cannot be stacked",
        error="from one partial type",
    ),
    Twin("numbers", "four sums", *pair(reduced, ops=FOUR), "collectives", 3, is_quick=True),
    Twin("numbers", "three sums and a maximum", *pair(reduced, ops=[SUM, SUM, SUM, MAX]), "collectives", 2),
    Twin(
        "numbers",
        "three f32 and three i64",
        *pair(reduced, ops=[SUM] * 6, values=[0.5, 0.25, 0.125, 1, 2, 3]),
        "collectives",
        4,
    ),
    Lookalike(
        "numbers",
        "sum, maximum and minimum",
        *pair(reduced, ops=[SUM, MAX, MIN], by_kind=False),
        OTHER,
        "the maximum and the minimum become sums",
        is_quick=True,
    ),
    Lookalike(
        "numbers",
        "loss and number of tokens",
        *pair(reduced, ops=[SUM] * 3, values=[0.5, 2**24, 2**24 + 1], by_kind=False),
        OTHER,
        "f32 has no integers above 2**24",
    ),
    Lookalike("numbers", "each needs the previous", *pair(reduced_in_turn), OTHER, "the mean is wrong"),
    Lookalike(
        "numbers",
        "two groups",
        *pair(reduced_over_two_groups),
        OTHER,
        "numbers of one group are summed over the other",
        **AB,
    ),
    Twin("reads", "four losses", *pair(losses_read), "reads", 3, is_quick=True),
    Twin("reads", "sum of losses", *pair(summed_on_the_host), "reads", 3),
    Twin("reads", "metrics of DTensors", *pair(metrics_read), "reads", 2),
    Lookalike("reads", "sizes of experts", *pair(routed), OTHER, "each layer has sizes of its own"),
    Lookalike("reads", "search", *pair(searched), OTHER, "the loop does not end in time", is_quick=True),
    Lookalike("reads", "rate by norm", *pair(rate_by_norm), OTHER, "the rate is constant", is_quick=True),
    Lookalike("reads", "compared list", *pair(listed_and_compared), OTHER, "the second pass always runs"),
    Lookalike("reads", "skipped updates", *pair(nan_skipped), OTHER, "a weight becomes NaN"),
    Lookalike(
        "reads", "counters of Adagrad", counters_of_torch, None, NOT_RUN, "torch reads them in its own code"
    ),
    Lookalike("reads", "gathered objects", objects, None, NOT_RUN, "torch reads them in its own code"),
    Twin(
        "partial reads",
        "item",
        *pair(partial_read, read=lambda x: x.item()),
        "partial reads",
        1,
        is_repair=True,
        is_quick=True,
    ),
    Twin("partial reads", "float", *pair(partial_read, read=float), "partial reads", 1, is_repair=True),
    Twin(
        "partial reads",
        "three numbers",
        *pair(partial_read, read=float, count=3),
        "partial reads",
        3,
        is_repair=True,
    ),
    Lookalike("partial reads", "own share", *pair(own_share), OTHER, "the share is reduced"),
    Lookalike("partial reads", "tokens of a rank", *pair(rank_metric), OTHER, "the number is reduced"),
    Lookalike(
        "partial reads", "reduced before", *pair(reduced_before), NOTHING, "it is reduced", counted="reads"
    ),
    Twin("wraps", "from_local", *pair(wrapped, convert=convert_by("from_local")), "wraps", 2, is_quick=True),
    Twin("wraps", "distribute_tensor", *pair(wrapped, convert=convert_by("distribute")), "wraps", 2),
    Twin("wraps", "micro-batches", *pair(wrapped_in_batches), "wraps", 2),
    Twin("wraps", "to_local", *pair(unwrapped), "unwraps", 2),
    Lookalike(
        "wraps",
        "data written between",
        *pair(distributed_after_a_write, write=lambda x: x.data.mul_(2)),
        OTHER,
        "the second DTensor has the old values",
    ),
    Lookalike(
        "wraps",
        "numpy written between",
        *pair(distributed_after_a_write, write=lambda x: x.numpy().__imul__(2)),
        OTHER,
        "the second DTensor has the old values",
    ),
    Lookalike(
        "wraps",
        "list written between",
        *pair(distributed_after_a_write, write=lambda x: torch._foreach_mul_([x], 2)),
        OTHER,
        "the second DTensor has the old values",
        is_quick=True,
    ),
    Lookalike(
        "wraps",
        "without a graph",
        *pair(wrapped_without_graph),
        RAISES,
        "the first result has no graph",
        error="does not require grad",
    ),
    Lookalike(
        "wraps",
        "another graph",
        *pair(wrapped_with_another_graph),
        RAISES,
        "the first graph is gone",
        error="backward through the graph a second time",
    ),
    Twin("parameters", "four weights", *pair(wrapped_parameters), "wraps", 4, is_quick=True),
    Twin("parameters", "one weight", *pair(wrapped_parameters, count=1), "wraps", 1),
    Twin("parameters", "replicated", *pair(wrapped_parameters, placement=Replicate()), "wraps", 4),
    Lookalike("parameters", "batches", *pair(batches_wrapped), OTHER, "each step has the first batch"),
    Lookalike(
        "parameters",
        "tied weight",
        *pair(tied),
        RAISES,
        "plain ops use the weight",
        error="mixed torch.Tensor",
    ),
    Lookalike("parameters", "weight normalization", *pair(normalized), OTHER, "nothing is trained"),
    Twin("loading", "shards", *pair(loaded), "collectives", 4, is_quick=True),
    Twin("loading", "replicated", *pair(loaded, placements=(Replicate(),)), "collectives", 4),
    Twin("loading", "state dict", *pair(loaded_model), "collectives", 4),
    Lookalike("loading", "set_model_state_dict", loaded_by_torch, None, NOT_RUN, "it has no such argument"),
    Lookalike("loading", "broadcast", broadcast, None, NOT_RUN, "it has no such argument"),
    Lookalike("loading", "scatter", scattered, None, NOT_RUN, "it has no such argument"),
    Twin("misses", "number", *pair(clamped, ops=[lambda x, n: x.clamp(max=n)]), "misses", 1, is_quick=True),
    Twin(
        "misses",
        "two numbers",
        *pair(clamped, ops=[lambda x, n: x.clamp(max=n), lambda x, n: x**n], first=101),
        "misses",
        2,
    ),
    Twin("misses", "sizes", *pair(of_many_sizes), "misses", 1),
    Lookalike(
        "misses",
        "no overload",
        *pair(clamped, ops=[torch.ops.aten.leaky_relu]),
        RAISES,
        "the op takes no tensor",
        error="failed to match any schema",
    ),
    Lookalike(
        "misses",
        "rows",
        indexed,
        None,
        NOT_RUN,
        "select takes no tensor; index takes one, and copies the row",
    ),
    Lookalike("misses", "schedule", scheduled, None, NOT_RUN, "torch passes the number in its own code"),
    Twin("new plans", "offsets", *pair(offset), "misses", 1, is_quick=True),
    Twin("growth", "results", *pair(retained), "DTensors", 1, is_quick=True),
    Twin("growth", "three results", *pair(retained, count=3), "DTensors", 3),
    Twin("growth", "losses", *pair(losses_stored), "DTensors", 1),
    Lookalike("growth", "window", *pair(window), OTHER, "the mean is that of one step", is_quick=True),
    Lookalike("growth", "previous weights", *pair(previous), OTHER, "the difference is 0"),
    Lookalike("growth", "replay buffer", *pair(replay), OTHER, "the sum is that of one step"),
    Twin("lists", "means", *pair(averaged), "calls", 5, is_quick=True),
    Twin("lists", "decay", *pair(decayed), "calls", 5),
    Twin("lists", "zeros", *pair(zeroed), "calls", 5),
    Lookalike(
        "lists",
        "zeros of partial sums",
        *pair(zeroed, make=partial_sum),
        RAISES,
        "it becomes an op that rejects partial sums",
        error="in-place operations that require placement changes",
    ),
    Lookalike("lists", "copies", *pair(copied), RAISES, "DTensor has no rule for it", error="_foreach_copy_"),
    Lookalike("lists", "each needs the previous", *pair(scaled_in_turn), OTHER, "products of two tensors"),
    Lookalike("lists", "each needs a written one", *pair(added_in_turn), OTHER, "sums of two tensors"),
    Lookalike(
        "lists",
        "two layouts",
        *pair(of_two_layouts),
        NOTHING,
        "each mean is redistributed as before",
        counted="redistributions",
    ),
    Twin("replicated weights", "norms", *pair(norm_weights), "redistributions", 8, is_quick=True),
    Twin("replicated weights", "one norm", *pair(norm_weights, layers=1), "redistributions", 2),
    Twin("replicated weights", "inference", *pair(norm_weights, is_trained=False), "redistributions", 4),
    Lookalike(
        "replicated weights",
        "statistics",
        *pair(statistics),
        NOTHING,
        "each update gathers its operand",
        counted="collectives",
    ),
    Lookalike(
        "replicated weights",
        "parameter that the module updates",
        *pair(statistics, is_parameter=True),
        NOTHING,
        "each update gathers its operand",
        counted="collectives",
    ),
    Lookalike(
        "replicated weights",
        "input",
        *pair(whole_input),
        NOTHING,
        "the input is gathered as well",
        counted="collectives",
    ),
    Twin("unbind", "eight slices", *pair(selected), "calls", 7, is_quick=True),
    Twin("unbind", "four slices", *pair(selected, count=4), "calls", 3),
    Lookalike("unbind", "one slice", *pair(selected, count=1), NOTHING, "one call is one", counted="calls"),
    Lookalike(
        "unbind",
        "sharded dimension",
        *pair(selected, dim=0),
        RAISES,
        "torch does not unbind it",
        error="unbind along the sharded dimension",
    ),
    Lookalike(
        "unbind", "several tensors", *pair(selected_of_each), NOTHING, "one call is one", counted="calls"
    ),
    Twin("unbind", "last dimension", *pair(selected, dim=0, of=-1), "calls", 7),
    Lookalike(
        "flattened mesh",
        "dimension of size 1",
        *pair(over_dims),
        NOTHING,
        "it is not reduced over",
        counted="collectives",
        is_quick=True,
        **AB,
    ),
    Lookalike(
        "flattened mesh",
        "maximum",
        *pair(over_dims, op=torch.amax),
        NOTHING,
        "it is not reduced over",
        counted="collectives",
        **AB,
    ),
    Lookalike(
        "flattened mesh",
        "uneven rows",
        *pair(over_dims, rows=5),
        NOTHING,
        "it is not reduced over",
        counted="collectives",
        **AB,
    ),
    Twin("flattened mesh", "sum", *pair(over_dims), "collectives", 1, **FOUR_RANKS),
    Twin("flattened mesh", "norm", *pair(over_dims, op=torch.norm), "collectives", 1, **FOUR_RANKS),
    Twin("flattened mesh", "rows", *pair(over_dims, op=lambda x: x.sum(0)), "collectives", 1, **FOUR_RANKS),
    Twin("dimensions of size 1", "last", *pair(with_dimension_of_size_1), *MISSES, promises=1, **AB),
    Twin("dimensions of size 1", "first", *pair(with_dimension_of_size_1), *MISSES, promises=1, **BA),
    Twin("dimensions of size 1", "two", *pair(with_dimension_of_size_1), *MISSES, promises=1, **ABC),
    Lookalike(
        "dimensions of size 1",
        "one size of batches",
        *pair(with_dimension_of_size_1, is_new=False),
        NOTHING,
        "nothing misses",
        counted="calls",
        **AB,
    ),
    Lookalike(
        "dimensions of size 1",
        "part of the mesh",
        *pair(with_dimension_of_size_1, of="a"),
        NOTHING,
        "the tensors are not on this dimension",
        counted="misses",
        **AB,
    ),
    Lookalike(
        "dimensions of size 1",
        "one dimension",
        *pair(with_dimension_of_size_1),
        NOTHING,
        "it has no other dimension",
        counted="misses",
        names=("a",),
    ),
    Twin(
        "needless pair",
        "relu",
        *pair(around, op=lambda x: (x * 2).relu()),
        "redistributions",
        2,
        is_quick=True,
    ),
    Twin(
        "needless pair",
        "with a gradient",
        *pair(around, op=lambda x: (x * 2).sigmoid(), is_trained=True),
        "redistributions",
        4,
    ),
    Twin("needless pair", "two operands", *pair(around_two), "redistributions", 3),
    Lookalike(
        "needless pair",
        "softmax",
        *pair(around, op=lambda x: x.softmax(0)),
        NOTHING,
        "the op redistributes shards",
        counted="moves",
    ),
    Lookalike(
        "needless pair",
        "cumsum",
        *pair(around, op=lambda x: x.cumsum(0)),
        NOTHING,
        "the op redistributes shards",
        counted="moves",
    ),
    Lookalike(
        "needless pair",
        "whole result",
        *pair(also_whole),
        NOTHING,
        "the whole result is used as well",
        counted="moves",
    ),
    Lookalike(
        "needless pair",
        "transpose",
        *pair(transposed),
        NOTHING,
        "columns are redistributed",
        counted="moves",
        is_quick=True,
    ),
    Lookalike(
        "needless pair",
        "random",
        *pair(around, op=lambda x: nn.functional.dropout(x, 0.5)),
        OTHER,
        "other random numbers",
    ),
    Twin("optimizer", "AdamW", *pair(stepped), "calls", 31),
    Twin("optimizer", "foreach", *pair(stepped, foreach=True), "calls", 7),
    Twin("optimizer", "two meshes", *pair(stepped, meshes=2), "calls", 63),
    Twin("optimizer", "plain tensors", *pair(stepped, plain=1), "calls", 31),
    Lookalike(
        "optimizer",
        "SGD by lists",
        *pair(stepped_without_fused, kind=torch.optim.SGD),
        RAISES,
        "DTensor has no rule for the fused op",
        error="_fused_sgd_",
    ),
    Lookalike(
        "optimizer",
        "NAdam by lists",
        *pair(stepped_without_fused, kind=torch.optim.NAdam),
        RAISES,
        "it has no fused form",
        error="unexpected keyword argument 'fused'",
    ),
    Lookalike(
        "optimizer",
        "fused",
        *pair(stepped, fused=True),
        NOTHING,
        "it is fused already",
        counted="calls",
        is_quick=True,
    ),
]
