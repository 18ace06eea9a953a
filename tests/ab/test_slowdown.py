"""A call that is slowed takes longer, and returns what it returned."""

from __future__ import annotations

import time

import pytest

from pytest_dtdispatch.ab.slowdown import slowed


def spin(ns: int) -> int:
    end = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < end:
        pass
    return ns


def took_ns(share: float, overhead_ns: float | None = None) -> int:
    slow = slowed(spin, share, overhead_ns)
    start = time.perf_counter_ns()
    assert slow(1_000_000) == 1_000_000
    return time.perf_counter_ns() - start


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_a_call_takes_longer_by_at_least_the_share(share: float) -> None:
    assert took_ns(share, overhead_ns=0) >= 1_000_000 * (1 + share)


def test_what_the_wrapper_takes_is_measured_and_not_waited_for_twice() -> None:
    """The wrapper takes less than a tenth of a millisecond: most of the share is still waited for."""
    assert took_ns(0.5) >= 1_400_000


def test_an_error_comes_through() -> None:
    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        slowed(fails, 0.5)()
