"""Local rows: there where an op is the same computation on its local shards, else absent with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate

from pytest_dtdispatch.core.measurement import Measurement, State

pytestmark = pytest.mark.torch

Make = Callable[..., Any]
Capture = Callable[..., dict[str, Measurement]]

SAME: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "add": ("add.Tensor", lambda a: a + a),
    "view": ("view.default", lambda a: a.view(4, 16)),
    "add_": ("add_.Tensor", lambda a: a.add_(1)),
    "uniform_": ("uniform_.default", lambda a: a.uniform_()),
    "foreach": ("_foreach_add.List", lambda a: torch._foreach_add([a], [a])),
}


@pytest.mark.parametrize(("op", "body"), SAME.values(), ids=SAME)
def test_an_op_that_does_the_same_on_its_shards_has_a_local_row(
    shard: Make, capture: Capture, op: str, body: Callable[[Any], Any]
) -> None:
    a = shard(8, 8)
    measured = capture(lambda: body(a), rounds=2, repeat=3)[op]
    local = measured.of(State.LOCAL)
    assert local is not None
    assert len(local.ns) == 6
    assert measured.overhead_ns is not None
    assert measured.notes == ()


OTHER: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "mm of two Shard(0)": ("mm.default", lambda a: a @ a, "redistributes (all_gather_into_tensor.default"),
    "equal": ("equal.default", lambda a: torch.equal(a, a), "redistributes (allreduce_.default)"),
    "is_same_size": ("is_same_size.default", lambda a: a.is_same_size(a), "runs 0 ops on local shards"),
    "argmax": ("argmax.default", lambda a: a.argmax(1), "ops on local shards (view_as.default, max.dim"),
}


@pytest.mark.parametrize(("op", "body", "reason"), OTHER.values(), ids=OTHER)
def test_an_op_that_does_something_else_has_none_and_says_why(
    shard: Make, capture: Capture, op: str, body: Callable[[Any], Any], reason: str
) -> None:
    a = shard(8, 8)
    measured = capture(lambda: body(a))[op]
    assert measured.of(State.LOCAL) is None
    assert measured.overhead_ns is None
    assert any(note.startswith("no local row: ") and reason in note for note in measured.remarks)


def test_a_mixed_foreach_whose_shards_are_the_same_tensors_has_a_local_row(
    shard: Make, capture: Capture
) -> None:
    lists = [shard(8, 8), shard(8, 8, placement=Replicate())]
    measured = capture(lambda: torch._foreach_mul_(lists, 2.0))["_foreach_mul_.Scalar"]
    assert measured.of(State.LOCAL) is not None
