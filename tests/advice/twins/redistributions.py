"""Redistributions: repeated, there and back, implied, and those of loops, logits and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from tests.advice.twins.model import (
    WIDTH,
    Entry,
    Harm,
    Lookalike,
    Program,
    Step,
    Twin,
    gathered,
    parameter,
    reduced_stack,
    replicated,
    sharded,
)


def pair(program: Callable[..., Step], **options: Any) -> tuple[Program, Program]:
    """Return a program, and the program with the advice followed."""
    return partial(program, is_followed=False, **options), partial(program, is_followed=True, **options)


# Writes between two uses. Each multiplies all elements by 2, or changes them otherwise.


def by_numpy(x: Any) -> None:
    x.detach().to_local().numpy()[:] *= 2


def by_dlpack(x: Any) -> None:
    torch.utils.dlpack.from_dlpack(x.detach().to_local()).mul_(2)


def by_address(x: Any) -> None:
    """Write through a second tensor over the same storage."""
    local = x.detach().to_local()
    torch.empty(0, dtype=local.dtype).set_(local.untyped_storage()).mul_(2)


def by_list(x: Any) -> None:
    torch._foreach_mul_([x.detach()], 2)


def by_alias(x: Any) -> None:
    DTensor.from_local(x.detach().to_local(), x.device_mesh, x.placements).mul_(2)


def by_view(x: Any) -> None:
    x.detach().view(-1, 2).mul_(2)


def by_random(x: Any) -> None:
    x.data.fill_(x.detach().to_local().sum().item() / 100)


def by_other_rank(x: Any) -> None:
    if dist.get_rank() == 1:  # rank 0 prints the advice
        x.detach().to_local().mul_(2)


WRITES: dict[str, Callable[[Any], object]] = {
    "in place": lambda x: x.detach().mul_(2),
    "data": lambda x: x.data.mul_(2),
    "copy to data": lambda x: x.data.copy_(x.data * 2),
    "all_reduce of the local tensor": lambda x: dist.all_reduce(x.detach().to_local()),
    "broadcast of the local tensor": lambda x: dist.broadcast(x.detach().to_local().add_(1), 0),
    "numpy": by_numpy,
    "DLPack": by_dlpack,
    "storage": by_address,
    "list": by_list,
    "alias": by_alias,
    "view": by_view,
    "fill": by_random,
    "other rank": by_other_rank,
    "number": lambda x: x.detach().to_local().view(-1)[0].add_(1),
}


def written(mesh: DeviceMesh, write: Callable[[Any], object], is_followed: bool) -> Step:
    """Gather a weight, write to it, and gather it again."""
    weight = sharded(mesh)

    def step() -> object:
        first = gathered(weight)
        write(weight)
        second = first if is_followed else gathered(weight)
        return first, second

    return step


def optimized(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather a weight before and after the step of a fused optimizer."""
    weight = parameter(sharded(mesh))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)

    def step() -> object:
        with torch.no_grad():
            first = gathered(weight)
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            second = first if is_followed else gathered(weight)
        return first, second

    return step


def written_result(mesh: DeviceMesh, write: Callable[[Any], object], is_followed: bool) -> Step:
    """Gather a weight, write to the result, and shard it again."""
    weight = sharded(mesh)

    def step() -> object:
        whole = gathered(weight)
        write(whole)
        return weight if is_followed else whole.redistribute(placements=weight.placements)

    return step


# Repeated


class Attention(nn.Module):
    """Three projections of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        product: torch.Tensor = q * k * v
        return product


def attention(mesh: DeviceMesh, is_followed: bool, layers: int = 2, is_checkpointed: bool = False) -> Step:
    """Gather the input of attention for each projection, or once before."""
    model: Any = nn.ModuleList(Attention() for _ in range(layers))
    layout = Replicate() if is_followed else Shard(0)
    for layer in model:
        if is_followed:
            gather = PrepareModuleInput(
                input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_output=False
            )
            parallelize_module(layer, mesh, gather)
        for name in ("wq", "wk", "wv"):
            parallelize_module(layer.get_submodule(name), mesh, ColwiseParallel(input_layouts=layout))
    inputs = [torch.rand(4, WIDTH, requires_grad=True) for _ in range(layers)]

    def step() -> object:
        for layer, x in zip(model, inputs, strict=True):
            result = checkpoint(layer, x, use_reentrant=True) if is_checkpointed else layer(x)
            result.sum().backward()
        found = [each.grad for each in (*inputs, *model.parameters())]
        for each in (*inputs, *model.parameters()):
            each.grad = None
        return found

    return step


def accumulated(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather one weight for each micro-batch."""
    weight = parameter(sharded(mesh))
    inputs = [replicated(mesh, 4, WIDTH) for _ in range(3)]

    def step() -> object:
        whole = None
        for x in inputs:
            if whole is None or not is_followed:
                whole = gathered(weight)
            (x @ whole).sum().backward()
        found, weight.grad = weight.grad, None
        return found

    return step


def used_three_times(mesh: DeviceMesh, is_followed: bool) -> Step:
    x = sharded(mesh)

    def step() -> object:
        if is_followed:
            whole = gathered(x)
            return whole + 1, whole * 2, whole - 3
        return gathered(x) + 1, gathered(x) * 2, gathered(x) - 3

    return step


def used_twice(mesh: DeviceMesh, is_followed: bool) -> Step:
    x = sharded(mesh).requires_grad_()

    def step() -> object:
        first = gathered(x)
        second = first if is_followed else gathered(x)
        ((first * 2).sum() + (second * second).sum()).backward()
        found, x.grad = x.grad, None
        return found

    return step


def with_and_without_graph(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather a weight for a metric without a graph, and again for the loss."""
    weight = parameter(sharded(mesh))

    def step() -> object:
        with torch.no_grad():
            metric = gathered(weight)
        whole = metric if is_followed else gathered(weight)
        (whole * whole).sum().backward()
        found, weight.grad = weight.grad, None
        return metric.sum(), found

    return step


# There and back


def omitted(program: Callable[..., Step], **options: Any) -> tuple[Program, Program]:
    """Return a program with both redistributions, and one without them."""
    return partial(program, is_followed=False, **options), partial(program, is_followed=True, **options)


def there_and_back(mesh: DeviceMesh, is_followed: bool, is_trained: bool = False, target: Any = None) -> Step:
    x = sharded(mesh).requires_grad_(is_trained)
    over = [target or Replicate()]

    def step() -> object:
        back = x if is_followed else x.redistribute(mesh, over).redistribute(mesh, [Shard(0)])
        result = back * 2
        if not is_trained:
            return result
        result.square().sum().backward()
        found, x.grad = x.grad, None
        return found

    return step


def used_between(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Zero half of the gathered rows in place."""
    x = sharded(mesh)

    def step() -> object:
        whole = gathered(x)
        whole[: WIDTH // 2].zero_()
        return x if is_followed else whole.redistribute(mesh, [Shard(0)])

    return step


def used_afterwards(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Sort the gathered rows after they were redistributed back."""
    x = sharded(mesh)

    def step() -> object:
        whole = gathered(x)
        back = x if is_followed else whole.redistribute(mesh, [Shard(0)])
        return back * 2, whole.sort(0).values

    return step


# Implied


def added(mesh: DeviceMesh, is_followed: bool, others: int = 1) -> Step:
    """Add rows and columns."""
    rows = sharded(mesh)
    columns = [sharded(mesh, dim=0 if is_followed else 1) for _ in range(others)]
    return lambda: [result for each in columns for result in [rows + each]]


def added_to_each(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Use columns in five ops on rows."""
    rows, columns = sharded(mesh), sharded(mesh, dim=1)

    def step() -> object:
        other = columns.redistribute(mesh, [Shard(0)]) if is_followed else columns
        return [
            rows + other,
            rows - other,
            rows * other,
            torch.minimum(rows, other),
            torch.maximum(rows, other),
        ]

    return step


def of_rows(
    mesh: DeviceMesh,
    is_followed: bool,
    op: Callable[[Any], Any],
    rows: int = WIDTH,
    columns: int = 0,
    is_local: bool = False,
) -> Step:
    """Run an op on rows; follow by sharding columns, or by running it on the local tensor."""
    whole = torch.rand(rows, columns or rows)
    x: Any = distribute_tensor(whole, mesh, [Shard(1 if is_followed and not is_local else 0)])
    return lambda: op(x.to_local()) if is_followed and is_local else op(x)


def projected(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Multiply sharded rows by three weights."""
    x, weights = sharded(mesh, 8, WIDTH), [sharded(mesh, dim=1) for _ in range(3)]

    def step() -> object:
        rows = gathered(x) if is_followed else x
        return [rows @ weight for weight in weights]

    return step


def projected_after(mesh: DeviceMesh, write: Callable[[Any], object], is_followed: bool) -> Step:
    """Multiply rows by two weights, and write to the rows in between."""
    x, weights = sharded(mesh, 8, WIDTH), [sharded(mesh, dim=1) for _ in range(2)]

    def step() -> object:
        whole = gathered(x) if is_followed else x
        first = whole @ weights[0]
        write(x)
        return first, whole @ weights[1], x.detach().mul_(0.1)

    return step


def normalized(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Run three ops that need whole columns of sharded rows."""
    x = sharded(mesh)

    def step() -> object:
        columns = x.redistribute(mesh, [Shard(1)]) if is_followed else x
        return columns.softmax(0), columns.log_softmax(0), columns.cumsum(0)

    return step


def split_projection(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Split the columns of a projection into q, k and v."""
    x = replicated(mesh, 8, WIDTH)
    weights = [parameter(sharded(mesh, WIDTH, 3 * 6, dim=0 if is_followed else 1)) for _ in range(2)]

    def step() -> object:
        for weight in weights:
            q, k, v = (x @ weight).split(6, dim=-1)
            (q * k * v).sum().backward()
        found = [each.grad for each in weights]
        for each in weights:
            each.grad = None
        return found

    return step


# Loops


def parameters_of(mesh: DeviceMesh, count: int = 6, rows: int = WIDTH) -> list[Any]:
    return [sharded(mesh, rows, WIDTH) for _ in range(count)]


def in_bucket(weights: Iterable[Any]) -> list[torch.Tensor]:
    """Gather weights, which are sharded evenly by row, with one collective."""
    listed = list(weights)
    flat = torch.cat([each.to_local().flatten() for each in listed])
    mesh = listed[0].device_mesh
    whole = DTensor.from_local(flat, mesh, [Shard(0)], run_check=False).full_tensor().view(mesh.size(), -1)
    parts = whole.split([each.to_local().numel() for each in listed], dim=1)
    return [part.reshape(each.shape) for part, each in zip(parts, listed, strict=True)]


def exported(mesh: DeviceMesh, is_followed: bool, is_of_module: bool = False) -> Step:
    """Gather each weight."""
    weights: Any = parameters_of(mesh)
    if is_of_module:
        module = nn.Module()
        for number, each in enumerate(weights):
            module.register_parameter(f"weight{number}", parameter(each))

    def step() -> object:
        listed = [*module.state_dict().values()] if is_of_module else weights
        return in_bucket(listed) if is_followed else [each.full_tensor() for each in listed]

    return step


def first_with_nan(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather weights until one has an element that is not a number, as the first one has."""
    weights: Any = parameters_of(mesh)
    with torch.no_grad():
        weights[0].fill_(torch.nan)

    def step() -> object:
        whole = in_bucket(weights) if is_followed else (each.full_tensor() for each in weights)
        return next(number for number, each in enumerate(whole) if each.isnan().any())

    return step


def exported_of_two_meshes(mesh: DeviceMesh, buckets: int) -> Step:
    """Gather dense weights and those of experts, which are on another mesh."""
    experts = DeviceMesh("cpu", mesh.mesh, mesh_dim_names=("ep",))
    dense, routed = parameters_of(mesh, 3), parameters_of(experts, 3)

    def step() -> object:
        if buckets:
            parts = [dense, routed] if buckets > 1 else [[*dense, *routed]]
            return [in_bucket(each) for each in parts]
        return [each.full_tensor() for each in (*dense, *routed)]

    return step


def stacked_of_two_meshes(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather the norms of weights of two meshes; follow by one stack."""
    experts = DeviceMesh("cpu", mesh.mesh, mesh_dim_names=("ep",))
    weights = [*parameters_of(mesh, 2), *parameters_of(experts, 2)]

    def step() -> object:
        norms = [each.norm() for each in weights]
        if is_followed:
            return reduced_stack(norms)
        return [each.full_tensor() for each in norms]

    return step


def each_needs_the_previous(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather each weight after an update that depends on the previous one."""
    weights = parameters_of(mesh, 4)

    def step() -> object:
        if is_followed:
            found = in_bucket(weights)
            for each, other in zip(weights[1:], found, strict=False):
                each.mul_(other.mean() + 0.5)
            return found
        results = [weights[0].full_tensor()]
        for each in weights[1:]:
            each.mul_(results[-1].mean() + 0.5)
            results.append(each.full_tensor())
        return results

    return step


def reduced_in_turn(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Sum the shards of each weight over the ranks, and gather the weight."""
    weights = parameters_of(mesh, 4)

    def step() -> object:
        found = in_bucket(weights) if is_followed else []
        for each in weights:
            dist.all_reduce(each.to_local())
            if not is_followed:
                found.append(each.full_tensor())
        return found

    return step


def of_two_dtypes(mesh: DeviceMesh, buckets: int) -> Step:
    """Gather f32 weights and f64 weights."""
    weights = parameters_of(mesh, 3)
    others = [(each.double() / 3) for each in parameters_of(mesh, 3)]

    def step() -> object:
        if buckets == 2:
            return in_bucket(weights), in_bucket(others)
        return [each.full_tensor() for each in (*weights, *others)]

    return step


def uneven_rows(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather weights of 7 rows; follow by one gather of shards that are padded to 4 rows."""
    weights = parameters_of(mesh, 4, rows=7)

    def step() -> object:
        if not is_followed:
            return [each.full_tensor() for each in weights]
        shards = [each.to_local().detach() for each in weights]
        padded = torch.cat([torch.nn.functional.pad(shard, (0, 0, 0, 4 - len(shard))) for shard in shards])
        whole = DTensor.from_local(padded, mesh, [Shard(0)]).full_tensor()
        return [
            torch.cat([rank[4 * number :][:4] for rank in whole.chunk(2)])[:7]
            for number in range(len(weights))
        ]

    return step


# Logits


def cross_entropy(
    mesh: DeviceMesh,
    is_followed: bool,
    classes: int = 8_192,
    is_of_probabilities: bool = False,
    has_sharded_labels: bool = False,
    **options: Any,
) -> Step:
    rows = 256
    logits = sharded(mesh, rows, classes, dim=1).requires_grad_()
    labels: torch.Tensor = torch.randint(classes, (rows,))
    if is_of_probabilities:
        labels = torch.rand(rows, classes).softmax(1)
    target = distribute_tensor(labels, mesh, [Shard(0) if has_sharded_labels else Replicate()])

    def step() -> object:
        try:
            with loss_parallel() if is_followed else nullcontext():
                loss: Any = nn.functional.cross_entropy(logits, target, **options)
                loss.sum().backward()
        except RuntimeError:
            with loss_parallel():  # leaves it, which the error did not
                pass
            raise
        found, logits.grad = logits.grad, None
        return loss.detach(), found

    return step


def loss_and_accuracy(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather logits for a loss, and for another metric of all classes."""
    logits = sharded(mesh, 256, 8_192, dim=1).requires_grad_()
    target = distribute_tensor(torch.randint(8_192, (256,)), mesh, [Replicate()])

    def step() -> object:
        whole = gathered(logits)
        with loss_parallel() if is_followed else nullcontext():
            loss: Any = nn.functional.cross_entropy(logits if is_followed else whole, target)
            loss.backward()
        found, logits.grad = logits.grad, None
        return loss.detach(), found, whole.detach().to_local().sort(1).values[:, -2:]

    return step


def head_of_classes(mesh: DeviceMesh, is_followed: bool) -> Step:
    """Gather the result of a head for its loss."""
    head, x = nn.Linear(16, 8_192), torch.rand(4, 64, 16)
    layout = Shard(-1) if is_followed else Replicate()
    parallelize_module(head, mesh, ColwiseParallel(output_layouts=layout, use_local_output=not is_followed))
    labels: Any = torch.randint(8_192, (256,))
    if is_followed:
        labels = distribute_tensor(labels, mesh, [Replicate()])

    def step() -> object:
        with loss_parallel() if is_followed else nullcontext():
            loss = nn.functional.cross_entropy(head(x).flatten(0, 1), labels)
            loss.backward()
        found = [each.grad for each in head.parameters()]
        head.zero_grad()
        return loss.detach(), found

    return step


# Optimizers


def partial_gradients(
    mesh: DeviceMesh, is_followed: bool, make: Callable[[Any], torch.optim.Optimizer], count: int = 2
) -> Step:
    """Step an optimizer with partial gradients."""
    weights = [parameter(replicated(mesh, WIDTH)) for _ in range(count)]
    optimizer = make(weights)

    def step() -> object:
        for each in weights:
            gradient = DTensor.from_local(torch.ones(WIDTH) + dist.get_rank(), mesh, [Partial()])
            each.grad = gathered(gradient) if is_followed else gradient
        optimizer.step()
        return [each.detach().clone() for each in weights]

    return step


class Trust(torch.optim.Optimizer):
    """An optimizer with a trust ratio, as LARS and LAMB."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, {"lr": 0.01})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for each in self.param_groups[0]["params"]:
            weight_norm, gradient_norm = each.norm(), each.grad.norm()
            ratio = torch.where(weight_norm > 0, weight_norm / (gradient_norm + 1e-8), 1.0)
            each.add_(each.grad * ratio, alpha=-0.01)


class Projected(torch.optim.Optimizer):
    """An optimizer with one matrix product per parameter."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for each in self.param_groups[0]["params"]:
            each.sub_(each.grad @ each.grad.t(), alpha=1e-3)


def sharded_gradients(
    mesh: DeviceMesh, is_followed: bool, make: Callable[[Any], torch.optim.Optimizer], count: int = 3
) -> Step:
    """Step an optimizer with gradients that are sharded, or gathered before."""
    weights = [parameter(sharded(mesh)) for _ in range(count)]
    gradients = [sharded(mesh) for _ in weights]
    optimizer = make(weights)

    def step() -> object:
        for each, gradient in zip(weights, gradients, strict=True):
            each.grad = gathered(gradient) if is_followed else gradient
        optimizer.step()
        return [each.detach().clone() for each in weights]

    return step


class Orthogonal(torch.optim.Optimizer):
    """Two iterations of Newton and Schulz in f32 for each gradient."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for each in self.param_groups[0]["params"]:
            x = each.grad / (each.grad.norm() + 1e-7)
            for _ in range(2):
                x = 1.5 * x - 0.5 * (x @ x.t()) @ x
            each.sub_(x, alpha=0.01)


def adamw(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=0.01, foreach=False)


def muon(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon(weights)


def write_lookalikes() -> list[Entry]:
    """Return an entry for each write between two uses."""
    harm, effect = Harm.OTHER_RESULTS, "the second value is that before the write"
    entries: list[Entry] = [
        Lookalike(
            "repeated",
            name,
            *pair(written, write=write),
            harm,
            effect,
            is_quick=name in ("data", "numpy", "other rank"),
        )
        for name, write in WRITES.items()
    ]
    entries.append(Lookalike("repeated", "fused optimizer", *pair(optimized), harm, effect))
    lost = "the write to the result is lost"
    for name in ("data", "numpy", "all_reduce of the local tensor", "list", "DLPack", "alias"):
        programs = pair(written_result, write=WRITES[name])
        entries.append(Lookalike("there and back", name, *programs, harm, lost, is_quick=name == "list"))
    for name in ("data", "list", "numpy", "alias"):
        programs = pair(projected_after, write=WRITES[name])
        entries.append(Lookalike("implied again", name, *programs, harm, effect, is_quick=name == "alias"))
    return entries


def no_dimension(name: str, op: Callable[[Any], Any], is_quick: bool = False, **options: Any) -> Entry:
    return Lookalike(
        "implied",
        name,
        *pair(of_rows, op=op, **options),
        Harm.SAVES_NOTHING,
        "each sharded dimension is redistributed",
        counted="moves",
        is_quick=is_quick,
    )


TABLE: list[Entry] = [
    Twin("repeated", "three uses", *pair(used_three_times), "redistributions", 2, is_quick=True),
    Twin("repeated", "with a gradient", *pair(used_twice), "redistributions", 2),
    Twin("inputs", "attention", *pair(attention), "redistributions", 8),
    Twin("inputs", "recomputed attention", *pair(attention, is_checkpointed=True), "redistributions", 12),
    Twin("repeated", "micro-batches", *pair(accumulated), "redistributions", 2),
    Lookalike(
        "repeated",
        "without a graph",
        *pair(with_and_without_graph),
        Harm.RAISES,
        "the first result has no graph",
        error="does not require grad",
    ),
    Twin("there and back", "gathered", *omitted(there_and_back), "redistributions", 2, is_quick=True),
    Twin(
        "there and back", "with a gradient", *omitted(there_and_back, is_trained=True), "redistributions", 4
    ),
    Twin("there and back", "columns", *omitted(there_and_back, target=Shard(1)), "redistributions", 2),
    Lookalike(
        "there and back", "rows set to zero", *pair(used_between), Harm.OTHER_RESULTS, "no row is zero"
    ),
    Lookalike(
        "there and back",
        "used afterwards",
        *pair(used_afterwards),
        Harm.SAVES_NOTHING,
        "another op needs the gathered rows",
        counted="moves",
        is_quick=True,
    ),
    *write_lookalikes(),
    Twin("implied", "sum of rows and columns", *pair(added), "redistributions", 1, is_quick=True),
    Twin("implied", "five sums", *pair(added, others=5), "redistributions", 5),
    Twin("implied", "softmax", *pair(of_rows, op=lambda x: x.softmax(0)), "implicit", 1),
    no_dimension("qr", lambda x: torch.linalg.qr(x)[0].abs()),
    no_dimension("var", torch.var),
    no_dimension("median", torch.median),
    no_dimension("trace", torch.trace),
    no_dimension("tril", torch.tril),
    no_dimension("svdvals", torch.linalg.svdvals),
    no_dimension("mean of uneven rows", torch.mean, rows=5),
    no_dimension("mean of even columns", lambda x: x.mean().full_tensor(), rows=5, columns=8, is_quick=True),
    Lookalike(
        "implied",
        "var of local tensors",
        *pair(of_rows, op=torch.var, is_local=True),
        Harm.OTHER_RESULTS,
        "each rank has the variance of its rows",
        is_quick=True,
    ),
    Lookalike(
        "implied",
        "split of q, k and v",
        *pair(split_projection),
        Harm.SAVES_NOTHING,
        "more redistributions than before",
        counted="redistributions",
    ),
    Twin("implied again", "projections", *pair(projected), "redistributions", 2, is_quick=True),
    Twin("implied again", "five ops", *pair(added_to_each), "redistributions", 4),
    Twin("implied again", "softmax and cumsum", *pair(normalized), "moves", 2),
    Twin("loops", "list", *pair(exported), "redistributions", 5, is_quick=True),
    Twin("loops", "state_dict", *pair(exported, is_of_module=True), "redistributions", 5),
    Twin(
        "loops",
        "two meshes",
        partial(exported_of_two_meshes, buckets=0),
        partial(exported_of_two_meshes, buckets=2),
        "redistributions",
        4,
    ),
    Twin(
        "loops",
        "two dtypes",
        partial(of_two_dtypes, buckets=0),
        partial(of_two_dtypes, buckets=2),
        "redistributions",
        4,
    ),
    Lookalike(
        "loops",
        "each needs the previous",
        *pair(each_needs_the_previous),
        Harm.OTHER_RESULTS,
        "weights are exported before their update",
        is_quick=True,
    ),
    Lookalike(
        "loops",
        "each is reduced before",
        *pair(reduced_in_turn),
        Harm.OTHER_RESULTS,
        "weights are exported before the reduction",
    ),
    Lookalike(
        "loops",
        "stops at the first",
        *pair(first_with_nan),
        Harm.SAVES_NOTHING,
        "one gather is one",
        counted="collectives",
    ),
    Twin("loops", "uneven rows", *pair(uneven_rows), "collectives", 3),
    Lookalike(
        "norms",
        "two meshes",
        *pair(stacked_of_two_meshes),
        Harm.RAISES,
        "tensors of two meshes cannot be stacked",
        error="mesh",
    ),
    Twin("logits", "mean", *pair(cross_entropy), "redistributions", 1),
    Twin("logits", "sum", *pair(cross_entropy, reduction="sum"), "redistributions", 1),
    Twin("logits", "ignored class", *pair(cross_entropy, ignore_index=3), "redistributions", 1),
    Twin("logits", "head", *pair(head_of_classes), "moves", 1),
    Lookalike(
        "logits",
        "label smoothing",
        *pair(cross_entropy, label_smoothing=0.1),
        Harm.RAISES,
        "loss_parallel has no label smoothing",
        error="in-place operations that require placement changes",
    ),
    Lookalike(
        "logits",
        "sharded labels",
        *pair(cross_entropy, has_sharded_labels=True),
        Harm.RAISES,
        "loss_parallel takes replicated labels",
        error="Expected (Replicate(),) but got (Shard(dim=0),)",
        is_quick=True,
    ),
    Lookalike(
        "logits",
        "probabilities",
        *pair(cross_entropy, is_of_probabilities=True, reduction="sum"),
        Harm.OTHER_RESULTS,
        "the gradient is wrong",
    ),
    Lookalike(
        "logits",
        "largest logits",
        *pair(loss_and_accuracy),
        Harm.SAVES_NOTHING,
        "another metric needs the gathered logits",
        counted="all_gather",
    ),
    Twin("gradients", "AdamW", *pair(partial_gradients, make=adamw), "redistributions", 4, is_quick=True),
    Twin(
        "gradients",
        "Adamax",
        *pair(partial_gradients, make=lambda weights: torch.optim.Adamax(weights, foreach=False)),
        "redistributions",
        2,
    ),
    Twin(
        "gradients",
        "RMSprop",
        *pair(partial_gradients, make=lambda weights: torch.optim.RMSprop(weights, foreach=False)),
        "redistributions",
        4,
    ),
    Lookalike(
        "gradients",
        "trust ratio",
        *pair(sharded_gradients, make=Trust),
        Harm.SAVES_NOTHING,
        "no gradient is partial: 9 redistributions become 12 of more bytes",
        counted="redistributions",
        is_quick=True,
    ),
    Lookalike(
        "gradients",
        "SGD",
        *pair(partial_gradients, make=lambda weights: torch.optim.SGD(weights, 0.1, foreach=False)),
        Harm.SAVES_NOTHING,
        "each gradient is reduced once with and without the change",
        counted="redistributions",
    ),
    Lookalike(
        "gradients",
        "shards",
        *pair(sharded_gradients, make=adamw),
        Harm.SAVES_NOTHING,
        "no gradient is partial: nothing is redistributed without the change",
        counted="redistributions",
    ),
    Twin("matrices", "Muon", *pair(sharded_gradients, make=muon), "moves", 45, tolerance=1e-3),
    Twin("matrices", "one matrix", *pair(sharded_gradients, make=muon, count=1), "moves", 15, tolerance=1e-3),
    Twin(
        "matrices",
        "Newton and Schulz",
        *pair(sharded_gradients, make=lambda weights: Orthogonal(weights, {})),
        "moves",
        12,
    ),
    Lookalike(
        "matrices",
        "one product",
        *pair(sharded_gradients, make=lambda weights: Projected(weights, {})),
        Harm.SAVES_NOTHING,
        "each matrix is gathered once with and without the change",
        counted="moves",
    ),
    Lookalike(
        "matrices",
        "no product",
        *pair(sharded_gradients, make=adamw),
        Harm.SAVES_NOTHING,
        "nothing is redistributed without the change",
        counted="moves",
    ),
    Lookalike(
        "matrices",
        "trust ratio",
        *pair(sharded_gradients, make=Trust),
        Harm.SAVES_NOTHING,
        "norms are reduced without the change, matrices are gathered with it",
        counted="bytes",
    ),
]
