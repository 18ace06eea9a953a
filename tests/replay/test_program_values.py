"""Values of a program that raise when inspected, and what the program's modes observe of measuring."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.replay.replay import Replay
from pytest_dtdispatch.replay.storages import Storages
from pytest_dtdispatch.rounds.timing import no_op
from pytest_dtdispatch.steps.measure import run_and_count, shape_of
from pytest_dtdispatch.steps.model import StepCalls
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.measured_runs import NamingMode, captured, measured_call

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]


@pytest.fixture
def a(mesh: DeviceMesh) -> torch.Tensor:
    return distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)])


def stale_view() -> torch.Tensor:
    base = torch.rand(4)
    with torch.no_grad():
        view = base.view(2, 2)
    base.mul_(torch.rand(4, requires_grad=True))
    with pytest.raises(RuntimeError, match="no_grad mode"):
        _ = view.grad_fn
    return view


class Unanswering(torch.Tensor):
    """A tensor whose every attribute raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Unflattening(torch.Tensor):
    """A tensor whose __tensor_flatten__ raises."""

    def __tensor_flatten__(self) -> Any:
        raise RuntimeError("no inner tensors")


class Overridden(torch.Tensor):
    """A tensor subclass that refuses all torch functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(func.__name__)


def symbolic() -> torch.Tensor:
    return FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(3, 4))


def wrapped_by(transform: Callable[..., Any]) -> torch.Tensor:
    stored: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        stored.append(x)
        return x.sum()

    transform(keep)(torch.ones(2, 3))
    return stored[0]


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "stale view": stale_view,
    "sparse": lambda: torch.eye(2).to_sparse(),
    "nested": nested,
    "meta": lambda: torch.empty(2, 2, device="meta"),
    "symbolic": symbolic,
    "of grad": partial(wrapped_by, torch.func.grad),
    "of vmap": partial(wrapped_by, torch.vmap),
    "without attributes": lambda: torch.ones(2).as_subclass(Unanswering),
    "without inner tensors": lambda: torch.ones(2).as_subclass(Unflattening),
    "without functions": lambda: torch.ones(2).as_subclass(Overridden),
    "uninitialized": nn.UninitializedParameter,
}


@pytest.mark.parametrize("kind", KINDS)
def test_undescribable_tensor_is_skipped(kind: str, a: torch.Tensor) -> None:
    alive = KINDS[kind]()
    _, figures = measured_call(lambda: a + a)
    assert {samples.state for samples in figures.samples} == {State.MISS, State.HIT}
    del alive


@pytest.mark.parametrize("kind", KINDS)
def test_undescribable_tensor_passes_through_call(kind: str, a: torch.Tensor) -> None:
    value = KINDS[kind]()
    result, figures = measured_call(lambda x: (a + a, x)[1], value)
    assert result is value
    assert figures.samples


@pytest.mark.parametrize("kind", KINDS)
def test_undescribable_input_has_a_line(kind: str) -> None:
    assert shape_of(KINDS[kind]())


class Target:
    """Referent of a weak proxy."""


class Lying:
    """An object whose every attribute raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def dead_proxy() -> Any:
    return weakref.proxy(Target())


def endless_list() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize("make", [dead_proxy, Lying, endless_list])
def test_value_that_raises_passes_through(make: Callable[[], Any], a: torch.Tensor) -> None:
    value = make()
    result, figures = measured_call(lambda x: (a + a, x)[1], value)
    assert result is value
    assert figures.samples
    counted = run_and_count(StepCalls("step", lambda: (a + a, value), 1, 2))
    assert len(counted.steps) == 2


class Nameless(Exception):  # noqa: N818 (as a user's may be called)
    """An error that cannot be described."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_error_of_repetition_may_have_no_text() -> None:
    calls: list[int] = []

    def fail_later() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise Nameless

    _, figures = measured_call(fail_later)
    assert figures.notes == ("repeating it raised Nameless",)


def test_optimizer_without_state_is_skipped(a: torch.Tensor) -> None:
    broken = torch.optim.SGD.__new__(torch.optim.SGD)  # like an optimizer whose __init__ raised
    assert not hasattr(broken, "state")
    _, figures = measured_call(lambda: a + a)
    assert figures.samples


def test_module_without_hash_is_named(a: torch.Tensor) -> None:
    class Equal(nn.Module):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not comparable")

        def forward(self) -> torch.Tensor:
            return a + a

    counted = run_and_count(StepCalls("step", Equal(), 0, 1))
    assert [event.place.module for event in counted.steps[0].events if event.place] == ["Equal"]


@pytest.mark.parametrize("kind", ["symbolic", "of vmap", "without attributes", "uninitialized"])
def test_write_to_undescribable_tensor_runs_once(kind: str) -> None:
    replay = Replay([], Storages())
    replay.save(KINDS[kind]())
    replay.settle()
    assert "writes to a wrapped tensor" in str(replay.skip_reason)


class Naming(TorchFunctionMode):
    """Records every torch function that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def program(mesh: DeviceMesh) -> None:
    b = distribute_tensor(torch.rand(8, 8), mesh, [Shard(1)])
    c: Any = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)]).requires_grad_() + b
    c.redistribute(placements=[Replicate()]).sum().backward()
    c.full_tensor()


def test_function_mode_sees_only_the_program(mesh: DeviceMesh) -> None:
    """The reference run also has an open mode and cold caches, because torch then calls more functions."""
    program(mesh)
    with NamingMode(ShardingCaches().clear_all), Naming() as plain:
        program(mesh)

    def body() -> None:
        with measured:
            program(mesh)

    measured = Naming()
    captured(body)
    assert measured.names == plain.names


def test_debug_mode_sees_only_the_program(mesh: DeviceMesh) -> None:
    debug_mode = pytest.importorskip("torch.utils._debug_mode").DebugMode

    def recorded(run: Callable[[Callable[[], None]], Any]) -> str:
        torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
        mode = debug_mode()

        def body() -> None:
            with mode:
                program(mesh)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DebugMode hides DTensor ops
            run(body)
        return str(mode.debug_string())

    assert recorded(captured) == recorded(lambda body: body())


def test_versions_after_conversions_match_plain_run(mesh: DeviceMesh) -> None:
    def versions() -> list[int]:
        x: Any = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)])
        shared = x.redistribute(placements=[Replicate()])
        full = x.full_tensor()
        return [x._local_tensor._version, shared._local_tensor._version, full._version]

    found: list[list[int]] = [versions()]
    captured(lambda: found.append(versions()))
    assert found[1] == found[0]
    assert any(found[0])


@pytest.fixture
def library() -> Iterator[Any]:
    with torch.library._scoped_library("dtdispatch_values", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")  # no autograd except that of the product
        yield torch.ops.dtdispatch_values.twice


def test_op_without_autograd_kernel_has_gradient(library: Any, mesh: DeviceMesh) -> None:
    x = torch.ones(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of such ops, also in a plain run
        captured(lambda: library(x).sum().backward())
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def embedded(mesh: DeviceMesh, between: Callable[[], object] = no_op) -> tuple[Any, Any]:
    ids = distribute_tensor(torch.zeros(4, 2, dtype=torch.long), mesh, [Replicate()])

    def embed() -> Any:
        return nn.functional.embedding(ids, distribute_tensor(torch.rand(12, 29), mesh, [Shard(0)]))

    first = embed()
    first.full_tensor()
    between()
    second = embed()
    first.full_tensor()  # with the mask of the second embedding
    return first.placements[0].mask_buffer, second.placements[0].mask_buffer


@pytest.mark.parametrize("ops", [(), ("add.Tensor",)])
def test_embeddings_share_their_mask(ops: tuple[str, ...], a: torch.Tensor, mesh: DeviceMesh) -> None:
    buffers: list[Any] = []
    captured(lambda: buffers.extend(embedded(mesh, lambda: a + a)), *ops)
    assert buffers[0] is buffers[1]
