"""Tell what a file is by how it begins: what is no earlier file of the same form is not written over."""

from __future__ import annotations

import csv
import re

RESULTS, EXPECTED = "results", "expected results"
RECORDS = "records of PyTorch's benchmark database"
AB_RUN, AB_FORMAT = "a run of dtdispatch ab or aa", "pytest-dtdispatch ab"
TRACE, TRACE_FORMAT = "a trace", "pytest-dtdispatch trace"
ATLAS, ATLAS_TITLE = "an atlas", "Atlas of ops"
SOMETHING_ELSE = "something else"

_BEGINNINGS = {
    RECORDS: re.compile(r'\s*\[\s*\{\s*"benchmark":'),
    AB_RUN: re.compile(rf'\s*\{{\s*"format":\s*"{AB_FORMAT}"'),
    TRACE: re.compile(rf'\s*\{{"displayTimeUnit":\s*"ns",\s*"otherData":\s*\{{"format":\s*"{TRACE_FORMAT}"'),
    "a saved run of pytest-benchmark": re.compile(r'\s*\{\s*"machine_info":'),
    ATLAS: re.compile(f"# {ATLAS_TITLE}\n"),
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
