"""Measuring has no side effects on ops of torch's database, in a capture or in a call."""

from __future__ import annotations

import sys

import pytest
from torch.distributed.device_mesh import DeviceMesh

from tests.sweep.compare import Compared
from tests.sweep.sweeping import described, sampled, sliced, slices, summary, sweep

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def assert_nothing_differs(compared: Compared) -> None:
    __tracebackhide__ = True
    if differences := described(compared):
        pytest.fail("\n".join((summary(compared), *differences[:40])), pytrace=False)


def test_measuring_changes_no_op_of_a_sample(mesh: DeviceMesh) -> None:
    compared = sweep(sampled(every=480), mesh)
    assert_nothing_differs(compared)
    assert compared.cases > 60


@pytest.mark.sweep
@pytest.mark.parametrize("number", slices())
def test_measuring_changes_no_op(mesh: DeviceMesh, number: int) -> None:
    compared = sweep(sliced(number), mesh)
    print(f"\nslice {number}: {summary(compared)}", file=sys.__stdout__)
    assert_nothing_differs(compared)
