"""What a recorded step knows of its tensors: writes, dependencies, uses and the callers of events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.steps.events import Collective, Redistribution, Unwrapping
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls, StepCounts
from pytest_dtdispatch.torchapi.flow import fingerprint
from pytest_dtdispatch.torchapi.missing_api import fully_shard
from tests.probes import FSDP_WITHOUT_CUDA, fake_group_writes, needs, needs_rule

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]

Write = Callable[[Any], object]


def recorded(step: Callable[[], object]) -> StepCounts:
    noted = run_and_count(StepCalls("step", step, 2, 1)).warmup[-1]
    assert noted.is_recorded
    return noted


def sharded(mesh: DeviceMesh, *shape: int, dim: int = 0) -> Any:
    tensor = distribute_tensor(torch.rand(*shape or (8, 8)), mesh, [Shard(dim)])
    tensor.to_local().copy_(torch.rand_like(tensor.to_local()))
    return tensor


def gathered(tensor: Any) -> Any:
    return tensor.redistribute(placements=[Replicate()])


def fused_step(weight: Any) -> None:
    torch._fused_sgd_(
        [weight],
        [torch.ones_like(weight)],
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=0.1,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=True,
    )


WRITES: dict[str, Write] = {
    "data": lambda w: w.data.mul_(0.5),
    "numpy": lambda w: w.to_local().detach().numpy().__imul__(0.5),
    "foreach": lambda w: torch._foreach_mul_([w], 0.5),
    "fused optimizer": lambda w: fused_step(w.to_local()),
    "collective": lambda w: dist.all_reduce(w.to_local()),
    "another DTensor": lambda w: DTensor.from_local(w.to_local(), w.device_mesh, w.placements).mul_(0.5),
    "out": lambda w: torch.mul(w.to_local(), 2, out=w.to_local()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@torch.no_grad()
def test_write_changes_the_number_of_a_tensor(mesh: DeviceMesh, write: Write) -> None:
    weight = sharded(mesh)

    def step() -> None:
        gathered(weight)
        write(weight)
        gathered(weight)

    first, second = recorded(step).of(Redistribution)
    assert first.tensor_number != second.tensor_number
    assert first.memory_number == second.memory_number


def test_write_to_an_earlier_view_of_numpy_changes_the_number(mesh: DeviceMesh) -> None:
    weight = sharded(mesh)
    view = weight.to_local().numpy()

    def step() -> None:
        gathered(weight)
        view[:] += 1
        gathered(weight)

    first, second = recorded(step).of(Redistribution)
    assert first.tensor_number != second.tensor_number


def test_write_to_a_resized_storage_is_none_to_a_freed_result(mesh: DeviceMesh) -> None:
    weight = sharded(mesh, 3000, 3000)  # the system frees its memory at once, and gives it to the next
    buffer = torch.empty(3000, 3000)
    storage, nbytes = buffer.untyped_storage(), buffer.nbytes

    def step() -> None:
        storage.resize_(0)
        gathered(weight)
        storage.resize_(nbytes)  # as FSDP2 does
        buffer.fill_(1.0)

    (moved,) = recorded(step).of(Redistribution)
    assert not moved.is_result_unique


def test_reading_ops_keep_the_number_of_a_tensor(mesh: DeviceMesh) -> None:
    weight = sharded(mesh)
    numbers = {
        one.tensor_number
        for one in recorded(lambda: [gathered(weight) for _ in range(2)]).events
        if isinstance(one, Redistribution)
    }
    assert len(numbers) == 1


def test_depth_counts_transfers_that_a_transfer_needs(mesh: DeviceMesh) -> None:
    first, second, other = (sharded(mesh) for _ in range(3))

    def step() -> None:
        norm = first.norm().full_tensor()
        (second * norm).norm().full_tensor()
        other.norm().full_tensor()

    assert [one.depth for one in recorded(step).of(Redistribution)] == [0, 1, 0]


FACTOR = 0.7


@pytest.mark.parametrize(
    ("use", "depths"),
    [
        (lambda y, value: y * value, [0, 1]),
        (lambda y, value: y * (value + 0.5), [0, 1]),
        (lambda y, value: y * 0.3, [0, 0]),
        (lambda y, value: y * FACTOR, [0, 0]),
    ],
    ids=["value", "arithmetic", "constant", "global"],
)
def test_value_used_by_an_op_orders_reads(
    mesh: DeviceMesh, use: Callable[..., Any], depths: list[int]
) -> None:
    x, y = torch.rand(4), torch.rand(4)

    def step() -> None:
        value = x.sum().item()
        use(y, value).sum().item()

    assert [one.depth for one in recorded(step).reads] == depths


@pytest.mark.parametrize("is_rate", [True, False])
def test_rate_computed_from_a_read_orders_reads(is_rate: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    [group] = optimizer.param_groups

    def step() -> None:
        weight.grad = torch.ones(4)
        norm = weight.grad.norm().item()
        if is_rate:
            group["lr"] = 0.1 / max(norm, 1.0)  # equal in each step
        optimizer.step()
        weight.sum().item()

    assert [one.depth for one in recorded(step).reads] == [0, int(is_rate)]


def compared_later(number: Any) -> bool:
    value = number.item()
    return bool(value > 1)


def largest_later(number: Any) -> float:
    largest = 0.0
    largest = max(largest, float(number) / 3)
    return 1.0 if largest > 2 else largest


def stored_item(number: Any) -> dict[str, float]:
    logs = {}
    logs["loss"] = number.item()
    return {"last": logs["loss"]}


def compared_item(number: Any) -> bool:
    logs = {}
    logs["loss"] = number.item()
    return bool(logs["loss"] > 1)


def compared_element(number: Any) -> int:
    logs: dict[str, list[float]] = {"loss": []}
    logs["loss"].append(number.item())
    last = logs["loss"][-1]
    return 1 if last > 1 else 2


def in_block(number: Any) -> float:
    with nullcontext():
        return number.item()  # type: ignore[no-any-return]


def compared_over_lines(number: Any) -> bool:
    return bool(
        max(
            number.item(),
            0.5,
        )
        > 1
    )


def listed_by_range(number: Any) -> list[float]:
    return [number.item() for _ in range(1)]


def compared_pair(number: Any) -> Any:
    value, other = number.item(), 1
    return max(value, other) > 0


@pytest.mark.parametrize(
    ("read", "is_needed"),
    [
        (lambda number: number.item(), False),
        (lambda number: [in_block(number)], False),
        (listed_by_range, False),
        (lambda number: in_block(number) > 1, True),
        (lambda number: sum([each.item() for each in [number]]) > 1, True),
        (lambda number: sum(each.item() for each in [number]) > 1, True),
        (compared_over_lines, True),
        (stored_item, False),
        (compared_item, True),
        (compared_element, True),
        (lambda number: number.cpu(), False),
        (lambda number: f"{number}", False),
        (lambda number: [1, 2, 3][number.long()], True),
        (lambda number: 1 if number else 2, True),
        (lambda number: number.item() < 1, True),
        (compared_later, True),
        (largest_later, True),
        (compared_pair, True),
    ],
    ids=[
        "item",
        "item of a function",
        "list over a range",
        "comparison of a function's result",
        "comparison of a list",
        "comparison of a generator",
        "comparison over several lines",
        "stored item",
        "comparison of a stored item",
        "comparison of an element",
        "copy",
        "text",
        "index",
        "if",
        "comparison",
        "comparison of a variable",
        "comparison of a result",
        "comparison of two variables",
    ],
)
def test_read_may_decide_which_code_runs(read: Callable[[Any], object], is_needed: bool) -> None:
    number = torch.ones(2).sum() - 1
    assert {one.is_compared for one in recorded(lambda: read(number * 1)).reads} == {is_needed}


@pytest.mark.parametrize(
    ("call", "free"),
    [
        (lambda x: torch.softmax(x, 0), (1, 2)),
        (lambda x: torch.var(x, 0), (1, 2)),
        pytest.param(lambda x: torch.cumsum(x, 0), (1, 2), marks=needs_rule("cumsum.default")),
        (lambda x: torch.linalg.qr(x), ()),
    ],
    ids=["softmax", "var", "cumsum", "qr"],
)
def test_free_dimensions_need_no_transfer(mesh: DeviceMesh, call: Write, free: tuple[int, ...]) -> None:
    x = sharded(mesh, 8, 8, 8)
    implied = [one for one in recorded(lambda: call(x)).of(Redistribution) if one.bytes]
    assert {dim for one in implied for dim in one.free_dims} == {*free}
    for moved in [sharded(mesh, 8, 8, 8, dim=dim) for dim in free]:
        assert not any(each.bytes for each in recorded(partial(call, moved)).of(Redistribution))


def test_dimensions_of_a_partial_result_are_not_free(mesh: DeviceMesh) -> None:
    x = sharded(mesh, 7, 8)
    [implied] = recorded(lambda: x.mean().full_tensor()).of(Redistribution)
    assert implied.free_dims == ()


BETWEEN_MOVES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "nothing": (lambda x: x, (0,)),
    "alias": (lambda x: x.detach(), (0,)),
    "elementwise op": (lambda x: x.detach().relu(), (0,)),
    "transposition": (lambda x: x.t(), ()),
    "elementwise op of a transposition": (lambda x: x.t().relu(), ()),
    "flattened view": (lambda x: x.view(64), ()),
}


@pytest.mark.parametrize(("between", "undoes"), BETWEEN_MOVES.values(), ids=BETWEEN_MOVES)
def test_views_of_other_order_are_not_redistributed_back(
    mesh: DeviceMesh, between: Callable[[Any], Any], undoes: tuple[int, ...]
) -> None:
    x = sharded(mesh)
    moves = recorded(lambda: between(gathered(x)).redistribute(placements=[Shard(0)])).of(Redistribution)
    assert moves[-1].undoes == undoes


def test_uses_of_a_result_beside_its_redistribution_are_counted(mesh: DeviceMesh) -> None:
    x = sharded(mesh)

    def step() -> object:
        whole = gathered(x)
        result = whole.redistribute(placements=[Shard(0)])
        return result, whole + 1, whole.sum(), whole.to_local().tolist()

    there, back = recorded(step).of(Redistribution)
    assert back.undoes == (0,)
    assert (back.forward_uses, there.other_uses) == (3, 1)


@pytest.mark.parametrize("is_explicit", [True, False])
@pytest.mark.parametrize("option", ["target", "weight", ""])
def test_loss_of_sharded_labels_or_weights_refuses_sharded_logits(
    mesh: DeviceMesh, option: str, is_explicit: bool
) -> None:
    if option == "target" and not fake_group_writes():
        pytest.skip("the fake group of this torch gathers undefined labels")
    logits = sharded(mesh, dim=1).requires_grad_()
    options: dict[str, Any] = {"target": torch.arange(8), "weight": torch.ones(8)}
    for name, each in options.items():
        options[name] = distribute_tensor(each, mesh, [Shard(0) if name == option else Replicate()])

    def step() -> None:
        whole = gathered(logits) if is_explicit else logits
        torch.nn.functional.cross_entropy(whole, **options).backward()
        logits.grad = None

    of_logits = [one for one in recorded(step).of(Redistribution) if one.source == ("S1",)]
    assert [one.is_for_loss for one in of_logits] == [not option]


@pytest.mark.parametrize("is_partial", [True, False])
def test_lists_of_partial_tensors_have_no_replacement(mesh: DeviceMesh, is_partial: bool) -> None:
    placement = Partial() if is_partial else Replicate()
    tensors = [DTensor.from_local(torch.ones(4), mesh, [placement]) for _ in range(4)]

    def step() -> None:
        for each in tensors:
            each.zero_()

    assert {each.replacement for each in recorded(step).ops} == {"" if is_partial else "torch._foreach_zero_"}


def test_lists_of_an_optimizer_have_one_dtype_and_group(mesh: DeviceMesh) -> None:
    dtypes = torch.float32, torch.bfloat16, torch.float32, torch.float32
    weights = [torch.nn.Parameter(sharded(mesh).to(dtype)) for dtype in dtypes]
    groups: list[dict[str, Any]] = [{"params": weights[:2]}, {"params": weights[2:], "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    [described] = recorded(optimizer.step).optimizers
    assert described is not None
    assert (described.tensors, described.lists) == (4, 3)


class Trainer:
    """A model under FSDP2 with one pass before and one after something else."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.model = fully_shard()(torch.nn.Linear(8, 8), mesh=mesh)
        self.other = fully_shard()(torch.nn.Linear(8, 8), mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run(self, model: Any = None) -> None:
        (model or self.model)(torch.ones(4, 8)).sum().backward()


BETWEEN: dict[str, tuple[Callable[[Trainer], object], bool]] = {
    "nothing": (lambda each: None, True),
    "zero_grad": (lambda each: each.optimizer.zero_grad(), False),
    "zeroed in place": (lambda each: each.optimizer.zero_grad(set_to_none=False), False),
    "optimizer step": (lambda each: each.optimizer.step(), False),
    "norm logged": (lambda each: torch.nn.utils.clip_grad_norm_(each.model.parameters(), 1.0), False),
    "another model": (lambda each: each.run(each.other), True),
}


@needs(FSDP_WITHOUT_CUDA)
@pytest.mark.parametrize(("between", "accumulates"), BETWEEN.values(), ids=BETWEEN)
def test_second_reduction_adds_to_unused_gradients(
    mesh: DeviceMesh, between: Callable[[Trainer], object], accumulates: bool
) -> None:
    trainer = Trainer(mesh)

    def step() -> None:
        trainer.run()
        between(trainer)
        trainer.run()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    every = recorded(step).of(Collective)
    reduced = [one for one in every if one.kind == "reduce_scatter" and one.fsdp_group]
    own = [one for one in reduced if one.fsdp_group == reduced[0].fsdp_group]
    assert [one.accumulates for one in own] == [False, accumulates]
    assert not any(one.accumulates for one in reduced if one.fsdp_group != reduced[0].fsdp_group)


def gather_objects(mesh: DeviceMesh) -> Callable[[], object]:
    return lambda: dist.all_gather_object([None] * dist.get_world_size(), 1)


def load_state(mesh: DeviceMesh) -> Callable[[], object]:
    model = fully_shard()(torch.nn.Linear(8, 8), mesh=mesh)
    state = {name: torch.rand(each.shape) for name, each in model.state_dict().items()}
    return lambda: set_model_state_dict(model, dict(state), options=StateDictOptions(full_state_dict=True))


def lbfgs(mesh: DeviceMesh) -> Callable[[], object]:
    weight = torch.nn.Parameter(torch.rand(4))
    weight.grad = torch.ones(4)
    return lambda: torch.optim.LBFGS([weight], max_iter=2).step(lambda: weight.square().sum())


@needs(FSDP_WITHOUT_CUDA)
@pytest.mark.parametrize("make", [gather_objects, load_state, lbfgs], ids=lambda each: each.__name__)
def test_event_inside_torch_names_the_called_function(mesh: DeviceMesh, make: Any) -> None:
    events = recorded(make(mesh)).events
    transfers = [one for one in events if not isinstance(one, Unwrapping)]
    assert transfers
    assert all(one.via for one in transfers if type(one).__name__ in ("Collective", "Read", "Wrapping"))


def test_thin_wrapper_is_a_call_of_the_user(mesh: DeviceMesh) -> None:
    weight, local = sharded(mesh), torch.ones(2)
    noted = recorded(lambda: (gathered(weight), dist.all_reduce(local), local.sum().item()))
    redistributed = noted.of(Redistribution)
    own = [one for one in noted.of(Collective) if not one.is_redistributing]
    assert [one.via for one in (*redistributed, *own, *noted.reads)] == ["", "", ""]


class OwnPlan(torch.nn.Linear):
    """A layer that converts its weight to a DTensor, as parallelized layers below FSDP2 do."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__(8, 8, bias=False)
        self.mesh = mesh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = DTensor.from_local(self.weight, self.mesh, [Shard(0)], run_check=False)
        return x @ weight.to_local()


@needs(FSDP_WITHOUT_CUDA)
def test_gathered_parameters_can_be_freed(mesh: DeviceMesh) -> None:
    """Numpy forbids resizes of a storage that it reads, and FSDP2 frees gathered parameters by one."""
    tensor = torch.rand(8)
    assert fingerprint(tensor) == fingerprint(tensor.clone()) != 0
    assert tensor.untyped_storage().resizable()
    model, x = torch.nn.Sequential(OwnPlan(mesh), OwnPlan(mesh)), torch.rand(4, 8)
    for module in (*model, model):
        fully_shard()(module, mesh=mesh)
    noted = recorded(lambda: model(x).sum().backward())
    assert [one.kind for one in noted.collective_runs] == ["all_gather"] * 4 + ["reduce_scatter"] * 2
