"""One callable at several sizes, measured in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.progress import tell
from pytest_dtdispatch.measuring.calls import RanCall, run_call
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.preconditions import callable_at
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import wait_for

# Odd, so that the median of their exponents is one of them.
PASSES = 7


@dataclass(frozen=True)
class AtSize:
    """What was measured at one size: mesh as text, and the figures of each pass."""

    place: str
    passes: tuple[Figures, ...]


def run_and_measure_sizes(
    make: Callable[[int], Callable[[], Any]],
    sizes: Sequence[int],
    caches: ShardingCaches,
    plan: Plan,
) -> dict[int, AtSize]:
    """Make and run a callable at each size for the program, the largest first; then measure them in turn.

    Each pass goes through all sizes, every second one from the smallest: a machine that drifts makes the
    passes differ, and not all of them slope the same way.
    """
    __tracebackhide__ = True
    ran: dict[int, RanCall] = {}
    for size in sorted(sizes, reverse=True):
        result, ran[size] = run_call(callable_at(make, size))
        wait_for(result)
    for one in ran.values():
        one.settle_again()
    share = replace(plan, rounds=math.ceil(plan.rounds / PASSES), max_time_s=plan.max_time_s / PASSES)
    figures: dict[int, list[Figures]] = {size: [] for size in ran}
    for number in range(PASSES):
        for size in reversed(ran) if number % 2 else ran:
            tell("measuring size {}: pass {} of {}", size, number + 1, PASSES)
            figures[size].append(ran[size].measure(caches, share))
    return {size: AtSize(ran[size].place, tuple(figures[size])) for size in sorted(ran)}
