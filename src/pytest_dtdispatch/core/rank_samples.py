"""Samples of one state on several ranks."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import Samples
from pytest_dtdispatch.stats.medians import scatter


@dataclass(frozen=True)
class RankSamples(Samples):
    """Samples of one state on several ranks.

    ``values`` are those that stand for all ranks where one list is wanted: of the rank whose median is the
    statistic, or of the two between which it lies.

    Args:
        by_rank: each rank with its samples in nanoseconds; of each there is one at least.
        stat: what stands for all ranks: the ``median`` of the rank medians, or the ``max``.

    Example:
        >>> from pytest_dtdispatch.core.measurement import State
        >>> hits = RankSamples(State.HIT, (7, 9), by_rank=((0, (7,)), (1, (9,))))
        >>> hits.median_ns, hits.slowest, hits.spread
        (8.0, (1, 9), 0.25)
    """

    by_rank: tuple[tuple[int, tuple[int, ...]], ...] = ()
    stat: str = "median"

    @property
    def medians(self) -> dict[int, float]:
        """Median of each rank in nanoseconds."""
        return {rank: statistics.median(ns) for rank, ns in self.by_rank}

    @property
    def middle_ns(self) -> float:
        """Median over ranks of the rank medians, in nanoseconds."""
        return float(statistics.median(self.medians.values()))

    @property
    def slowest(self) -> tuple[int, float]:
        """The rank with the greatest median, and that median in nanoseconds."""
        medians = self.medians
        rank = max(medians, key=lambda rank: medians[rank])
        return rank, medians[rank]

    @property
    def spread(self) -> float:
        """How much slower the slowest rank is than the fastest, as a fraction of the median over ranks."""
        return (self.slowest[1] - min(self.medians.values())) / self.middle_ns if self.middle_ns else 0.0

    @property
    def figure(self) -> float:
        """What stands for all ranks, in nanoseconds."""
        return self.slowest[1] if self.stat == "max" else self.middle_ns

    median_ns = figure

    @property
    def figure_name(self) -> str:
        """What stands for all ranks."""
        return f"{self.stat} of rank medians"

    @property
    def scatter(self) -> float | None:
        """How far the samples of the rank that scatters most do."""
        return max((scatter(ns) or 0.0 for _, ns in self.by_rank), default=None)
