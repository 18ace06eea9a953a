"""Reads and partial reads of many forms, counted by hand: each wait for a device is one read."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset, random_split

from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.events import Read
from tests.measured_runs import counts_of

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]

X = torch.arange(6.0).view(2, 3)
MASK = X > 2
ONE = torch.ones((), dtype=torch.long)
CLASSES = torch.arange(3)
SQUARE = torch.eye(3) + torch.arange(9.0).view(3, 3)
SPARSE = torch.sparse_coo_tensor(
    torch.zeros(1, 2, dtype=torch.long), torch.ones(2), (3,), check_invariants=False
)
WEIGHT: Any = torch.ones(2, requires_grad=True)
DATA = TensorDataset(torch.arange(8.0))


def written() -> list[Any]:
    host = X.cpu()
    return host.copy_(X.flip(0)).tolist()


def copied_twice() -> list[Any]:
    host = X.cpu()
    return [host.tolist(), host.sum().item(), X.tolist()]


def after_inference() -> float:
    with torch.inference_mode():
        copies = [X.cpu(), (X * 2).cpu()]
    return torch.stack(copies).mean().item()


def in_thread() -> None:
    thread = threading.Thread(target=lambda: X.sum().cpu().item())
    thread.start()
    thread.join()


def before_nested_counter() -> None:
    host = X.cpu()
    with StepCounter() as inner:
        inner.lap()
        (host * 2).tolist()
    (host * 2).tolist()


# Name: reads, and the step.
PLAIN: dict[str, tuple[int, Callable[[], Any]]] = {
    "item": (1, lambda: X.sum().item()),
    "bool": (1, lambda: bool(MASK.any())),
    "float": (1, lambda: float(X.sum())),
    "int": (1, lambda: int(ONE)),
    "complex": (1, lambda: complex(X.sum())),
    "index": (1, lambda: range(ONE)),
    "format": (1, lambda: f"{X.sum():.2f}"),
    "print": (1, lambda: repr(X)),
    "print of a parameter": (1, lambda: repr(nn.Parameter(X))),
    "alpha": (1, lambda: torch.add(X, X, alpha=ONE)),  # type: ignore[call-overload]
    "narrow": (1, lambda: X.narrow(0, ONE - 1, 1)),
    "allclose": (1, lambda: torch.allclose(X, X)),
    "tolist": (1, lambda: X.tolist()),
    "numpy": (1, lambda: X.numpy()),
    "array": (1, lambda: X.__array__()),
    "nonzero": (1, MASK.nonzero),
    "nonzero(out=)": (1, lambda: torch.nonzero(MASK, out=torch.empty(0, dtype=torch.long))),
    "nonzero(as_tuple=)": (1, lambda: MASK.nonzero(as_tuple=True)),
    "boolean index": (1, lambda: X[MASK]),
    "where": (1, lambda: torch.where(MASK)),
    "boolean assignment": (1, lambda: X.clone().__setitem__(MASK, torch.zeros(3))),
    "masked_select": (1, lambda: X.masked_select(MASK)),
    "equal": (1, lambda: torch.equal(X, X)),
    "unique of rows": (1, lambda: X.unique(dim=0)),
    "unique": (1, X.unique),
    "bincount": (1, CLASSES.bincount),
    "repeat_interleave": (1, lambda: CLASSES.repeat_interleave(CLASSES)),
    "to_sparse": (1, X.to_sparse),
    "coalesce": (1, SPARSE.coalesce),
    "pickle.dumps": (1, lambda: pickle.dumps(X)),
    "torch.save": (1, lambda: torch.save(X, io.BytesIO())),
    "linalg.inv": (1, lambda: torch.linalg.inv(SQUARE)),
    "one_hot": (1, lambda: nn.functional.one_hot(CLASSES)),
    "cpu": (1, lambda: X.cpu()),
    "cpu().item()": (1, lambda: X.sum().cpu().item()),
    "cpu() with gradient": (1, lambda: WEIGHT.sum().cpu().item()),
    "loop over cpu()": (1, lambda: [float(value) for value in torch.stack([X.sum(), X.mean()]).cpu()]),
    "computed from cpu()": (1, lambda: (X.cpu() * 2).sum().item()),
    "data of cpu()": (1, lambda: X.cpu().data.detach().view(6)[0].item()),
    "cpu() and a device tensor": (2, lambda: (X.cpu() + X).sum().item()),
    "cpu() and the original": (2, copied_twice),
    "cpu() that was written": (2, written),
    "cpu() moved back": (2, lambda: X.cpu().to(X.device).sum().item()),
    "cpu() in a thread": (1, in_thread),
    "print of cpu()": (1, lambda: repr(X.cpu())),
    "print of numbers": (0, lambda: repr(torch.tensor([1.5, 2.0]))),
    "number with a device": (1, lambda: torch.tensor(3.0, device="cpu").item()),
    "number on a device": (1, lambda: torch.tensor(3.0).to(X.device).item()),
    "number by partial": (1, lambda: partial(torch.tensor, device="cpu")(1.0).item()),
    "number like another": (1, lambda: (torch.tensor(1.0), X.new_tensor(2.0).item())),
    "inference mode": (2, after_inference),
    "cpu() twice with gradient": (2, lambda: [(loss := WEIGHT.sum()).cpu(), loss.cpu()]),
    "zeros": (1, lambda: torch.zeros(()).item()),
    "number": (0, lambda: torch.tensor(3.0).item()),
    "numbers": (0, lambda: (torch.as_tensor([3, 4]) + 1).sum().tolist()),
    "scalar_tensor": (0, lambda: bool(torch.scalar_tensor(3.0) > 2)),
    "mask of numbers": (0, lambda: X[torch.tensor([True, False])]),
    "start of narrow": (0, lambda: X.narrow(0, torch.tensor(0), 1)),
    "repeats of known size": (0, lambda: CLASSES.repeat_interleave(CLASSES, output_size=3)),
    "assignment of a number": (0, lambda: X.clone().__setitem__(MASK, 0)),
    "masked_fill": (0, lambda: X.masked_fill(MASK, 0)),
    "index of a tensor": (0, lambda: CLASSES[CLASSES]),
    "seed": (0, lambda: torch.manual_seed(0)),
    "meta": (0, lambda: repr(torch.empty(2, device="meta"))),
    "to": (0, lambda: X.to("cpu")),
    "copy_": (0, lambda: torch.empty(2, 3).copy_(X)),
    "copy": (0, lambda: (copy.copy(X), copy.deepcopy(X))),
    "inv_ex": (0, lambda: torch.linalg.inv_ex(SQUARE)),
    "one_hot of known classes": (0, lambda: nn.functional.one_hot(CLASSES, 4)),
    "std and var": (0, lambda: (X.std(), X.var(), torch.var_mean(X))),
    "largest norm of embeddings": (0, lambda: nn.functional.embedding(CLASSES[:2], X.clone(), max_norm=1.0)),
    "quantile": (0, lambda: X.quantile(0.5)),
    "multinomial": (0, lambda: torch.multinomial(X + 1, 1)),
    "random state": (0, lambda: torch.set_rng_state(torch.get_rng_state())),
    "DataLoader": (0, lambda: [*DataLoader(DATA, batch_size=4, shuffle=True)]),
    "random_split": (0, lambda: random_split(DATA, [4, 4])),
}


class Sharded(NamedTuple):
    """A partial sum, a replicated number and a sharded matrix."""

    total: Any
    number: DTensor
    matrix: DTensor

    @property
    def mesh(self) -> Any:
        """Return their mesh."""
        return self.total.device_mesh


def reduced(of: Sharded) -> Any:
    local = of.total.to_local()
    dist.all_reduce(local)
    return local.item()


def gathered(of: Sharded) -> Any:
    local = of.total.to_local()
    dist.all_gather([torch.empty(()) for _ in range(4)], local)
    return local.item()


def without_gradient(of: Sharded) -> Any:
    with torch.no_grad():
        return (of.total.to_local() * 1).item()


# Name: reads, those of this rank's share, and the step.
ON_DTENSORS: dict[str, tuple[int, int, Callable[[Sharded], Any]]] = {
    "item of a share": (1, 1, lambda of: of.total.item()),
    "float of a share": (1, 1, lambda of: float(of.total)),
    "to_local": (1, 1, lambda of: of.total.to_local().item()),
    "to_local, detached": (1, 1, lambda of: of.total.detach().to_local().item()),
    "to_local, computed": (1, 1, lambda of: (of.total.to_local() * 1).item()),
    "to_local, no_grad": (1, 1, without_gradient),
    "to_local, stacked": (1, 1, lambda of: torch.stack([of.total.to_local()] * 2).tolist()),
    "to_local, numpy": (1, 1, lambda of: of.total.to_local().numpy()),
    "to_local, cpu": (1, 1, lambda of: of.total.to_local().cpu().item()),
    "_local_tensor": (1, 1, lambda of: of.total._local_tensor.item()),
    "gathered": (1, 1, gathered),
    "overwritten": (1, 0, lambda of: torch.zeros_like(of.total.to_local()).item()),
    "overwritten by random numbers": (1, 0, lambda of: torch.randint_like(of.total.to_local(), 9).item()),
    "print of a share": (1, 1, lambda of: str(of.total)),
    "print of a result": (1, 1, lambda of: str(of.matrix.sum())),
    "text of a result": (1, 1, lambda of: f"{of.matrix.sum()}"),
    "share as a replicated DTensor": (
        1,
        1,
        lambda of: DTensor.from_local(of.total.to_local(), of.mesh, [Replicate()]).item(),
    ),
    "cpu of a share": (1, 1, lambda of: of.total.cpu()),
    "reduced": (1, 0, reduced),
    "full_tensor": (1, 0, lambda of: (of.total.full_tensor() * 1).item()),
    "comparison": (1, 0, lambda of: bool(of.total > 0)),
    "equal": (1, 0, lambda of: torch.equal(of.total, of.total)),
    "item": (1, 0, lambda of: of.number.item()),
    "cpu().item()": (1, 0, lambda of: of.number.cpu().item()),
    "local shard": (1, 0, lambda of: of.matrix.to_local().tolist()),
    "full_tensor().cpu()": (1, 0, lambda of: of.matrix.full_tensor().cpu().tolist()),
    "print": (1, 0, lambda of: str(of.matrix)),
    "pickle": (1, 0, lambda of: pickle.dumps(of.matrix.to_local())),
    "from_local of a number": (
        1,
        0,
        lambda of: DTensor.from_local(torch.tensor(3.0), of.mesh, [Replicate()]).item(),
    ),
    "distributed number": (1, 0, lambda of: distribute_tensor(torch.tensor([3.0]), of.mesh).sum().item()),
    "ranks": (0, 0, lambda of: of.mesh.mesh.tolist()),
}


@pytest.mark.parametrize("name", PLAIN)
def test_each_wait_is_one_read(name: str) -> None:
    expected, step = PLAIN[name]
    assert len(counts_of(step).reads) == expected


@pytest.mark.parametrize(
    ("name", "op"),
    [
        *(("item", "item"), ("alpha", "item"), ("tolist", "tolist"), ("numpy", "numpy"), ("cpu", "cpu")),
        *(("print", "print"), ("nonzero", "nonzero"), ("where", "nonzero"), ("boolean index", "nonzero")),
        *((name, name) for name in ("masked_select", "equal", "unique", "repeat_interleave")),
    ],
)
def test_read_has_the_name_of_its_function_and_its_line(name: str, op: str) -> None:
    _, step = PLAIN[name]
    [event] = counts_of(lambda: step()).events
    assert isinstance(event, Read)
    assert (event.op, event.is_partial) == (op, False)
    assert event.place is not None
    assert event.place.line_text.startswith("tests/steps/test_read_forms.py:")


@pytest.mark.parametrize("name", ON_DTENSORS)
def test_reads_of_shares_are_partial(name: str, mesh: DeviceMesh) -> None:
    total: Any = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)]).sum()
    assert total.placements == (Partial(),)
    number = DTensor.from_local(torch.ones(()), mesh, [Replicate()])
    of = Sharded(total, number, distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)]))
    reads, shares, step = ON_DTENSORS[name]
    found = counts_of(lambda: step(of)).reads
    assert (len(found), sum(read.is_partial for read in found)) == (reads, shares)


# Reads of a step with two parameters of 4 and 6 numbers, by optimizer and options.
OPTIMIZERS: list[tuple[str, dict[str, Any], int]] = [
    ("ASGD", {}, 6),
    ("ASGD", {"foreach": True}, 2),
    ("Adadelta", {}, 0),
    ("Adafactor", {}, 4),
    ("Adagrad", {}, 0),
    ("Adam", {}, 0),
    ("Adam", {"amsgrad": True, "foreach": True}, 0),
    ("AdamW", {}, 0),
    ("AdamW", {"foreach": True}, 0),
    ("AdamW", {"lr": "tensor"}, 0),
    ("Adamax", {}, 0),
    ("NAdam", {}, 0),
    ("RAdam", {}, 0),
    ("RMSprop", {"momentum": 0.9}, 0),
    ("Rprop", {}, 0),
    ("SGD", {"momentum": 0.9}, 0),
    ("SGD", {"lr": "tensor"}, 0),
    ("SGD", {"foreach": True}, 0),
]
OPTIMIZERS = [each for each in OPTIMIZERS if hasattr(torch.optim, each[0])]  # Adafactor is not in every torch


class GpuReads(FakeTensorMode):
    """Mode that counts reads of tensors on a GPU; each unknown value is 2."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_read = func is torch.ops.aten._local_scalar_dense.default
        is_comparison = func._opname in ("lt", "le", "ge")
        if is_comparison:  # that of a learning rate: 0 <= lr, or not lr < 0
            self.compared = func._opname
        for each in () if is_read or is_comparison else tree_leaves((args, kwargs)):
            if isinstance(each, FakeTensor):
                each.constant = None  # with values, ops would run on the GPU
        self.count += is_read and args[0].device.type == "cuda"
        if is_read and args[0].constant is None:
            return self.compared != "lt" if args[0].dtype is torch.bool else 2.0
        return super().__torch_dispatch__(func, types, args, kwargs)


def stepping(name: str, options: dict[str, Any], parameters: list[nn.Parameter]) -> Callable[[], None]:
    """Return the step of an optimizer whose parameters have gradients."""
    of_torch = {"foreach": False} | options
    if of_torch.get("lr") == "tensor":
        of_torch["lr"] = torch.tensor(0.1)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = getattr(torch.optim, name)(parameters, **of_torch)

    def step() -> None:
        optimizer.step()

    return step


@pytest.mark.parametrize(("name", "options", "expected"), OPTIMIZERS)
def test_optimizers_of_tensors_read_as_expected(name: str, options: dict[str, Any], expected: int) -> None:
    step = stepping(name, options, [nn.Parameter(torch.ones(size)) for size in (4, 6)])
    assert [len(counts_of(step).reads) for _ in range(2)] == [expected] * 2


# A fake tensor on a GPU cannot run the steps of ASGD and Rprop without `foreach`.
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [each for each in OPTIMIZERS if each[:2] not in (("ASGD", {}), ("Rprop", {}))],
)
def test_optimizers_read_as_often_on_a_gpu(name: str, options: dict[str, Any], expected: int) -> None:
    with GpuReads() as on_gpu:
        step = stepping(name, options, [nn.Parameter(torch.ones(size, device="cuda")) for size in (4, 6)])
        step()
        on_gpu.count = 0
        step()
    assert on_gpu.count == expected


@pytest.mark.parametrize(
    ("name", "options", "expected"), [each for each in OPTIMIZERS if "foreach" not in each[1]]
)
def test_optimizers_of_dtensors_read_as_often(
    name: str, options: dict[str, Any], expected: int, mesh: DeviceMesh
) -> None:
    parameters = [
        nn.Parameter(distribute_tensor(torch.ones(size, 8), mesh, [Replicate()])) for size in (4, 6)
    ]
    step = stepping(name, options, parameters)
    try:
        step()
    except RuntimeError as error:
        pytest.skip(f"this torch raises: {error}")
    assert [len(counts_of(step).reads) for _ in range(2)] == [expected] * 2


def test_nested_counter_observes_for_the_outer_one() -> None:
    try:
        with StepCounter(), StepCounter():
            pass
    except RuntimeError:
        pytest.skip("this torch accepts one kernel in Python for an op")
    assert len(counts_of(before_nested_counter).reads) == 1


def test_step_counters_are_on_the_host() -> None:
    parameter = nn.Parameter(torch.ones(4))
    parameter.grad = torch.ones(4)
    adam, asgd = torch.optim.AdamW([parameter]), torch.optim.ASGD([parameter])
    for optimizer in (adam, asgd):
        optimizer.step()
    counts = counts_of(lambda: [int(each.state[parameter]["step"]) for each in (adam, asgd)])
    assert len(counts.reads) == 1


class OnDevice(torch.optim.Optimizer):
    """An optimizer whose step counters are on the device of the parameters."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].setdefault("step", torch.zeros((), device=parameter.device)).add_(1).item()


def test_counters_of_other_optimizers_are_read() -> None:
    optimizer = OnDevice([nn.Parameter(torch.ones(size)) for size in (4, 6)])
    assert [len(counts_of(optimizer.step).reads) for _ in range(2)] == [2, 2]


def test_lbfgs_reads_six_values() -> None:
    """The loss, the largest gradient, the first step size, the slope, and a step size for each parameter."""
    parameters = [nn.Parameter(torch.ones(size)) for size in (4, 6)]
    optimizer = torch.optim.LBFGS(parameters, max_iter=1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum((parameter**2).sum() for parameter in parameters)
        loss.backward()  # type: ignore[union-attr]
        return loss

    assert len(counts_of(lambda: optimizer.step(closure)).reads) == 6


def test_sparse_gradients_are_read_once() -> None:
    parameter = nn.Parameter(torch.ones(3, 1))
    optimizer = torch.optim.SparseAdam([parameter])

    def step() -> None:
        parameter.grad = SPARSE.clone().unsqueeze(1)
        optimizer.step()

    assert len(counts_of(step).reads) == 1


def test_muon_reads_nothing() -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    parameter = nn.Parameter(torch.ones(4, 2))
    parameter.grad = torch.ones(4, 2)
    optimizer = torch.optim.Muon([parameter])
    assert counts_of(lambda: optimizer.step()).reads == ()


def test_every_read_in_four_threads_is_partial(mesh: DeviceMesh) -> None:
    total = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)]).sum()

    def step() -> None:
        threads = [threading.Thread(target=lambda: [total.item() for _ in range(100)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    reads = counts_of(step).reads
    assert (len(reads), sum(read.is_partial for read in reads)) == (400, 400)


def test_copy_on_the_host_has_equal_results() -> None:
    def step() -> list[Any]:
        copied = WEIGHT.sum().cpu()
        copied.backward()
        shared = X.cpu()
        return [copied.item(), WEIGHT.grad.tolist(), shared.data_ptr() == X.data_ptr(), shared.stride()]

    plain = step()
    WEIGHT.grad = None
    with StepCounter():
        found = step()
    WEIGHT.grad = None
    assert found == plain


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_copy_on_the_host_keeps_tangents() -> None:
    def step() -> Any:
        with dual_level():
            dual = make_dual(X, torch.ones_like(X))
            return unpack_dual(dual.cpu()).tangent

    with StepCounter():
        found = step()
    assert torch.equal(found, step())


def test_copy_on_the_host_is_traced() -> None:
    def double(values: torch.Tensor) -> torch.Tensor:
        return values.cpu() * 2

    with StepCounter():
        graph = make_fx(double)(X)
    assert torch.equal(graph(X + 1), double(X + 1))
