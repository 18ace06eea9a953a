"""Export formats of runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_dtdispatch.core.files import checked_target, write_atomic
from pytest_dtdispatch.core.measurement import TIME, Measurement, Samples
from pytest_dtdispatch.core.parsing import Export
from pytest_dtdispatch.core.results import name_in_files
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import shorten
from pytest_dtdispatch.core.text import escape_controls, plural, shown
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.gates.expected import results_text
from pytest_dtdispatch.report.data import FORMAT, run_text
from pytest_dtdispatch.report.history import history_sections
from pytest_dtdispatch.report.page import TITLE, html_page, require_jinja
from pytest_dtdispatch.report.repro import ScriptFolder
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.screen import print_text
from pytest_dtdispatch.report.summary import summary

DECIMALS = 3  # of nanoseconds; no clock has a higher resolution
TRACE_FORMAT = "pytest-dtdispatch trace"
# Rows of expected results end in a margin, a number; rows of results may end in a signature.
RESULT = r'("(?=[^"]*::)([^"]|"")*"|(?=[^",\n]*::)[^",\n]*),\w+,\d+(\s|,(?![-+.\de]+[,\s]))'


def github_benchmark(run: ReportedRun) -> tuple[str, int]:
    """Render an entry for each state of each row, and for each number that is not part of a row.

    The fields are those of ``customSmallerIsBetter`` in the README of
    https://github.com/benchmark-action/github-action-benchmark, and of ``BenchmarkResult`` in its source.
    """
    entries = []
    for name, row, samples in recorded_states(run):
        figure = round(samples.figure, DECIMALS)
        entry: dict[str, Any] = {"name": escape_controls(name), "unit": samples.unit.name, "value": figure}
        if samples.unit.is_time and samples.scatter is not None:
            entry["range"] = f"\xb1 {100 * samples.scatter:.1f} %"  # the column +-% of the table
        details = [row.full_label, f"{samples.figure_name} of {samples.count:,} samples, {row.proof}"]
        if samples.is_noisy:
            details.append("noisy: the halves of its passes differ")
        entry["extra"] = "\n".join(map(escape_controls, details))
        entries.append(entry)
    for number in run.result_numbers():
        unit = "ns" if number.metric.endswith("_ns") else number.metric.replace("_", " ")
        name = escape_controls(f"{name_in_files(number.row)}::{number.metric}")
        entries.append({"name": name, "unit": unit, "value": number.value})
    return json.dumps(entries, indent=1) + "\n", len(entries)


def bencher(run: ReportedRun) -> tuple[str, int]:
    """Render a run in the Bencher Metric Format: https://bencher.dev/docs/reference/bencher-metric-format.

    A benchmark is a state of a row, or a result with numbers that are not part of rows.
    """
    longest_benchmark, longest_measure = 1024, 64
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, _, samples in recorded_states(run):
        metric = {"value": round(samples.figure, DECIMALS)}
        if samples.unit.is_time and samples.scatter is not None:  # the figures of both halves of the passes
            metric["lower_value"] = metric["value"]
            metric["upper_value"] = round(samples.figure * (1 + samples.scatter), DECIMALS)
        measure = samples.unit.name
        if samples.unit.is_time:  # "latency", in nanoseconds, is a built-in measure of Bencher
            measure = "latency" if samples.unit == TIME else "time-ns"
        benchmark = shorten(escape_controls(name), len(f"::{samples.state}"), longest_benchmark)
        found.setdefault(benchmark, {})[shorten(measure, limit=longest_measure)] = metric
    for number in run.result_numbers():
        benchmark = shorten(name_in_files(number.row), limit=longest_benchmark)
        measure = shorten(number.metric, limit=longest_measure)
        found.setdefault(benchmark, {})[measure] = {"value": number.value}
    return json.dumps(found, indent=1) + "\n", sum(map(len, found.values()))


def trace(run: ReportedRun) -> tuple[str, int]:
    """Merge the torch profiler's traces of the steps of a run; their times are of one clock."""
    traces = [_read_trace(text) for text in run.traces]
    events = [event for one in traces for event in one["traceEvents"]]
    merged = {"otherData": {"format": TRACE_FORMAT}, **(traces or [{}])[0], "traceEvents": events}
    # Count events with a duration.
    return json.dumps(merged) + "\n", sum(event.get("ph") == "X" for event in events)


def _read_trace(text: str) -> Any:
    """Parse a trace; quotes in names, which kineto writes unescaped, are escaped first."""
    try:
        return json.loads(text)
    except ValueError:
        # kineto replaces line breaks and backslashes: a name ends with its line, or before "pid" (torch 2.5).
        name_line = r'(?m)^(\s*(?:"ph": "\w", "cat": "\w+", )?"name": )"(.*)"(, "pid": .*|,?)$'
        escaped = re.sub(name_line, lambda name: f"{name[1]}{json.dumps(name[2])}{name[3]}", text)
    try:
        return json.loads(escaped)
    except ValueError as error:
        raise ValueError(f"torch's profiler wrote invalid JSON: {error}") from None


def recorded_states(run: ReportedRun) -> Iterator[tuple[str, Measurement, Samples]]:
    """Yield name, row and samples of every state with samples; pytest-benchmark has the same names."""
    for test, row in run.each_row():
        for samples in row.recorded():
            yield str(RowId(test, row.label, samples.state)), row, samples


def csv(run: ReportedRun) -> tuple[str, int]:
    """Render the numbers of a run as rows of an expected file, without margins; of a series, by run."""
    texts = [results_text(one.metrics(), one.started, one.commit, one.where) for one in run.history]
    text = "".join(texts) or results_text(run.metrics())
    return text, text.count("\n")


def html(run: ReportedRun) -> tuple[str, int]:
    """Render a run as an HTML page."""
    return html_page(run), _item_count(run)


def markdown(run: ReportedRun) -> tuple[str, int]:
    """Render a run as a summary in Markdown."""
    return summary(run, more=history_sections(run.history).items()), len(run.metrics()) or _item_count(run)


def _item_count(run: ReportedRun) -> int:
    return sum(1 for _ in run.rows()) + sum(1 for _ in run.each_result()) + len(run.numbers)


@dataclass(frozen=True)
class Format:
    """A file format.

    Args:
        begins: regular expression for the first bytes of its files; other files are not overwritten.
        text: function that renders a run, and returns the text and the number of its items.
        unit: noun for an item.
        nothing: error message if there are no items.
    """

    begins: str
    text: Callable[[ReportedRun], tuple[str, int]]
    unit: str = "result"
    nothing: str = "no result has a figure"
    write = staticmethod(write_atomic)

    def render(self, run: ReportedRun, target: str) -> tuple[str, str]:
        """Render a run; return the text and a message with the number of items.

        Raises:
            DtDispatchError: the run has no items, or rendering raised an exception.
        """
        try:
            text, count = self.text(run)
        except Exception as error:
            raise DtDispatchError(f"{target} was not written: {shown(error)}") from error
        if not count:
            raise DtDispatchError(f"{target} was not written: {self.nothing}")
        return text, f"{plural(count, self.unit)} written to {target}"


TEXT = r'"(?:[^"\\]|\\.)*"'  # a JSON string; the match is unique, so that matching never backtracks for long
FORMATS: Mapping[str, Format | ScriptFolder] = {
    "csv": Format(RESULT, csv),
    "json": Format(rf'\{{"format":"{FORMAT}"', run_text),
    "github-action-benchmark": Format(rf'\[\s*\{{\s*"name": {TEXT},\s*"unit":', github_benchmark, "figure"),
    "bencher": Format(rf'\{{\s*{TEXT}: \{{\s*{TEXT}: \{{\s*"value":', bencher, "figure"),
    "html": Format(rf"(?s)<!DOCTYPE html>.{{0,2000}}?<title>{TITLE}</title>", html),
    "markdown": Format("## dtdispatch: ", markdown),
    "trace": Format(
        rf'\{{"otherData": \{{"format": "{TRACE_FORMAT}"', trace, "event", "no steps were counted"
    ),
    "repro": ScriptFolder(),
}


def check_export(export: Export) -> None:
    """Check that the file of an export can be written, before anything is measured or written."""
    if export.format == "html":
        require_jinja()
    is_folder = export.format == "repro" and os.path.isdir(export.path)  # noqa: PTH112 (is_dir may raise)
    if not export.is_stdout:
        checked_target(export.path / "repro" if is_folder else export.path, FORMATS[export.format].begins)


def export_saved(run: ReportedRun, exports: Sequence[Export]) -> list[str]:
    """Write a saved run in several formats, all of them or none; return a message for each file."""
    if len({os.path.realpath(export.path) for export in exports}) < len(exports):
        raise DtDispatchError("two formats have the same file: name another")
    for export in exports:
        check_export(export)
    rendered = [(export, *FORMATS[export.format].render(run, export.target)) for export in exports]
    for export, text, _ in rendered:
        if export.is_stdout:
            print_text(text)
        else:
            FORMATS[export.format].write(export.path, text)
    return [message for export, _, message in rendered if not export.is_stdout]
