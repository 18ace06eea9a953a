"""What one call makes the dispatcher do, counted as a step is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_dtdispatch.compare.model import CallCounts
from pytest_dtdispatch.steps.model import StepCounts, Steps


def count_call(call: Callable[[], Any]) -> CallCounts:
    """Make a call, and count what it does."""
    __tracebackhide__ = True
    from pytest_dtdispatch.steps.measure import CountedRegion

    found: list[Steps] = []
    with CountedRegion("call", found.append):
        call()
    return call_counts(found[0].steps[0])


def call_counts(counts: StepCounts) -> CallCounts:
    """Take what a comparison shows from the counts of a step."""
    return CallCounts(counts.misses, counts.redistributes, counts.collective_calls, len(counts.wraps))
