"""Measuring changes no op of torch's own database, in a capture or in a whole call."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from torch.distributed.device_mesh import DeviceMesh

from tests.sweep.compare import Compared
from tests.sweep.sweeping import described, sampled, sliced, slices, summary, sweep

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def total() -> Iterator[Compared]:
    """Add up what came of each slice, and say it at the end."""
    compared = Compared()
    yield compared
    print(f"\n{summary(compared)}", file=sys.__stdout__)


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
def test_measuring_changes_no_op(mesh: DeviceMesh, total: Compared, number: int) -> None:
    compared = sweep(sliced(number), mesh)
    total.add(compared)
    assert_nothing_differs(compared)
