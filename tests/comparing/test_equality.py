"""Equality of results: position and size of the first difference."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.errors import MeasurementError, UnequalError

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]

ONE = "Tensor-likes are not equal! Mismatched elements: 1 /"


class Odd:
    """A value whose comparison raises."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


class Opaque(torch.Tensor):
    """A tensor subclass whose ``__torch_function__`` raises."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("opaque")


def compare(first: Any, other: Any, **options: Any) -> None:
    DtDispatch().compare({"first": lambda: first, "other": lambda: other}, **options)


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        (torch.zeros(4), torch.tensor([0, 0, 0.5, 0]), f"{ONE} 4 (25.0%) Greatest absolute difference: 0.5"),
        (torch.tensor([1.0, torch.nan]), torch.ones(2), f"{ONE} 2 (50.0%) Greatest absolute difference: n"),
        (torch.tensor([True, False]), torch.tensor([True, True]), f"{ONE} 2 (50.0%) Greatest absolute"),
        (torch.zeros(2), -torch.zeros(2), "only their bytes differ, as for -0.0 and 0.0"),
        (torch.ones(2), torch.ones(2).double(), "f64[2] is not f32[2]"),
        (torch.ones(2), torch.ones(3), "f32[3] is not f32[2]"),
        (torch.ones(2), 1, "1 is not a tensor [2]"),
        ({"a": [torch.ones(2), 3]}, {"a": [torch.ones(2), 4]}, "at result['a'][1], 4 is not 3"),
        ([torch.ones(2), 3], torch.ones(2), "it has values at [''], and not at ['[0]', '[1]']"),
        (None, 3, "3 is not None"),
        (Odd(), Odd(), "a Odd cannot be compared (RuntimeError): pass equal="),
    ],
)
def test_difference_is_described(first: Any, other: Any, message: str) -> None:
    with pytest.raises(UnequalError) as unequal:
        compare(first, other)
    begin = f"compare 'compare': the results of 'other' and 'first' are not equal: {message}"
    assert str(unequal.value).startswith(begin)
    assert "\n" not in str(unequal.value)


@pytest.mark.parametrize(
    "result",
    [
        torch.tensor([torch.nan, 1.0]),
        torch.zeros(0, 3),
        torch.eye(3).to_sparse(),
        torch.tensor(3 + 4j),
        (1, "two", None, float("nan")),
        {"loss": torch.ones((), requires_grad=True) * 2},
    ],
)
def test_equal_results_have_no_difference(result: Any) -> None:
    compare(result, result)


def test_dicts_in_another_order_are_equal() -> None:
    first, other = {"loss": torch.ones(2), "norm": 3}, {"norm": 3, "loss": torch.ones(2)}
    compare(first, other)
    compare(first, other, equal=torch.testing.assert_close)
    with pytest.raises(UnequalError, match=r"at result\['norm'\], 4 is not 3"):
        compare(first, {**other, "norm": 4})


def test_subclass_is_compared_without_its_torch_function() -> None:
    result = torch.ones(2).as_subclass(Opaque)  # created here, because other tests inspect all live tensors
    compare(result, result)


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "NestedTensor"),
        (FakeTensorMode().from_tensor(torch.ones(2)), "FakeTensor"),
    ],
)
def test_tensors_without_plain_contents_are_refused(result: torch.Tensor, kind: str) -> None:
    with pytest.raises(MeasurementError, match=f"'first' returned a {kind} that cannot be compared"):
        compare(result, result)


def split(tensor: torch.Tensor, mesh: DeviceMesh, dim: int) -> DTensor:
    """Create the DTensor of the first rank of a sharded tensor without a collective."""
    return DTensor.from_local(tensor.chunk(mesh.size(), dim)[0], mesh, [Shard(dim)])


def test_dtensors_are_compared_by_value_across_placements(mesh: DeviceMesh) -> None:
    a = torch.rand(8, 8)
    sharded = split(a, mesh, 0)
    compare(sharded, a)
    compare(DTensor.from_local(a, mesh, [Replicate()]), sharded)
    compare(split(a, mesh, 1), sharded)
    compare(DTensor.from_local(a, mesh, [Partial()]), a)
    compare({"a": sharded}, {"a": a}, equal=torch.testing.assert_close)
    with pytest.raises(UnequalError, match="Mismatched elements: 16 / 16"):
        compare(sharded, a + 1)
    with pytest.raises(UnequalError, match="the collectives of a fake process group move no data"):
        compare(sharded, sharded + 1)


@pytest.mark.parametrize(
    ("first", "other", "equal", "message"),
    [
        (torch.ones(2), torch.ones(2) + 1e-7, torch.allclose, ""),
        (torch.ones(2), torch.ones(2) + 1e-7, torch.testing.assert_close, ""),
        (1, 2, lambda first, other: (first, other) == (1, 2), ""),
        (1, 2, lambda first, other: False, "equal= returned false; bit for bit, 2 is not 1"),
        (torch.ones(2), torch.zeros(2), torch.testing.assert_close, "not close! Mismatched elements: 2 / 2"),
        (torch.ones(2), torch.ones(2), torch.eq, "it must return True or False, or raise an AssertionError"),
    ],
)
def test_custom_equality_function_decides(first: Any, other: Any, equal: Any, message: str) -> None:
    with pytest.raises(MeasurementError, match=message) if message else nullcontext():
        compare(first, other, equal=equal)


@pytest.mark.parametrize(
    "lazy", [lambda: map(str, [1]), lambda: (n for n in [1]), lambda: zip([1], strict=True)]
)
def test_lazy_results_are_refused(lazy: Any) -> None:
    with pytest.raises(MeasurementError, match="whose code did not run: return a list"):
        DtDispatch().compare({"list": lambda: [1], "lazy": lazy})
    with pytest.raises(MeasurementError, match="whose code did not run"):
        compare(1, 1, equal=lambda first, other: lazy())


def test_variants_share_random_state_and_results_are_copied() -> None:
    torch.manual_seed(3)
    DtDispatch().compare({"first": lambda: torch.rand(3), "other": lambda: torch.rand(3)})
    left, x = torch.rand(1), torch.ones(2)
    torch.manual_seed(3)
    assert torch.equal(left, torch.rand(4)[3:])
    with pytest.raises(UnequalError, match="Greatest absolute difference: 1"):
        DtDispatch().compare({"first": lambda: x.add_(1), "other": lambda: x.add_(1)})


def test_shapes_of_wrappers_are_compared(mesh: DeviceMesh) -> None:
    values = torch.ones(8)
    wrapped = DTensor.from_local(values, mesh, [Replicate()], shape=torch.Size((1, 8)), stride=(8, 1))
    with pytest.raises(UnequalError, match=r"f32\[8\] is not f32\[1,8\] with 1-dimensional values"):
        compare(wrapped, values)
