"""Every format that a run can be exported in, each a row of a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_dtdispatch.core.files import checked_target, write_whole
from pytest_dtdispatch.core.forms import (
    BENCHER,
    GITHUB,
    RECORDS,
    RESULTS,
    SAMPLES,
    STACKS,
    TRACE,
    TRACE_EXPORT,
)
from pytest_dtdispatch.core.parsing import Export
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.gates.expected_file import results_text
from pytest_dtdispatch.report.bencher import bencher
from pytest_dtdispatch.report.collapsed_stacks import collapsed_stacks, stack_count
from pytest_dtdispatch.report.figures import recorded_rows
from pytest_dtdispatch.report.github_benchmark import github_benchmark
from pytest_dtdispatch.report.oss_json import oss_json
from pytest_dtdispatch.report.profiler_trace import event_count, joined_trace
from pytest_dtdispatch.report.reported_run import ReportedRun
from pytest_dtdispatch.report.samples_csv import sample_count, samples_csv

NO_SAMPLES = "no sample is known one by one: save the run with --benchmark-json or --benchmark-save-data"
NO_TRACE = "no steps were counted"
NO_STACKS = "nothing was profiled: measure with --dtdispatch-metric instructions --dtdispatch-profile"


@dataclass(frozen=True)
class Format:
    """A form of file.

    Args:
        form: what an earlier file must hold that is replaced, of ``core.forms``.
        text: renders a run.
        size: says how much the text holds.
        unit: of that.
        nothing: is said where that is nothing.
    """

    form: str
    text: Callable[[ReportedRun], str]
    size: Callable[[ReportedRun], int]
    unit: str = "result"
    nothing: str = "no result has a figure"

    def render(self, run: ReportedRun, path: Path) -> tuple[str, str]:
        """Render a run; say how much it is.

        Raises:
            DtDispatchError: where the run has nothing of the kind.
        """
        if not (size := self.size(run)):
            raise DtDispatchError(f"{path} was not written: {self.nothing}")
        return self.text(run), f"{many(size, self.unit)} written to {path}"


def _figure_count(run: ReportedRun) -> int:
    return sum(1 for _ in recorded_rows(run)) + len(run.numbers)


def result_count(run: ReportedRun) -> int:
    """Count every number of a run."""
    return len(run.metrics())


FORMATS: Mapping[str, Format] = {
    "csv": Format(RESULTS, lambda run: results_text(run.metrics()), result_count),
    "oss-json": Format(RECORDS, lambda run: oss_json(run.metrics(), run.build), result_count),
    "github-action-benchmark": Format(GITHUB, github_benchmark, _figure_count, "figure"),
    "bencher": Format(BENCHER, bencher, _figure_count, "figure"),
    "samples": Format(SAMPLES, samples_csv, sample_count, "sample", NO_SAMPLES),
    "stacks": Format(STACKS, collapsed_stacks, stack_count, "stack", NO_STACKS),
    TRACE_EXPORT: Format(
        TRACE,
        lambda run: joined_trace(run.traces),
        lambda run: event_count(run.traces),
        "event",
        NO_TRACE,
    ),
}


def export_saved(run: ReportedRun, exports: Sequence[Export]) -> list[str]:
    """Write a saved run in several formats, all of them or none; say what was written."""
    if len({os.path.realpath(export.path) for export in exports}) < len(exports):
        raise DtDispatchError("two formats are to be written to one file: name another")
    for export in exports:
        checked_target(export.path, FORMATS[export.format].form)
    rendered = [(export.path, *FORMATS[export.format].render(run, export.path)) for export in exports]
    for path, text, _ in rendered:
        write_whole(path, text)
    return [said for _, _, said in rendered]
