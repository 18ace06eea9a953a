"""What a slowed sampler reads of a call is longer by a share, and of plain tensors as long as ever."""

from __future__ import annotations

import time

import pytest

from pytest_dtdispatch.ab.slowdown import SlowedSampler, slowed_meter
from pytest_dtdispatch.measuring.sampler import Meter, WallClock

CALL_NS = 1_000_000


def read(meter: Meter) -> int:
    """Read a call of a millisecond."""
    began = meter.begin()
    until = time.perf_counter_ns() + CALL_NS
    while time.perf_counter_ns() < until:
        pass
    return meter.end() - began


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_a_call_reads_longer_by_at_least_the_share(share: float) -> None:
    assert read(slowed_meter(time.perf_counter_ns, share, 0.0)) >= CALL_NS * (1 + share)


def test_what_reading_takes_is_not_waited_for_twice() -> None:
    """To read takes less than a tenth of a millisecond: most of the share is still waited for."""
    assert read(SlowedSampler(WallClock(), 0.5).meter) >= 1.4 * CALL_NS


def test_plain_tensors_are_read_by_the_sampler_that_is_slowed() -> None:
    clock = WallClock()
    slowed = SlowedSampler(clock, 9.0)
    assert slowed.local_meter == clock.meter
    assert (slowed.name, slowed.unit) == (clock.name, clock.unit)
