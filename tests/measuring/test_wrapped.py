"""DTensors inside a tensor subclass, and local shards that a collective has not filled yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate
from torch.testing._internal.two_tensor import TwoTensor

from pytest_dtdispatch.core.measurement import Measurement, State
from tests.measuring.runs import Make, captured

pytestmark = pytest.mark.torch


def measured_and_result(run: Callable[[], Any]) -> tuple[Any, tuple[Measurement, ...]]:
    results: list[Any] = []
    book = captured(lambda: results.append(run()))
    return results[0], book.measurements()


def test_ops_on_dtensors_inside_a_subclass_are_measured(shard: Make) -> None:
    a, b = shard(8, 8), shard(8, 8)
    pair = TwoTensor(a, b)
    result, measured = measured_and_result(lambda: pair + pair)
    assert [(each.op, each.calls) for each in measured] == [("add.Tensor", 2)]
    assert measured[0].of(State.MISS)
    assert measured[0].of(State.HIT)
    assert torch.equal(result.a.to_local(), (a + a).to_local())
    assert torch.equal(result.b.to_local(), (b + b).to_local())


def test_a_subclass_without_dtensors_is_left_alone(shard: Make) -> None:
    pair = TwoTensor(torch.ones(4), torch.zeros(4))
    result, measured = measured_and_result(lambda: pair + pair)
    assert measured == ()
    assert torch.equal(result.a, torch.full((4,), 2.0))


def test_a_shard_that_was_not_waited_for_has_a_row_of_its_own(shard: Make) -> None:
    a = shard(8, 8)
    waiting = a.redistribute(placements=[Replicate()], async_op=True)
    ready = a.redistribute(placements=[Replicate()])
    book = captured(lambda: (waiting + waiting, ready + ready, waiting + ready))
    measured = book.measurements()
    assert [(each.label, each.calls) for each in measured] == [
        ("add.Tensor(f32[8,8]R async, f32[8,8]R async)@4", 1),
        ("add.Tensor(f32[8,8]R, f32[8,8]R)@4", 1),
        ("add.Tensor(f32[8,8]R async, f32[8,8]R)@4", 1),
    ]
    assert all(each.of(State.HIT) for each in measured)
