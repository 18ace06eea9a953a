"""Calls of ops in Python rebuild equal calls; other calls are marked."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from traceback import walk_stack
from typing import Any

import pytest
import torch
from torch import device
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.meshes.groups import fake_mesh
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.report.repro import PYTHON
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.torchapi import python_calls
from pytest_dtdispatch.torchapi.calls import OpCall
from pytest_dtdispatch.torchapi.ops import tree_leaves
from pytest_dtdispatch.torchapi.python_calls import call_in_python
from tests.probes import head_product_error

pytestmark = pytest.mark.torch
aten = torch.ops.aten


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    with fake_mesh((2, 2), dim_names=("dp", "tp")) as found:
        yield found


def local(mesh: DeviceMesh, tensor: torch.Tensor, *placements: Any, **full: Any) -> DTensor:
    return DTensor.from_local(tensor, mesh, placements, run_check=False, **full)


def arguments_of(
    mesh: DeviceMesh, func: Any, *args: Any, **kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Rebuild a call from its Python, and return its arguments; tensors become their properties."""
    parts = call_in_python(OpCall(func, args, kwargs))
    assert all(map(PYTHON.fullmatch, parts.values())), parts
    numbers = list[int]()

    def tensor(number: int, *properties: Any, value: int = 1) -> tuple[Any, ...]:
        numbers.append(number)
        return properties

    def partial(op: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        assert op is func
        return args, kwargs

    names = {"torch": torch, "device": device, "inf": inf, "nan": nan, "tensor": tensor, "partial": partial}
    names |= {"Shard": Shard, "Replicate": Replicate, "Partial": Partial, "_StridedShard": _StridedShard}
    found: tuple[tuple[Any, ...], dict[str, Any]] = eval(f"partial({parts['call']})", names)
    tensors = [each for each in tree_leaves([args, kwargs]) if isinstance(each, torch.Tensor)]
    assert [[*map(id, tensors)].index(id(each)) for each in tensors] == [
        numbers.index(each) for each in numbers
    ]
    return found


def test_integers_with_a_zero_are_zeros(mesh: DeviceMesh) -> None:
    """An index of a dimension of size 1 is 0, and a divisor is not."""
    table = local(mesh, torch.rand(1, 4), Replicate(), Replicate())
    for index, is_zero in ((torch.zeros(2, dtype=torch.int64), True), (torch.tensor([1, 2]), False)):
        text = call_in_python(OpCall(aten.embedding.default, (table, index)))["call"]
        assert text.endswith(", value=0)") is is_zero
        assert PYTHON.fullmatch(text)


def test_stack_of_a_script_leaves_frames_to_torch(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_calls, "walk_stack", lambda _: [*walk_stack(None)] * 99)
    a = local(mesh, torch.rand(4, 4), Shard(0), Replicate())
    assert call_in_python(OpCall(aten.neg.default, (a,)))["frames"] == "800"


def properties(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, DTensor):
        return tensor.dtype, tuple(tensor.shape), tensor.stride()
    own = tensor.to_local()
    return (
        own.dtype,
        tuple(own.shape),
        own.stride(),
        [*tensor.placements],
        tuple(tensor.shape),
        tensor.stride(),
    )


@pytest.mark.parametrize(
    "placements",
    [
        (Shard(0), Replicate()),
        (Shard(1), Shard(0)),
        (Partial("max"), Partial("max")),
        (Replicate(), Shard(1)),
    ],
)
def test_tensor_has_its_shapes_strides_and_placements(mesh: DeviceMesh, placements: Any) -> None:
    shard = local(mesh, torch.rand(6, 4).t(), *placements)
    assert arguments_of(mesh, aten.add.Tensor, shard, shard) == ((properties(shard),) * 2, {})


def test_uneven_strided_and_empty_shards_are_recorded(mesh: DeviceMesh) -> None:
    uneven = distribute_tensor(torch.rand(3, 5), mesh, [Shard(1), Shard(0)])
    expanded = local(mesh, torch.rand(1, 4).expand(6, 4), Replicate(), Replicate())
    strided = local(mesh, torch.rand(2, 4), _StridedShard(0, split_factor=2), Shard(0))
    empty = local(mesh, torch.rand(0, 4), Shard(0), Replicate(), shape=torch.Size((1, 4)), stride=(4, 1))
    for tensor in (uneven, expanded, strided, empty):
        assert arguments_of(mesh, aten.neg.default, tensor) == ((properties(tensor),), {})


def test_other_arguments_keep_their_values(mesh: DeviceMesh) -> None:
    a = local(mesh, torch.rand(4, 4), Shard(0), Replicate())
    plain = torch.zeros(2, dtype=torch.int64)
    found, _ = arguments_of(mesh, aten.index_put.default, a, [None, plain], a)
    assert found == (properties(a), [None, properties(plain)], properties(a))
    values: dict[str, Any] = {
        "dtype": torch.float64,
        "device": device("cpu"),
        "memory_format": torch.preserve_format,
    }
    assert arguments_of(mesh, aten._to_copy.default, a, **values)[1] == values
    scalars = [-inf, 1e-05, True, None, "mean", -3, [1, 2]]
    assert [*arguments_of(mesh, aten.add.Tensor, a, *scalars)[0][1:]] == scalars


def test_mesh_and_rank_are_recorded(mesh: DeviceMesh) -> None:
    a = local(mesh["tp"], torch.rand(4, 4), Shard(0))
    parts = call_in_python(OpCall(aten.neg.default, (a,)))
    assert parts["group"] == "rank=0, world_size=2"
    assert parts["mesh"] == "'cpu', (2,), mesh_dim_names=('tp',)"
    assert int(parts["frames"]) > 30


def test_strided_shards_of_a_view_are_marked(mesh: DeviceMesh) -> None:
    """Torch plans them unlike strided shards from ``from_local``, where it has them at all."""
    if missing := head_product_error(mesh["tp"]):  # which flattens a sharded dimension too
        pytest.skip(missing)
    flat: Any = local(mesh, torch.rand(2, 4, 8), Replicate(), Shard(1)).flatten(0, 1)
    text = call_in_python(OpCall(aten.neg.default, (flat,)))["call"]
    assert bool(PYTHON.fullmatch(text)) is (_StridedShard not in map(type, flat.placements))


@pytest.mark.parametrize(
    ("case", "marked"),
    [
        ("generator", "<torch._C.Generator object"),
        ("subclass", "<a Two on cpu in a Two: None>"),
        ("mask", "in a DTensor"),
        ("mesh", "<a DTensor on another mesh"),
        ("spec", "with a spec that DTensor.from_local does not create>"),
        ("values", "<the values for aten.nonzero.default>"),
        ("selected", "<the values for aten.index_put.default>"),
        ("conjugate", "<a view of conjugated or negated elements>"),
        ("sparse", "<a Tensor on cpu"),
        ("namespace", "torch.ops._c10d_functional.wait_tensor.default"),
    ],
)
def test_call_that_cannot_be_built_is_marked(mesh: DeviceMesh, case: str, marked: str) -> None:
    class Two(torch.Tensor):
        pass

    class Mask(Partial):
        pass

    a = local(mesh, torch.rand(4, 4), Shard(0), Replicate())
    conjugate = torch.rand(2, dtype=torch.complex64).conj()
    resized = local(mesh, torch.rand(4, 4), Replicate(), Replicate())
    resized.data = local(mesh, torch.rand(2, 2), Replicate(), Replicate())
    calls: dict[str, OpCall] = {
        "generator": OpCall(aten.uniform_.default, (a,), {"generator": torch.Generator()}),
        "subclass": OpCall(aten.add.Tensor, (a, torch.rand(4).as_subclass(Two))),
        "mask": OpCall(aten.neg.default, (local(mesh, torch.rand(4), Mask(), Replicate()),)),
        "mesh": OpCall(aten.add.Tensor, (a, local(mesh["tp"], torch.rand(4, 4), Shard(0)))),
        "spec": OpCall(aten.neg.default, (resized,)),
        "sparse": OpCall(aten.add.Tensor, (a, torch.eye(4).to_sparse())),
        "values": OpCall(aten.nonzero.default, (a,)),
        "selected": OpCall(aten.index_put.default, (a, [a > 0], torch.rand(3))),
        "conjugate": OpCall(aten.neg.default, (local(mesh, conjugate, Shard(0), Replicate()),)),
        "namespace": OpCall(torch.ops._c10d_functional.wait_tensor.default, (a,)),
    }
    text = call_in_python(calls[case])["call"]
    assert marked in text
    assert not PYTHON.fullmatch(text)


def test_error_of_a_signal_handler_is_raised(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    class LateError(Exception):
        pass

    def interrupted(*args: object) -> str:
        raise LateError

    monkeypatch.setattr(python_calls, "local_of", interrupted)
    a = local(mesh, torch.rand(4, 4), Shard(0), Replicate())
    with pytest.raises(LateError), SignatureCapture(ResultStore(), Plan(rounds=1, repeat=1)):
        a + a
