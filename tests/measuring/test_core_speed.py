"""Readings of the speed of the core, and their fastest value in a process."""

from __future__ import annotations

import math

from pytest_dtdispatch.rounds.core_speed import CoreSpeed


def test_reading_is_the_faster_run() -> None:
    ends = iter([0, 300, 300, 500, 1000, 1400, 1400, 1650])
    speed = CoreSpeed(work=lambda: None, clock=lambda: next(ends))
    assert math.isinf(speed.fastest_ns)
    assert (speed.read(), speed.read()) == (200, 250)
    assert speed.fastest_ns == 200


def test_one_process_has_one_fastest_reading() -> None:
    speed = CoreSpeed()
    readings = [speed.read() for _ in range(5)]
    assert 0 < speed.fastest_ns == min(readings)
