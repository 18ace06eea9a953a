"""Figures of a run as other tools take them: by name, with the interval that is known."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dtdispatch.core.measurement import Measurement, Samples
from pytest_dtdispatch.core.results import state_name
from pytest_dtdispatch.report.reported_run import ReportedRun
from pytest_dtdispatch.stats.medians import bounds

DECIMALS = 3  # of nanoseconds


def recorded_rows(run: ReportedRun) -> Iterator[tuple[str, Measurement, Samples]]:
    """Give every state of every row that has samples, under the name that it has in pytest-benchmark too."""
    for test, rows in run.measured.items():
        for row in rows:
            for samples in row.recorded():
                yield state_name(test, row, samples), row, samples


def figure_of(samples: Samples) -> float:
    """Give what stands for samples, without digits that no clock has."""
    return round(samples.figure, DECIMALS)


def interval_of(samples: Samples) -> tuple[float, float] | None:
    """Give the interval that the column ``+-%`` of tables stands for: its farther end is that far.

    It begins at the least sample, and ends where the median lies below with 95 %.

    Returns:
        Both ends; None of counts, of few samples, and of figures that stand for several ranks.
    """
    return bounds(samples.values) if samples.unit.is_time and not samples.by_rank else None


def number_unit(metric: str) -> str:
    """Name the unit of a number that stands beside rows.

    Example:
        >>> number_unit("misses_per_step"), number_unit("wall_ns")
        ('misses per step', 'ns')
    """
    return "ns" if metric.endswith("_ns") else metric.replace("_", " ")
