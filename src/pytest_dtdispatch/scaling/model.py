"""How the cost of a call grows with a size: medians, exponents, what a limit says of those."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from pytest_dtdispatch.core.callables import own_name
from pytest_dtdispatch.core.measurement import Measurement, State

NOT_MEASURED = "nothing is measured in this run"
Make = Callable[[int], Callable[[], Any]]


class LimitVerdict(str, Enum):
    """What a limit says of an exponent."""

    NO_LIMIT = "no limit"
    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    MISSING = "missing"
    ABSENT = "absent"

    __str__ = str.__str__


@dataclass(frozen=True)
class Point:
    """Cost at one size: medians of all samples.

    Args:
        size: as it was given to what made the callable.
        miss_ns: of a miss, in nanoseconds; None where none was recorded.
        hit_ns: of a hit, or where the callable never propagates of any call, in nanoseconds.
    """

    size: int
    miss_ns: float | None
    hit_ns: float | None

    def __str__(self) -> str:
        return f"{self.size}: miss {cost_text(self.miss_ns)}, hit {cost_text(self.hit_ns)}"


@dataclass(frozen=True)
class Fit:
    """How the cost in one state grows: ``cost = constant * size**exponent``.

    Args:
        state: of the samples; ``call`` where the callable never asks the sharding propagator.
        exponent: median of the exponents that the passes gave; not-a-number where nothing could be fitted, so
            that no comparison with it holds.
        low: the least exponent that a pass gave.
        high: the greatest.
        growths: cost at each size over that at the size before, median of the passes.
        passes: how many gave an exponent.
        why_not: why nothing was fitted; empty where it was.
        verdict: what the limit says of the interval from low to high.
    """

    state: State
    exponent: float
    low: float
    high: float
    growths: tuple[float, ...] = ()
    passes: int = 0
    why_not: str = ""
    verdict: LimitVerdict = LimitVerdict.NO_LIMIT

    @property
    def coverage(self) -> float:
        """Probability that independent passes have their true median between low and high: ``1 - 2**(1-n)``.

        It lies outside only where all passes fall on one side of it. Source: David and Nagaraja, Order
        Statistics, 3rd edition, 2003, section 7.1.
        """
        return 1 - 2.0 ** (1 - self.passes) if self.passes else 0.0

    def __str__(self) -> str:
        if self.why_not:
            return f"{self.state} not fitted: {self.why_not}"
        interval = f"{number_text(self.low)} to {number_text(self.high)} in {self.passes} passes"
        return f"{self.state} grows as size^{number_text(self.exponent)} ({interval})"


@dataclass(frozen=True)
class Scaling:
    """How the cost of a callable grows with a size, on a miss and on a hit.

    Where nothing is measured there are no points, and both exponents are 0: an assertion on them holds.

    Args:
        name: of its rows, which are ``name[8]`` and so on.
        points: one for each size, the smallest first.
        miss: how a miss grows.
        hit: how a hit grows, or where the callable never propagates any call.
        max_exponent: the limit that was given.
    """

    kind: ClassVar[str] = "scaling"
    name: str
    points: tuple[Point, ...]
    miss: Fit
    hit: Fit
    max_exponent: float | None = None

    @property
    def fits(self) -> tuple[Fit, Fit]:
        """Both fits, the miss first."""
        return self.miss, self.hit

    def rows(self) -> tuple[Measurement, ...]:
        """None: the call at each size is a result of its own."""
        return ()

    def metrics(self) -> tuple[tuple[str, int], ...]:
        """None: an exponent is no whole number."""
        return ()

    def __str__(self) -> str:
        return "\n".join((self.name, *(f"  {point}" for point in self.points)))


def not_measured(name: str) -> Scaling:
    """Return what stands for a scaling in a run that measures nothing."""
    miss, hit = (Fit(state, 0.0, 0.0, 0.0, why_not=NOT_MEASURED) for state in (State.MISS, State.HIT))
    return Scaling(name, (), miss, hit)


def run_sizes(make: Make, sizes: tuple[int, ...], name: str | None) -> Scaling:
    """Make and call a callable at each size, the largest first, and measure nothing."""
    __tracebackhide__ = True
    from pytest_dtdispatch.measuring.preconditions import callable_at

    for size in reversed(sizes):
        callable_at(make, size)()
    return not_measured(name or own_name(make))


def row_name(name: str, size: int) -> str:
    """Name the row of one size: ``stack[8]``."""
    return f"{name}[{size}]"


def cost_text(ns: float | None) -> str:
    """Write a cost in microseconds; a dash where there is none."""
    return "-" if ns is None else f"{ns / 1e3:,.1f} us"


def number_text(value: float) -> str:
    """Write an exponent with two decimals, and no sign before a zero."""
    return f"{round(value, 2) + 0.0:.2f}"
