"""Speed of the core, as the time of a fixed Python loop. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

from pytest_dtdispatch.core.measurement import SLOWED

# On a core that another machine uses, 15 of 40 s were slow periods of more than 0.2 s, the longest 3.5 s.
FIND_NS = 300_000_000


class _Cell:
    def __init__(self) -> None:
        self.values: dict[str, object] = {}


def _work() -> None:
    for number in range(60):  # 17 us
        cell = _Cell()
        cell.values["key"] = (number, str(number))
        cell.values.get("key")


@dataclass(eq=False)
class CoreSpeed:
    """Readings of the core's speed, and a limit on pauses until it is faster.

    Args:
        work: loop that is timed.
        clock: clock in nanoseconds.
        fastest_ns: minimum of all readings; infinite before the first.
        pauses_left_s: remaining seconds of pauses before measurements are repeated.
        waits_left_s: remaining seconds of waits until the core is at full speed.
    """

    work: Callable[[], object] = _work
    clock: Callable[[], int] = perf_counter_ns
    fastest_ns: float = math.inf
    pauses_left_s: float = 8.0
    waits_left_s: float = 20.0

    def read(self) -> int:
        """Return the current time of the loop in nanoseconds, the minimum of two runs."""
        times = []
        for _ in range(2):
            began = self.clock()
            self.work()
            times.append(self.clock() - began)
        self.fastest_ns = min(self.fastest_ns, *times)
        return min(times)

    def find_fastest(self) -> None:
        """Read the speed for 0.3 s if it was never read, as it may be slow at first."""
        if math.isinf(self.fastest_ns):
            end = self.clock() + FIND_NS
            while self.clock() < end:
                self.read()

    def is_slow(self, speed_ns: float) -> bool:
        """Return whether a reading is far above the fastest one.

        Example:
            >>> speed = CoreSpeed(fastest_ns=100)
            >>> speed.is_slow(115), speed.is_slow(160)
            (False, True)
        """
        return speed_ns > SLOWED * self.fastest_ns


CORE = CoreSpeed()  # shared by all measurements of this process
