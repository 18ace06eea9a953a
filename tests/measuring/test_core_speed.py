"""Readings of the speed of the core, and their fastest value in a process."""

from __future__ import annotations

import math

from pytest_dtdispatch.rounds.core_speed import FIND_NS, CoreSpeed


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


def test_fastest_is_found_before_the_first_block() -> None:
    core = [0]

    def work() -> None:
        core[0] += 2_000_000 if core[0] < FIND_NS // 2 else 1_000_000

    speed = CoreSpeed(work=work, clock=lambda: core[0])
    speed.find_fastest()
    assert (speed.fastest_ns, core[0] >= FIND_NS) == (1_000_000, True)
    speed.fastest_ns, before = 2_000_000, core[0]
    speed.find_fastest()
    assert core[0] == before, "it is found once"
