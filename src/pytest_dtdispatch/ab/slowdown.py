"""Make every timed call slower by a known share: ``pytest -p pytest_dtdispatch.ab.slowdown``.

The self-test loads it in one side only. The call is timed and then spun out, so that a miss and a hit both
take longer by that share, whatever they take. Plain tensors are left alone: they are the control.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_dtdispatch.ab.model import SLOWER_BY

if TYPE_CHECKING:
    import pytest

    from pytest_dtdispatch.measuring.rounds import Subject

CALIBRATION_CALLS = 2000


def pytest_configure(config: pytest.Config) -> None:
    """Slow whatever is measured in this process, where the environment says by how much."""
    share = float(os.environ.get(SLOWER_BY, "0"))
    if share:
        _slow_all(share)


def _slow_all(share: float) -> None:
    from pytest_dtdispatch.measuring import rounds

    takes_first = rounds.Rounds.__init__

    def init(self: Any, subject: Subject, *args: Any, **kwargs: Any) -> None:
        takes_first(self, replace(subject, fn=slowed(subject.fn, share)), *args, **kwargs)

    rounds.Rounds.__init__ = init  # type: ignore[method-assign]


def slowed(fn: Callable[..., Any], share: float, overhead_ns: float | None = None) -> Callable[..., Any]:
    """Wrap a callable in one that takes longer."""
    clock = time.perf_counter_ns
    if overhead_ns is None:
        overhead_ns = _overhead_ns()
    spent = overhead_ns

    def slow(*args: Any, **kwargs: Any) -> Any:
        start = clock()
        result = fn(*args, **kwargs)
        end = clock()
        until = end + (end - start) * share - spent
        while clock() < until:
            pass
        return result

    return slow


def _overhead_ns() -> float:
    """Measure what the wrapper adds to a call that takes no time."""

    def nothing() -> None:
        pass

    wrapped = slowed(nothing, 0.0, 0.0)
    return _least_ns(wrapped) - _least_ns(nothing)


def _least_ns(fn: Callable[[], Any]) -> int:
    clock = time.perf_counter_ns

    def once() -> int:
        start = clock()
        fn()
        return clock() - start

    return min(once() for _ in range(CALIBRATION_CALLS))
