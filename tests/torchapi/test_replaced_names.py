"""Replaced attributes of torch are those of an unmeasured run, to tables, pickle, modes and errors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
import torch.distributed.fsdp
import torch.distributed.tensor.debug
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_dtdispatch import StepWatch
from pytest_dtdispatch.replay.modes import UnnoticedMode
from pytest_dtdispatch.steps.counter import CallNotes, StepCounter
from pytest_dtdispatch.torchapi.observe import CONVERTERS, POINTS, Point, around
from pytest_dtdispatch.torchapi.ops import hidden_from_constructors
from pytest_dtdispatch.torchapi.reads import METHODS

pytestmark = pytest.mark.torch

POINTS_BY_NAME: dict[str, Point] = {
    **POINTS,
    **{f"{each.name} {point.names[0]}": point for point, each in CONVERTERS.items()},
    **{name: point for point, name in METHODS.items()},
    "constructor": Point(("torch",), "Tensor", ("__new__",)),
}
NAMES = [f"{key}: {name}" for key, point in POINTS_BY_NAME.items() for _, name in point.attributes()]
# Attributes of objects, functions in C, and cached functions: a replacement that equals the original.
EQUAL_ONLY = {
    *("native_miss", "native_clear", "propagation", "python_cache", "tensor_meta", "implied", "constructor"),
    "included_keys",
    *(
        "compiled_code: _maybe_set_eval_frame",
        "planning: _gen_transform_infos",
        "collective_output: _wrap_tensor_autograd",
    ),
}


@contextmanager
def everything_replaced() -> Iterator[None]:
    """Replace every name that any measurement replaces."""

    def passed(inner: Any, *args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(StepCounter())
        stack.enter_context(around(dict.fromkeys(POINTS, passed)))
        stack.enter_context(hidden_from_constructors(UnnoticedMode))
        yield


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a call, or the text of its error."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Facts(NamedTuple):
    """Observable properties of an attribute."""

    in_table: str | None
    name: str | None
    resolved: str | None
    pickled: Any
    without_arguments: Any
    unknown_keyword: Any
    too_many: Any


def facts(value: Any, table: dict[Any, str]) -> Facts:
    """Return the observable properties of an attribute."""
    return Facts(
        table.get(value),
        getattr(value, "__qualname__", None),
        resolve_name(value),
        outcome(pickle.dumps, value),
        outcome(value),
        outcome(value, no_such_argument=1),
        outcome(value, *range(30)),
    )


def attribute(name: str) -> Any:
    key, _, attribute = name.partition(": ")
    owners = {found: owner for owner, found in POINTS_BY_NAME[key].attributes()}
    return getattr(owners[attribute], attribute)


class Compared(NamedTuple):
    """An attribute and its properties, before and while every name is replaced."""

    original: Any
    before: Facts
    inside: Any
    during: Facts


@pytest.fixture(scope="module")
def compared() -> dict[str, Compared]:
    """Replace every name once."""
    originals = {name: attribute(name) for name in NAMES}
    tables = {name: {original: "found"} for name, original in originals.items()}
    before = {name: facts(original, tables[name]) for name, original in originals.items()}
    with everything_replaced():
        inside = {name: attribute(name) for name in NAMES}
        during = {name: facts(inside[name], tables[name]) for name in NAMES}
    return {name: Compared(originals[name], before[name], inside[name], during[name]) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_replaced_name_equals_the_original(name: str, compared: dict[str, Compared]) -> None:
    original, before, inside, during = compared[name]
    if name.startswith("compiled_code"):  # replaced only in repetitions
        before, during = before._replace(pickled=None), during._replace(pickled=None)
    assert during == before
    assert before.in_table == "found"
    assert attribute(name) == original == inside
    if name not in EQUAL_ONLY and name.partition(":")[0] not in EQUAL_ONLY:
        assert inside is original or inside.__func__ is original.__func__


class Recording(TorchFunctionMode):
    """Mode that records all functions it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Logged(torch.Tensor):
    """Subclass that records all functions it receives."""

    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(  # type: ignore[no-untyped-call]
            func, types, args, kwargs or {}
        )


def transfers(mesh: DeviceMesh) -> None:
    """Read, wrap, redistribute, unwrap and reduce, in forward and backward."""
    local = torch.rand(4, 4, requires_grad=True)
    sharded: Any = DTensor.from_local(local, mesh, [Shard(0)])
    whole = sharded.redistribute(placements=[Replicate()])
    (whole @ whole.t()).to_local().sum().backward()
    for each in (sharded.detach(), local.detach()):
        each.cpu()
        each.sum().item()
    local.detach().tolist()
    local.detach().numpy()
    local.detach().nonzero()
    repr(local)
    torch.distributed.all_reduce(local.detach())
    weight = torch.nn.Parameter(torch.rand(4, 4))
    optimizer = torch.optim.Adam([weight])
    (weight * local.detach()).sum().backward()
    optimizer.step()
    distribute_tensor(torch.rand(4, 4), mesh, [Shard(0)])


def reads_of_a_subclass(mesh: DeviceMesh) -> None:
    x = torch.ones(2, 2).as_subclass(Logged)
    for read in (x.cpu, x.tolist, x.sum().item, x.nonzero, x.__repr__):
        read()
    DTensor.from_local(x, mesh, [Shard(0)]).to_local()
    torch.distributed.all_reduce(x)


@contextmanager
def counted() -> Iterator[None]:
    with StepCounter() as counter:
        yield
        counter.lap()


@contextmanager
def noted() -> Iterator[None]:
    with StepCounter() as counter, CallNotes(counter):
        yield


@contextmanager
def watched() -> Iterator[None]:
    with StepWatch(list[str]().append):
        yield


class Open(TorchDispatchMode):
    """Mode below which torch 2.9 shows collectives to function modes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("measured", "plain"), [(counted, nullcontext), (noted, Open), (watched, Open)])
def test_modes_and_subclasses_see_an_unmeasured_run(mesh: DeviceMesh, measured: Any, plain: Any) -> None:
    def seen() -> list[Any]:
        Logged.seen.clear()
        with Recording() as mode:
            transfers(mesh)
        reads_of_a_subclass(mesh)
        return [*mode.seen, *Logged.seen]

    seen()
    with plain():
        unmeasured = seen()
    with measured():
        assert seen() == unmeasured
    assert len(unmeasured) > 50
