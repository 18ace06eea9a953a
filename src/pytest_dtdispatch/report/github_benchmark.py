"""A run as github-action-benchmark takes it: a list of entries, of which a smaller value is a better one.

The fields: https://github.com/benchmark-action/github-action-benchmark, ``customSmallerIsBetter`` in its
README, and ``BenchmarkResult`` in ``src/extract.ts``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pytest_dtdispatch.core.measurement import Measurement, Samples
from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.report.figures import figure_of, number_unit, recorded_rows
from pytest_dtdispatch.report.reported_run import ReportedRun


def github_benchmark(run: ReportedRun) -> str:
    """Write an entry for each state of each row, and for each number that is none of samples."""
    return json.dumps([*_rows(run), *_numbers(run)], indent=1) + "\n"


def _rows(run: ReportedRun) -> Iterator[dict[str, Any]]:
    for name, row, samples in recorded_rows(run):
        entry = {"name": printable(name), "unit": samples.unit.name, "value": figure_of(samples)}
        if samples.unit.is_time and samples.scatter is not None:
            entry["range"] = f"\xb1 {100 * samples.scatter:.1f} %"  # the column +-% of the table
        yield {**entry, "extra": "\n".join(map(printable, _details(row, samples)))}


def _details(row: Measurement, samples: Samples) -> Iterator[str]:
    """Say what a chart shows beside an entry."""
    yield row.full_label
    yield f"{samples.figure_name} of {samples.count:,} samples, {row.proof}"
    if samples.is_noisy:
        yield "noisy: its samples scatter too far for it to be judged"


def _numbers(run: ReportedRun) -> Iterator[dict[str, Any]]:
    for number in run.numbers:
        name = f"{number.name}::{number.metric}"
        yield {"name": printable(name), "unit": number_unit(number.metric), "value": number.value}
