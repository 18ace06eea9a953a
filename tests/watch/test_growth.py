"""Growth of live objects is reported after garbage collection; constant numbers are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from pytest_dtdispatch.steps.growth import DTENSORS, SPECS
from pytest_dtdispatch.watch.step_watch import Growth

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap")]


def found(live: Callable[[int], int]) -> tuple[list[str], str]:
    now = 0
    growth = Growth(0, lambda: Counter({SPECS: live(now)}))
    reported = []
    for now in range(1, 101):
        if text := growth.check(now):
            reported.append(f"{now}: {text}")
    return reported, growth.so_far(100, has_misses=False)


def test_steady_growth_is_reported_at_doubling_intervals() -> None:
    reported, so_far = found(lambda step: step)
    assert reported == [
        "16: live objects grow: +16 sharding specs since step 0",
        "32: live objects grow: +32 sharding specs since step 0",
        "64: live objects grow: +64 sharding specs since step 0",
    ]
    assert so_far == "live objects grow: +100 sharding specs since step 0"


def test_single_or_fluctuating_growth_is_ignored() -> None:
    assert found(lambda step: 5 * (step > 3)) == ([], "")
    assert found(lambda step: step % 7) == ([], "")


def test_specs_of_a_miss_are_no_growth() -> None:
    """A miss adds several specs, which are many in a loop of a few steps."""
    live = Counter({SPECS: 10, DTENSORS: 3})
    growth = Growth(2, lambda: live)
    live = Counter({SPECS: 43, DTENSORS: 3})
    assert growth.so_far(8, has_misses=True) == ""
    assert growth.so_far(8, has_misses=False) == "live objects grow: +33 sharding specs since step 2"
    live = Counter({SPECS: 43, DTENSORS: 9})
    assert growth.so_far(8, has_misses=True).startswith("live objects grow: +33 sharding specs, +6 DTensors")
