"""A run in the Bencher Metric Format: https://bencher.dev/docs/reference/bencher-metric-format."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pytest_dtdispatch.core.measurement import TIME, Samples
from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.core.signatures import shorten
from pytest_dtdispatch.report.figures import figure_of, interval_of, recorded_rows
from pytest_dtdispatch.report.reported_run import ReportedRun

LONGEST_BENCHMARK, LONGEST_MEASURE = 1024, 64
# Bencher has a measure of this name, in nanoseconds; it makes those of other names as they come.
LATENCY, OTHER_TIME = "latency", "time-ns"

Metric = dict[str, float]


def bencher(run: ReportedRun) -> str:
    """Write the metrics of each benchmark: a state of a row, or a result that has numbers beside rows."""
    found: dict[str, dict[str, Metric]] = {}
    for benchmark, measure, metric in (*_rows(run), *_numbers(run)):
        found.setdefault(benchmark, {})[shorten(measure, limit=LONGEST_MEASURE)] = metric
    return json.dumps(found, indent=1) + "\n"


def _rows(run: ReportedRun) -> Iterator[tuple[str, str, Metric]]:
    for name, _, samples in recorded_rows(run):
        metric = {"value": figure_of(samples)}
        if interval := interval_of(samples):
            metric["lower_value"], metric["upper_value"] = map(float, interval)
        yield _named(name, f"::{samples.state}"), _measure(samples), metric


def _numbers(run: ReportedRun) -> Iterator[tuple[str, str, Metric]]:
    for number in run.numbers:
        yield _named(number.name), number.metric, {"value": number.value}


def _measure(samples: Samples) -> str:
    if samples.unit == TIME:
        return LATENCY
    return OTHER_TIME if samples.unit.is_time else samples.unit.name


def _named(name: str, end: str = "") -> str:
    """Name a benchmark, so that its end stays where it must be cut."""
    return shorten(printable(name), len(end), LONGEST_BENCHMARK)
