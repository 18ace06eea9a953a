"""Local rows: present if an op runs the same computation on its local shards, else absent with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.torchapi.signatures import dtype_text, placement_text
from tests.conftest import Capture
from tests.measured_runs import Make
from tests.probes import has_rule

pytestmark = pytest.mark.torch


def skip_without_rule(op: str) -> None:
    if op != "is_same_size.default" and not has_rule(op):  # needs no sharding rule
        pytest.skip(f"DTensor has no sharding rule of {op}")


SAME: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "add": ("add.Tensor", lambda a: a + a),
    "view": ("view.default", lambda a: a.view(4, 16)),
    "add_": ("add_.Tensor", lambda a: a.add_(1)),
    "uniform_": ("uniform_.default", lambda a: a.uniform_()),
    "foreach": ("_foreach_add.List", lambda a: torch._foreach_add([a], [a])),
}


@pytest.mark.parametrize("name", SAME)
def test_op_that_dispatches_to_itself_has_local_row(shard: Make, capture: Capture, name: str) -> None:
    a, (op, body) = shard(8, 8), SAME[name]
    measured = capture(lambda: body(a), rounds=2, repeat=3)[op]
    local = measured.of(State.LOCAL)
    assert local is not None
    assert len(local.ns) == 6
    assert measured.overhead_ns is not None
    assert measured.figures.notes == ()


OTHER: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "mm of two Shard(0)": ("mm.default", lambda a: a @ a, "redistributes (all_gather_into_tensor.default"),
    "equal": ("equal.default", lambda a: torch.equal(a, a), "redistributes (all"),
    "is_same_size": ("is_same_size.default", lambda a: a.is_same_size(a), "runs 0 ops on local shards"),
    "argmax": ("argmax.default", lambda a: a.argmax(1), "ops on local shards (view_as.default, max.dim"),
}


@pytest.mark.parametrize("name", OTHER)
def test_op_that_dispatches_differently_notes_missing_local_row(
    shard: Make, capture: Capture, name: str
) -> None:
    a, (op, body, reason) = shard(8, 8), OTHER[name]
    skip_without_rule(op)
    measured = capture(lambda: body(a))[op]
    assert measured.of(State.LOCAL) is None
    assert measured.overhead_ns is None
    assert any(note.startswith("no local row: ") and reason in note for note in measured.figures.remarks)


CASES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "scalar": (lambda a: a + 2.5, "add.Tensor(f32[8,8]S0)@4"),
    "default ints": (lambda a: a.argmax(), "argmax.default(f32[8,8]S0)@4"),
    "int": (lambda a: a.select(1, 2), "select.int(f32[8,8]S0, dim=1, index=2)@4"),
    "ints": (lambda a: a.view(4, 16), "view.default(f32[8,8]S0, size=[4,16])@4"),
    "int and flag": (
        lambda a: a.sum(1, keepdim=True),
        "sum.dim_IntList(f32[8,8]S0, dim=[1], keepdim=True)@4",
    ),
    "dtype": (lambda a: a.sum(1, dtype=torch.float64), "sum.dim_IntList(f32[8,8]S0, dim=[1], dtype=f64)@4"),
    "list of equal tensors": (
        lambda a: torch._foreach_mul([a, a, a], 2.0),
        "_foreach_mul.Scalar([f32[8,8]S0*3])@4",
    ),
    "list of tensors": (lambda a: torch.stack([a, a.detach()]), "stack.default([f32[8,8]S0*2])@4"),
    "out": (
        lambda a: torch.mul(a, a, out=torch.empty_like(a)),
        "mul.out(f32[8,8]S0, f32[8,8]S0, f32[8,8]S0)@4",
    ),
    "string": (lambda a: F.gelu(a, approximate="tanh"), "gelu.default(f32[8,8]S0, approximate=tanh)@4"),
    "list with a missing tensor": (
        lambda a: a.redistribute(placements=[Replicate()])[:, whole(a, torch.arange(4))],
        "index.Tensor(f32[8,8]R, [-, i64[4]R])@4",
    ),
}


def whole(a: Any, values: torch.Tensor) -> DTensor:
    return DTensor.from_local(values, a.device_mesh, [Replicate()])


@pytest.mark.parametrize("name", CASES)
def test_argument_that_selects_a_plan_is_named(shard: Make, capture: Capture, name: str) -> None:
    a, (body, expected) = shard(8, 8), CASES[name]
    skip_without_rule(expected.partition("(")[0])
    measured = capture(lambda: body(a), rounds=1, repeat=1)
    assert expected in [measurement.full_label for measurement in measured.values()]


def test_calls_with_different_scalars_share_a_row(shard: Make, capture: Capture) -> None:
    a = shard(8, 8)
    [add] = capture(lambda: (a + 1.5, a + 2.5)).values()
    assert add.calls == 2


class Odd(Shard):
    def __str__(self) -> str:
        return "Odd"


def test_placements_and_dtypes_have_short_names() -> None:
    placements = (Shard(12), Replicate(), Partial(), Partial("max"), Odd(0))
    assert [placement_text(each) for each in placements] == ["S12", "R", "P", "P(max)", "<Odd>"]
    dtypes = torch.bfloat16, torch.float8_e4m3fn
    assert [dtype_text(each) for each in dtypes] == ["bf16", "float8_e4m3fn"]
