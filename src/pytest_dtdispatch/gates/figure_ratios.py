"""How many times the figure of one run of a row is that of another, and the interval of that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from pytest_dtdispatch.stats.resampling import Statistic, quantile, ratio_interval

CONFIDENCE = 0.99
MOST_SAMPLES = 1000  # drawn again; 2000 times as many take a second
BLOCKS = 20
STATISTICS: dict[str, Statistic] = {
    "min": min,
    "q1": lambda values: quantile(values, 0.25),
    "median": median,
    "q3": lambda values: quantile(values, 0.75),
    "mean": fmean,
}


def interval_of_ratio(
    base: Sequence[float], head: Sequence[float], statistic: Statistic
) -> tuple[float, float]:
    """Give the interval of the ratio of a figure of two runs, with 99 %, by what scatters within both."""
    base, head = _thinned(base), _thinned(head)
    block = max(1, min(len(values) for values in (base, head) if len(values) > 1) // BLOCKS)
    return ratio_interval(base, head, statistic, CONFIDENCE, block=block)


def _thinned(values: Sequence[float]) -> Sequence[float]:
    """Take samples at even distances: fewer of them only widen an interval."""
    return values[:: math.ceil(len(values) / MOST_SAMPLES)]
