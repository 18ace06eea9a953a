"""Programs on which rules of advice fire, and similar programs on which they do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from pytest_dtdispatch.torchapi.missing_api import fully_shard

Step = Callable[[], object]
WIDTH = 64
MAX_ROWS = 4_096
# No number or shape is used twice: the second use would hit.
NUMBERS, SIZES = itertools.count(1), itertools.count(8)


def sharded(mesh: DeviceMesh, *shape: int, dim: int = 0) -> DTensor:
    return distribute_tensor(torch.rand(*shape or (WIDTH, WIDTH)), mesh, [Shard(dim)])


class Attention(torch.nn.Module):
    """Three projections of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        product: torch.Tensor = q * k * v
        return product


def attention(mesh: DeviceMesh, is_gathered_once: bool, layers: int = 3, call: Any = None) -> Step:
    model = torch.nn.Sequential(*(Attention() for _ in range(layers)))
    layout = Replicate() if is_gathered_once else Shard(0)
    for layer in model:
        if is_gathered_once:
            gather = PrepareModuleInput(
                input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_output=False
            )
            parallelize_module(layer, mesh, gather)
        for name in ("wq", "wk", "wv"):
            parallelize_module(layer.get_submodule(name), mesh, ColwiseParallel(input_layouts=layout))
    inputs = [torch.rand(8, WIDTH, requires_grad=True) for _ in range(layers)]

    def step() -> None:
        for layer, x in zip(model, inputs, strict=True):
            (call(layer, x, use_reentrant=True) if call else layer(x)).sum().backward()

    return step


def checkpointed(mesh: DeviceMesh) -> Step:
    return attention(mesh, is_gathered_once=False, layers=2, call=checkpoint)


def checkpointed_and_gathered_once(mesh: DeviceMesh) -> Step:
    return attention(mesh, is_gathered_once=True, layers=2, call=checkpoint)


def redistributed_three_times(mesh: DeviceMesh) -> Step:
    return attention(mesh, is_gathered_once=False)


def redistributed_once_before(mesh: DeviceMesh) -> Step:
    return attention(mesh, is_gathered_once=True)


def redistributed_after_a_write(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)

    def step() -> None:
        for _ in range(3):
            x.redistribute(mesh, [Replicate()])
            x.mul_(0.5)

    return step


def there_and_back(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)
    return lambda: x.redistribute(mesh, [Replicate()]).redistribute(mesh, [Shard(0)]) + x


def used_unchanged(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)
    return lambda: x + x


def there_and_back_after_an_op(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)

    def step() -> object:
        doubled: Any = x.redistribute(mesh, [Replicate()]) * 2
        return doubled.redistribute(mesh, [Shard(0)])

    return step


def implied(mesh: DeviceMesh) -> Step:
    rows, columns = sharded(mesh), sharded(mesh, dim=1)
    return lambda: rows + columns


def implied_beside_a_thread(mesh: DeviceMesh) -> Step:
    """Another thread, whose ops are not recorded, uses the operand with its placements."""
    rows, columns, others = sharded(mesh), sharded(mesh, dim=1), sharded(mesh, dim=1)
    pool = ThreadPoolExecutor(1)
    return lambda: (rows + columns, pool.submit(lambda: columns * others).result())


def read_in_threads(mesh: DeviceMesh) -> Step:
    numbers = [torch.rand(8) for _ in range(4)]

    def step() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda each: each.sum().item(), numbers))

    return step


def placed_equally(mesh: DeviceMesh) -> Step:
    rows, others = sharded(mesh), sharded(mesh)
    return lambda: rows + others


def redistributed_explicitly(mesh: DeviceMesh) -> Step:
    rows, columns = sharded(mesh), sharded(mesh, dim=1)
    return lambda: rows + columns.redistribute(mesh, [Shard(0)])


def reduced_by_an_op(mesh: DeviceMesh) -> Step:
    rows, columns = sharded(mesh), sharded(mesh, dim=1)
    return lambda: torch.relu(columns @ rows)


def norms_one_by_one(mesh: DeviceMesh) -> Step:
    parameters = [sharded(mesh) for _ in range(6)]

    def step() -> None:
        for each in parameters:
            each.norm().full_tensor()

    return step


def norms_at_once(mesh: DeviceMesh) -> Step:
    parameters = [sharded(mesh) for _ in range(6)]
    return lambda: torch.nn.utils.get_total_norm(parameters).full_tensor()  # type: ignore[attr-defined]


def gathered_one_by_one(mesh: DeviceMesh) -> Step:
    parameters = [sharded(mesh) for _ in range(6)]

    def step() -> None:
        for each in parameters:
            each.full_tensor()

    return step


def state_dict_gathered(mesh: DeviceMesh) -> Step:
    model = small_model(mesh, groups=3)
    return lambda: {
        name: each.redistribute(placements=[Replicate()]) for name, each in model.state_dict().items()
    }


def gathered_in_a_bucket(mesh: DeviceMesh) -> Step:
    parameters = [sharded(mesh) for _ in range(6)]

    def step() -> object:
        flat = torch.cat([each.to_local().flatten() for each in parameters])
        return DTensor.from_local(flat, mesh, [Shard(0)], run_check=False).full_tensor()

    return step


def results_gathered_one_by_one(mesh: DeviceMesh) -> Step:
    """Each gather depends on the previous one."""
    x = sharded(mesh)

    def step() -> None:
        y: Any = x * 2
        for _ in range(6):
            y = (y.redistribute(mesh, [Replicate()]) * 2).redistribute(mesh, [Shard(0)]) * 2

    return step


def small_model(mesh: DeviceMesh, groups: int, layers_of_each: int = 1) -> torch.nn.Module:
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(groups * layers_of_each)))
    layers = [*model]
    for first in range(0, len(layers), layers_of_each):
        of_group = layers[first : first + layers_of_each]
        fully_shard()(of_group if len(of_group) > 1 else of_group[0], mesh=mesh)
    fully_shard()(model, mesh=mesh)
    return model


def trained_groups(mesh: DeviceMesh, groups: int, layers_of_each: int) -> Step:
    model, x = small_model(mesh, groups, layers_of_each), torch.rand(4, 16)
    return lambda: model(x).sum().backward()


def gradients_scaled_by_hooks(mesh: DeviceMesh) -> Step:
    """Accumulate gradients that a hook on each parameter scales after each reduction."""
    model, x = small_model(mesh, groups=2), torch.rand(4, 16)

    def scale(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(scale)

    def step() -> None:
        for _ in range(2):
            model(x).sum().backward()
        model.zero_grad()

    return step


def small_groups(mesh: DeviceMesh) -> Step:
    return trained_groups(mesh, groups=8, layers_of_each=1)


def several_modules_in_a_group(mesh: DeviceMesh) -> Step:
    return trained_groups(mesh, groups=1, layers_of_each=8)


class Head(torch.nn.Module):
    """A layer, and a head that is called on each chunk of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.head(chunk).sum() for chunk in self.layer(x).chunk(4)]).sum()


def chunked_head(mesh: DeviceMesh, is_group: bool, calls: int = 1) -> Step:
    model, x = Head(), torch.rand(8, 16)
    for module in (model.layer, model.head)[: 1 + is_group]:
        fully_shard()(module, mesh=mesh)
    fully_shard()(model, mesh=mesh)

    def step() -> None:
        total = sum((model(x) for _ in range(calls)), torch.zeros(()))
        total.backward()

    return step


def group_gathered_for_each_chunk(mesh: DeviceMesh) -> Step:
    return chunked_head(mesh, is_group=True)


def group_gathered_for_all_chunks(mesh: DeviceMesh) -> Step:
    return chunked_head(mesh, is_group=False)


def model_called_twice(mesh: DeviceMesh) -> Step:
    model, x = small_model(mesh, groups=2), torch.rand(4, 16)
    return lambda: (model(x) + model(x)).sum().backward()


def muon(mesh: DeviceMesh, is_gathered_once: bool) -> Step:
    weights = [torch.nn.Parameter(sharded(mesh)) for _ in range(2)]
    optimizer = torch.optim.Muon(weights)

    def step() -> None:
        for each in weights:
            gradient: Any = sharded(mesh)
            each.grad = gradient.redistribute(placements=[Replicate()]) if is_gathered_once else gradient
        optimizer.step()

    return step


def matrices_gathered_by_each_product(mesh: DeviceMesh) -> Step:
    return muon(mesh, is_gathered_once=False)


def matrices_gathered_once(mesh: DeviceMesh) -> Step:
    return muon(mesh, is_gathered_once=True)


class Projected(torch.optim.Optimizer):
    """An optimizer with one matrix product per parameter."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                each.sub_(each.grad @ each.grad.t())


def projected_gradients(mesh: DeviceMesh) -> Step:
    parameters = [torch.nn.Parameter(sharded(mesh)) for _ in range(3)]
    for each in parameters:
        each.grad = sharded(mesh)
    return Projected(parameters, {}).step


def implied_for_each_projection(mesh: DeviceMesh) -> Step:
    x, weights = sharded(mesh, 8, WIDTH), [sharded(mesh, dim=1) for _ in range(3)]
    return lambda: [x @ weight for weight in weights]


def redistributed_before_projections(mesh: DeviceMesh) -> Step:
    x, weights = sharded(mesh, 8, WIDTH), [sharded(mesh, dim=1) for _ in range(3)]

    def step() -> object:
        whole: Any = x.redistribute(mesh, [Replicate()])
        return [whole @ weight for weight in weights]

    return step


def cross_entropy(mesh: DeviceMesh, classes: int, is_parallel: bool) -> Step:
    logits = sharded(mesh, 128, classes, dim=1).requires_grad_()
    labels = distribute_tensor(torch.randint(classes, (128,)), mesh, [Replicate()])

    def step() -> None:
        with loss_parallel() if is_parallel else nullcontext():
            torch.nn.functional.cross_entropy(logits, labels).backward()

    return step


def logits_gathered(mesh: DeviceMesh) -> Step:
    return cross_entropy(mesh, classes=8_192, is_parallel=False)


def head_of_classes(mesh: DeviceMesh, loss: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    """Gather the result of a module, like plans of libraries, and call a loss with rows in f64."""
    head, x = torch.nn.Linear(16, 8_192), torch.rand(2, 64, 16)
    parallelize_module(head, mesh, ColwiseParallel(output_layouts=Replicate()))
    return lambda: loss(head(x).double().flatten(0, 1)).backward()


def logits_gathered_by_a_module(mesh: DeviceMesh) -> Step:
    labels = torch.randint(8_192, (128,))
    return head_of_classes(mesh, lambda rows: torch.nn.functional.cross_entropy(rows / 2, labels) * 2)


def results_gathered_for_a_sum(mesh: DeviceMesh) -> Step:
    return head_of_classes(mesh, lambda rows: rows.log_softmax(-1).square().sum())


def logits_of_few_bytes(mesh: DeviceMesh) -> Step:
    return cross_entropy(mesh, classes=64, is_parallel=False)


def loss_over_shards(mesh: DeviceMesh) -> Step:
    return cross_entropy(mesh, classes=8_192, is_parallel=True)


def trained(mesh: DeviceMesh, make: Callable[[Any], torch.optim.Optimizer]) -> Step:
    parameters = [torch.nn.Parameter(sharded(mesh)) for _ in range(8)]
    optimizer = make(parameters)
    for each in parameters:
        each.grad = sharded(mesh)
    return optimizer.step


def adamw(mesh: DeviceMesh) -> Step:
    return trained(mesh, torch.optim.AdamW)


def adamw_by_lists(mesh: DeviceMesh) -> Step:
    return trained(mesh, lambda parameters: torch.optim.AdamW(parameters, foreach=True))


def adamw_fused(mesh: DeviceMesh) -> Step:
    return trained(mesh, lambda parameters: torch.optim.AdamW(parameters, fused=True))


def wrapped_three_times(mesh: DeviceMesh) -> Step:
    x = torch.rand(WIDTH, WIDTH)

    def step() -> None:
        for _ in range(3):
            DTensor.from_local(x, mesh, [Shard(0)]) * 2

    return step


def wrapped_once(mesh: DeviceMesh) -> Step:
    x = torch.rand(WIDTH, WIDTH)

    def step() -> None:
        wrapped = DTensor.from_local(x, mesh, [Shard(0)])
        for _ in range(3):
            wrapped * 2

    return step


def others_wrapped(mesh: DeviceMesh) -> Step:
    def step() -> None:
        for _ in range(3):
            DTensor.from_local(torch.rand(WIDTH, WIDTH), mesh, [Shard(0)])

    return step


def parameters_wrapped(mesh: DeviceMesh) -> Step:
    parameters = [torch.nn.Parameter(torch.rand(WIDTH, WIDTH)) for _ in range(4)]

    def step() -> None:
        for each in parameters:
            DTensor.from_local(each, mesh, [Shard(0)]) * 2

    return step


def parameters_that_are_dtensors(mesh: DeviceMesh) -> Step:
    parameters = [torch.nn.Parameter(sharded(mesh)) for _ in range(4)]

    def step() -> None:
        for each in parameters:
            each * 2

    return step


def inputs_wrapped(mesh: DeviceMesh) -> Step:
    inputs = [torch.rand(WIDTH, WIDTH) for _ in range(4)]

    def step() -> None:
        for each in inputs:
            DTensor.from_local(each, mesh, [Shard(0)])

    return step


def new_number_each_time(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)
    return lambda: x.clamp(max=next(NUMBERS) / 100)


def new_tensor_each_time(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)
    return lambda: x.clamp(max=torch.tensor(next(NUMBERS) / 100))


def new_shape_each_time(mesh: DeviceMesh) -> Step:
    local = torch.rand(MAX_ROWS, 2)
    return lambda: DTensor.from_local(local[: next(SIZES)], mesh, [Shard(0)]) * 2


def padded(mesh: DeviceMesh) -> Step:
    local, whole = torch.rand(MAX_ROWS, 2), torch.zeros(MAX_ROWS, 2)

    def step() -> object:
        size = next(SIZES)
        whole[:size] = local[:size]
        return DTensor.from_local(whole, mesh, [Shard(0)]) * 2

    return step


def one_number(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)
    return lambda: x.clamp(max=0.5)


def retained(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)
    held: list[Any] = []
    return lambda: held.append(x * 2)


def replaced(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)
    held: dict[str, Any] = {}
    return lambda: held.update(last=x * 2)


class Gate(torch.nn.Module):
    """Many small elementwise ops."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = torch.sigmoid(x * 0.5) + 0.1
        return x


class LocalGate(Gate):
    """The same ops on local tensors."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(x, DTensor)
        return DTensor.from_local(super().forward(x.to_local()), x.device_mesh, x.placements)


def trained_gates(mesh: DeviceMesh, gate: Callable[[], torch.nn.Module], *shape: int) -> Step:
    model, x = torch.nn.Sequential(gate(), gate()), sharded(mesh, *shape).requires_grad_()

    def step() -> None:
        model(x).sum().backward()
        x.grad = None

    return step


def gates(mesh: DeviceMesh) -> Step:
    return trained_gates(mesh, Gate, 8, 8)


def gates_on_local_tensors(mesh: DeviceMesh) -> Step:
    return trained_gates(mesh, LocalGate, 8, 8)


def large_gates(mesh: DeviceMesh) -> Step:
    return trained_gates(mesh, Gate, 1_024, 512)


def accumulated(mesh: DeviceMesh, is_reused: bool) -> Step:
    """Gather one weight for each of three micro-batches."""
    weight = torch.nn.Parameter(sharded(mesh))
    batches = [distribute_tensor(torch.rand(8, WIDTH), mesh, [Replicate()]) for _ in range(3)]

    def step() -> None:
        whole = None
        for batch in batches:
            if whole is None or not is_reused:
                whole = weight.redistribute(mesh, [Replicate()])  # type: ignore[attr-defined]
            (batch @ whole).sum().backward()
        weight.grad = None

    return step


def accumulated_wraps(mesh: DeviceMesh, is_reused: bool) -> Step:
    """Wrap one weight for each of three micro-batches."""
    weight = torch.rand(WIDTH, WIDTH, requires_grad=True)
    batches = [sharded(mesh, 8, WIDTH) for _ in range(3)]

    def step() -> None:
        wrapped = None
        for batch in batches:
            if wrapped is None or not is_reused:
                wrapped = DTensor.from_local(weight, mesh, [Replicate()])
            (batch @ wrapped).sum().backward()
        weight.grad = None

    return step


def gathered_for_each_batch(mesh: DeviceMesh) -> Step:
    return accumulated(mesh, is_reused=False)


def gathered_for_all_batches(mesh: DeviceMesh) -> Step:
    return accumulated(mesh, is_reused=True)


def wrapped_for_each_batch(mesh: DeviceMesh) -> Step:
    return accumulated_wraps(mesh, is_reused=False)


def wrapped_for_all_batches(mesh: DeviceMesh) -> Step:
    return accumulated_wraps(mesh, is_reused=True)


def wrapped_with_and_without_grad(mesh: DeviceMesh) -> Step:
    """The first result has no graph: reusing it would lose the gradient."""
    weight = torch.rand(WIDTH, WIDTH, requires_grad=True)

    def step() -> None:
        with torch.no_grad():
            DTensor.from_local(weight, mesh, [Shard(0)]) * 2
        DTensor.from_local(weight, mesh, [Shard(0)]) * 2

    return step


def wrapped_with_another_graph(mesh: DeviceMesh) -> Step:
    """One buffer with a separate graph in each micro-batch."""
    weight, buffer = torch.rand(WIDTH, WIDTH, requires_grad=True), torch.zeros(WIDTH, WIDTH)

    def step() -> None:
        for _ in range(2):
            doubled = buffer.detach().copy_(weight * weight)
            DTensor.from_local(doubled, mesh, [Shard(0)]).sum().backward()

    return step


def softmax_across_ranks(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)
    return lambda: torch.softmax(x, 0)


def softmax_within_ranks(mesh: DeviceMesh) -> Step:
    x = sharded(mesh, dim=1)
    return lambda: torch.softmax(x, 0)


def sorted_vector(mesh: DeviceMesh) -> Step:
    """A vector has no other dimension to shard."""
    x = sharded(mesh, WIDTH)
    return lambda: x.sort()


def implied_at_five_lines(mesh: DeviceMesh) -> Step:
    rows, columns = sharded(mesh), sharded(mesh, dim=1)

    def step() -> None:
        rows + columns
        rows - columns
        rows * columns
        rows / columns
        torch.maximum(rows, columns)

    return step


def implied_of_five_tensors(mesh: DeviceMesh) -> Step:
    rows, columns = sharded(mesh), [sharded(mesh, dim=1) for _ in range(5)]

    def step() -> None:
        rows + columns[0]
        rows - columns[1]
        rows * columns[2]
        rows / columns[3]
        torch.maximum(rows, columns[4])

    return step


def one_number_at_three_lines(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)

    def step() -> None:
        number = next(NUMBERS) / 100
        x.clamp(max=number)
        x**number
        x.fmod(number)

    return step


def three_numbers_at_three_lines(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)

    def step() -> None:
        x.clamp(max=next(NUMBERS) / 100)
        x ** (next(NUMBERS) / 100)
        x.fmod(next(NUMBERS) / 100)

    return step


def grown(mesh: DeviceMesh) -> Step:
    """Each op of forward and backward has a new shape in each step, and an expand a new size."""
    weight = torch.nn.Parameter(distribute_tensor(torch.rand(WIDTH, WIDTH), mesh, [Replicate()]))

    def step() -> None:
        x = sharded(mesh, 4 * next(SIZES), WIDTH)
        product = x @ weight
        product.relu().sum().backward()

    return step


def new_size_each_time(mesh: DeviceMesh) -> Step:
    x = distribute_tensor(torch.rand(MAX_ROWS, 2), mesh, [Replicate()])
    return lambda: x[: next(SIZES)]


def new_index_each_time(mesh: DeviceMesh) -> Step:
    """Sharded, because some versions of torch write the shape of the result to a replicated spec."""
    x = distribute_tensor(torch.rand(MAX_ROWS, 4), mesh, [Shard(1)])
    return lambda: x[next(SIZES)]


def number_beside_another(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)
    return lambda: x.clamp(0.0, next(NUMBERS) / 100)


def number_without_an_overload(mesh: DeviceMesh) -> Step:
    x = sharded(mesh)
    return lambda: torch.ops.aten.leaky_relu(x, next(NUMBERS) / 100)


def number_inside_torch(mesh: DeviceMesh) -> Step:
    parameters = [torch.nn.Parameter(sharded(mesh)) for _ in range(3)]
    for each in parameters:
        each.grad = sharded(mesh)
    optimizer = torch.optim.AdamW(parameters, foreach=False)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=1_000)

    def step() -> None:
        optimizer.step()
        schedule.step()

    return step


def partial_gradients(mesh: DeviceMesh, is_reduced: bool) -> Step:
    parameters = [
        torch.nn.Parameter(distribute_tensor(torch.rand(WIDTH), mesh, [Replicate()])) for _ in range(2)
    ]
    optimizer = torch.optim.AdamW(parameters, foreach=False)

    def step() -> None:
        for each in parameters:
            gradient = DTensor.from_local(torch.ones(WIDTH), mesh, [Partial()])
            each.grad = gradient.redistribute(mesh, [Replicate()]) if is_reduced else gradient
        optimizer.step()

    return step


def gradients_reduced_by_each_op(mesh: DeviceMesh) -> Step:
    return partial_gradients(mesh, is_reduced=False)


def gradients_reduced_once(mesh: DeviceMesh) -> Step:
    return partial_gradients(mesh, is_reduced=True)


def mixed_parameters(mesh: DeviceMesh) -> list[torch.nn.Parameter]:
    """Return DTensor parameters and the same number of plain parameters, with gradients."""
    parameters = [torch.nn.Parameter(sharded(mesh)) for _ in range(4)]
    parameters += [torch.nn.Parameter(torch.rand(WIDTH, WIDTH)) for _ in range(4)]
    for each in parameters:
        each.grad = torch.ones_like(each)
    return parameters
