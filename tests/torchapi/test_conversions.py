"""Conversions of DTensors are told of as they happen, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.torchapi.hooks import Converter, watching_conversions

pytestmark = pytest.mark.torch


class Notes:
    """A watcher that notes what it is told of, a conversion inside of another one indented."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._depth = 0

    def on_conversion(
        self, converter: Converter, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        backward = " backward" * converter.is_backward
        self.told.append(f"{'  ' * self._depth}{converter.what}: {converter.name}{backward}")
        self._depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            self._depth -= 1


def told_of(work: Callable[[], object], notes: Notes | None = None) -> list[str]:
    notes = notes or Notes()
    with watching_conversions(notes):
        work()
    return notes.told


def test_conversions_forward_and_backward(mesh: DeviceMesh) -> None:
    leaf = torch.rand(4, 4, requires_grad=True)

    def work() -> None:
        whole: Any = DTensor.from_local(leaf, mesh, [Shard(0)]).redistribute(placements=[Replicate()])
        whole.to_local().sum().backward()

    told = told_of(work)
    inside = [line for line in told if line.startswith(" ")]
    assert inside in ([], ["  wrap: from_local"])  # of to_local backward, where torch makes its DTensor so
    assert [line for line in told if line not in inside] == [
        "wrap: from_local",
        "redistribute: redistribute",
        "unwrap: to_local",
        "wrap: to_local backward",
        "redistribute: redistribute backward",
        "unwrap: from_local backward",
    ]
    assert leaf.grad is not None


def test_what_users_call_is_left_as_it_is(mesh: DeviceMesh) -> None:
    held = DTensor.from_local, DTensor.to_local, DTensor.redistribute

    def work() -> None:
        assert (DTensor.from_local, DTensor.to_local, DTensor.redistribute) == held

    assert told_of(work) == []


def test_a_tensor_that_is_distributed(mesh: DeviceMesh) -> None:
    assert told_of(lambda: distribute_tensor(torch.rand(8, 4), mesh, [Shard(0)])) == [
        "wrap: distribute_tensor"
    ]


def test_hooks_are_taken_out_again(mesh: DeviceMesh) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    notes = Notes()
    with pytest.raises(ZeroDivisionError):
        told_of(fail, notes)
    DTensor.from_local(torch.rand(2, 2), mesh, [Shard(0)])
    assert notes.told == []
