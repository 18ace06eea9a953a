"""Every sample of a run as tidy data: CSV with a header, a sample a line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from pytest_dtdispatch.core.measurement import Samples
from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.report.reported_run import ReportedRun

COLUMNS = ("test", "signature", "op", "mesh", "state", "unit", "rank", "index", "value")
# A cell that begins like this is a formula to spreadsheets, which run it.
FORMULA = ("=", "+", "-", "@")


def samples_csv(run: ReportedRun) -> str:
    """Write a line for each sample; the index counts those of one state on one rank, in the order taken."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for test, rows in run.measured.items():
        for row in rows:
            named = [cell(one) for one in (test, row.full_label, row.op, row.mesh)]
            for samples in row.recorded():
                known = [*named, str(samples.state), cell(samples.unit.name)]
                writer.writerows([*known, *each] for each in _taken(samples))
    return text.getvalue()


def sample_count(run: ReportedRun) -> int:
    """Count the samples."""
    return sum(samples.count for row in run.rows() for samples in row.recorded())


def cell(text: str) -> str:
    """Write a text so that a spreadsheet shows it, on one line, and runs none of it.

    Example:
        >>> cell("mm.default(f32[8,8]R)@4"), cell("=1+1")
        ('mm.default(f32[8,8]R)@4', "'=1+1")
    """
    text = printable(text.strip())
    return f"'{text}" if text.startswith(FORMULA) else text


def _taken(samples: Samples) -> Iterator[tuple[int, int, int]]:
    """Give each sample with its rank, and its place among those of the rank."""
    for rank, values in samples.by_rank or ((0, samples.values),):
        yield from ((rank, index, value) for index, value in enumerate(values))
