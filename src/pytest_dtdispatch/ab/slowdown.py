"""Make every timed call slower by a known share: ``pytest -p pytest_dtdispatch.ab.slowdown``.

The self-test loads it in one side only. The clock is held up after a call, so that a miss and a hit both
take longer by that share, whatever they take. Plain tensors are left alone: they are the control.
"""

from __future__ import annotations

import os

from pytest_dtdispatch.measuring.sampler import SAMPLERS, Clock, Meter, Sampler, register

SLOWER_BY = "DTDISPATCH_AB_INJECT"  # tells a process of the self-test by what share to slow its calls
CALIBRATION_CALLS = 2000


def pytest_configure() -> None:
    """Slow whatever is timed in this process, where the environment says by how much."""
    share = float(os.environ.get(SLOWER_BY, "0"))
    if share:
        register(SlowedSampler(SAMPLERS["time"], share))


class SlowedSampler(Sampler):
    """Another sampler of times, by which calls on DTensors take longer by a share."""

    def __init__(self, slowed: Sampler, share: float) -> None:
        self.name, self.unit, self.clock = slowed.name, slowed.unit, slowed.clock
        added_ns = _least_ns(slowed_meter(self.clock, 0.0, 0.0)) - _least_ns(slowed.meter)
        self.begin, self.end = slowed_meter(self.clock, share, added_ns)
        self._local_meter = slowed.meter

    @property
    def local_meter(self) -> Meter:
        """What reads calls on plain tensors: as if nothing were slowed."""
        return self._local_meter


def slowed_meter(clock: Clock, share: float, added_ns: float) -> Meter:
    """Read a clock, and wait after each call; what reading alone adds is not waited for again."""
    began = 0

    def begin() -> int:
        nonlocal began
        began = clock()
        return began

    def end() -> int:
        now = clock()
        until = now + (now - began) * share - added_ns
        while now < until:
            now = clock()
        return now

    return Meter(begin, end)


def _least_ns(meter: Meter) -> int:
    """Read calls that do nothing."""
    return min(-meter.begin() + meter.end() for _ in range(CALIBRATION_CALLS))
