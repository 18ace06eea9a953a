"""Tell what a file is by how it begins: what is no earlier file of the same form is not written over."""

from __future__ import annotations

import csv
import re

RESULTS, EXPECTED = "results", "expected results"
RECORDS = "records of PyTorch's benchmark database"
AB_RUN, AB_FORMAT = "a run of dtdispatch ab", "pytest-dtdispatch ab"
TRACE, TRACE_EXPORT, TRACE_FORMAT = "a trace", "trace", "pytest-dtdispatch trace"
GITHUB, BENCHER = "entries of github-action-benchmark", "metrics of Bencher"
SUMMARY, SUMMARY_TITLE = "a summary in Markdown", "dtdispatch"
REPORT, REPORT_TITLE = "an HTML report", "DTensor dispatch report"
SOMETHING_ELSE = "something else"
_TEXT = r'"(?:[^"\\]|\\.)*"'  # of JSON


_BEGINNINGS = {
    RECORDS: re.compile(r'\s*\[\s*\{\s*"benchmark":'),
    AB_RUN: re.compile(rf'\s*\{{\s*"format":\s*"{AB_FORMAT}"'),
    TRACE: re.compile(rf'\{{"otherData": \{{"format": "{TRACE_FORMAT}"'),
    "a saved run of pytest-benchmark": re.compile(r'\s*\{\s*"machine_info":'),
    GITHUB: re.compile(rf'\s*\[\s*\{{\s*"name":\s*{_TEXT},\s*"unit":'),
    BENCHER: re.compile(rf'\s*\{{\s*{_TEXT}:\s*\{{\s*{_TEXT}:\s*\{{\s*"value":'),
    REPORT: re.compile(rf"<!DOCTYPE html>.{{0,2000}}?<title>{REPORT_TITLE}</title>", re.DOTALL),
    SUMMARY: re.compile(f"## {SUMMARY_TITLE}: "),
}
_MARGIN = re.compile(r"[-+.\de]+")


def form_of(beginning: str) -> str:
    """Name what begins like this.

    Example:
        >>> form_of("test_it.py::test_add::add,dispatch_hit_ns,6940")
        'results'
    """
    for form, pattern in _BEGINNINGS.items():
        if pattern.match(beginning):
            return form
    rows = (line for line in beginning.splitlines() if line.strip() and not line.startswith("#"))
    try:
        fields = next(csv.reader(rows), [])
    except csv.Error:
        return SOMETHING_ELSE
    if len(fields) < 3 or "::" not in fields[0] or not fields[2].strip().isdigit():
        return SOMETHING_ELSE
    if len(fields) == 4 and not _MARGIN.fullmatch(fields[3].strip()):
        return RESULTS  # with the whole signature of a name that is cut
    return {3: RESULTS, 4: EXPECTED, 5: EXPECTED}.get(len(fields), SOMETHING_ELSE)
