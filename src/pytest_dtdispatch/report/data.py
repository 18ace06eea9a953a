"""A run as data for programs, without samples; ``results.schema.json`` describes it."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any

from pytest_dtdispatch.core.measurement import Clock, Measurement
from pytest_dtdispatch.core.plain_data import select
from pytest_dtdispatch.core.verdicts import RowVerdict
from pytest_dtdispatch.report.document import KINDS, Paragraph, plain
from pytest_dtdispatch.report.history import series_of
from pytest_dtdispatch.report.run import ReportedRun

FORMAT, VERSION = "pytest-dtdispatch results", 7


def run_text(run: ReportedRun) -> tuple[str, int]:
    """Render a run as one line of JSON; return the line and the number of its items."""
    data = run_data(run)
    text = json.dumps(_compact(data), separators=(",", ":"), allow_nan=False) + "\n"
    return text, sum(len(data[name]) for name in ("rows", "results", "failed_tests"))


def run_data(run: ReportedRun) -> dict[str, Any]:
    """Return a run with its rows, results, verdicts and advice as plain data."""
    results, advice = [], dict[Hashable, dict[str, Any]]()
    for kind, by_test in run.results.items():
        for test, test_results in by_test.items():
            to_data = KINDS[kind].data or fields_data
            for result, data in zip(test_results, to_data(test_results), strict=True):
                about = {"kind": kind, "test": test, "name": result.name}
                results.append({**about, "metrics": dict(result.metrics()), **data})
                for one in KINDS[kind].advice(result):
                    of_advice = {"class": one.kind, **asdict(one)}
                    del of_advice["kind"]  # which is that of the result
                    key = test, result.name, one.rule, one.source_lines, one.change, one.count
                    same = advice.setdefault(key, {**about, "kinds": [], **of_advice})
                    same["kinds"].append(kind)
    gates = []
    for gate in run.gates:
        verdicts = [*map(_verdict, gate.verdicts)]
        gates.append({"baseline": gate.where, "has_failed": gate.has_failed, "verdicts": verdicts})
    history = []  # changes of rows over runs, each with its first changed run
    for series in series_of(run.history) if run.history else ():
        numbered = [*series.runs.items()]
        for change in series.changes():
            n, changed = numbered[change.run]
            about = {"run": n, "series": series.title, **select(changed, "where", "started", "commit")}
            about |= select(change, "is_confirmed", "figures")
            history.append({**about, **_verdict(change.verdict)})
    return {
        "format": FORMAT,
        "version": VERSION,
        "outcome": ("failed" if run.has_failed else "passed") if run.gates else "not judged",
        "failed_tests": [*map(asdict, run.failed_tests)],
        **select(run, "started", "stopped", "environment"),
        "rows": [_row(test, row) for test, row in run.each_row()],
        "results": results,
        "unknown_kinds": [*run.unknown],
        "gates": gates,
        **({"history": history} if run.history else {}),
        "advice": [*advice.values()],
        "notices": [plain(block.spans) for block in run.notices.blocks if isinstance(block, Paragraph)],
    }


def _verdict(verdict: RowVerdict) -> dict[str, Any]:
    return {**verdict.row._asdict(), **asdict(verdict), "row": str(verdict.row)}


def fields_data(results: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the fields of dataclasses, except their names, samples and advice; none of other results."""
    omitted = {"name", "measurement", "advice"}
    fields = (asdict(result) if is_dataclass(type(result)) else {} for result in results)
    return [{name: value for name, value in each.items() if name not in omitted} for each in fields]


def _row(test: str, row: Measurement) -> dict[str, Any]:
    """Return a row with its figures by state."""
    states = {}
    for samples in row.recorded():
        data = select(samples, "figure", "clock", "count", "scatter", "is_noisy", "waited")
        if samples.ns:
            data |= {"median": samples.median_ns, "least_wall": samples.least(Clock.WALL)}
        states[samples.state] = {"unit": samples.unit.name, **data}
    return {
        "test": test,
        **select(row, "label", "full_label", "op", "backend", "calls", "overhead", "overhead_ns"),
        "contains": row.contains.name.lower(),
        "proof": row.proof_kind,
        **select(row.figures, "notes", "tracers"),
        "states": states,
    }


def _compact(value: Any) -> Any:
    """Round floats to six significant digits or to integers; replace infinity and NaN by None.

    No time is measured more precisely.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        rounded = float(f"{value:.6g}") if abs(value) < 1e6 else value
        return round(rounded) if rounded.is_integer() or abs(value) >= 1e6 else rounded
    if isinstance(value, Mapping):
        return {str(name): _compact(each) for name, each in value.items()}
    if isinstance(value, Enum):
        return value.value
    return [*map(_compact, value)] if isinstance(value, (list, tuple)) else value
