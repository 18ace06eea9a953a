"""Files as pytest-benchmark saves them with rows of ours, made without it."""

from __future__ import annotations

import json
import statistics
from typing import Any

from pytest_dtdispatch.core.measurement import Measurement, Samples
from pytest_dtdispatch.report.reported_run import ReportedRun
from pytest_dtdispatch.report.run_data import KEY, data_of

MACHINE = {
    "machine": "x86_64",
    "python_implementation": "CPython",
    "python_version": "3.11.7",
    "cpu": {"brand_raw": "a CPU"},
    "dtdispatch": {"torch_version": "2.13.0", "device": "cpu", "threads": 1},
}
THEIRS = {
    "fullname": "t.py::test_theirs",
    "group": None,
    "params": None,
    "extra_info": {},
    "stats": {"data": [1e-6]},
}


def saved(run: ReportedRun, *, with_data: bool = True, is_older: bool = False) -> dict[str, Any]:
    """Make the members of a saved run; an older one lacks what reports need."""
    benchmarks = [
        benchmark(test, row, samples, with_data=with_data)
        for test, rows in run.measured.items()
        for row in rows
        for samples in row.times()
    ]
    numbers = [{"name": one.name, "metric": one.metric, "value": one.value} for one in run.numbers]
    plain = {"machine_info": MACHINE, "commit_info": {"id": "abc"}, "benchmarks": benchmarks}
    plain |= {"dtdispatch": numbers, "datetime": "2026-01-01T00:00:00", "version": "5.1.0"}
    if not is_older:
        plain[KEY] = data_of(run)
    text = json.dumps(plain)
    members: dict[str, Any] = json.loads(text)
    return members


def benchmark(test: str, row: Measurement, samples: Samples, *, with_data: bool = True) -> dict[str, Any]:
    """Describe one state of a row."""
    seconds = [ns / 1e9 for ns in samples.ns]
    q1, q2, q3 = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    ranks = {}
    if samples.by_rank:
        ranks = {
            "rank_stat": samples.stat,
            "rank_samples_ns": {str(rank): list(ns) for rank, ns in samples.by_rank},
        }
    stats = {"min": min(seconds), "q1": q1, "median": q2, "q3": q3, "max": max(seconds)}
    return {
        "group": f"dtdispatch {samples.state}",
        "fullname": f"{test}::{row.label}::{samples.state}",
        "param": f"{row.label}::{samples.state}",
        "params": {"op": row.op, "state": str(samples.state), "mesh": row.mesh},
        "extra_info": {
            "signature": row.full_label,
            "contains": str(row.contains),
            "refused": [str(refusal) for refusal in samples.refused],
            "calls": row.calls,
            "rounds": row.rounds,
            "figure_ns": samples.figure,
            "scatter": samples.scatter,
            "notes": [*row.notes, *row.remarks],
            "remarks": list(row.remarks),
            **ranks,
        },
        "stats": {
            **stats,
            "mean": statistics.fmean(seconds),
            "rounds": len(seconds),
            **({"data": seconds} if with_data else {}),
        },
    }
