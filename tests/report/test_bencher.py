"""A run in the Bencher Metric Format."""

from __future__ import annotations

import json
from typing import Any

from pytest_dtdispatch.core.forms import BENCHER, form_of
from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Samples, State, Unit
from pytest_dtdispatch.core.metrics import MetricValue
from pytest_dtdispatch.report.bencher import bencher
from pytest_dtdispatch.report.reported_run import ReportedRun
from tests.reported_runs import ADD, HITS, hostile_run, row, run_of

# https://bencher.dev/docs/reference/bencher-metric-format: the JSON Schema https://bencher.dev/bmf.json has
# these properties, each a number, and requires the first; names have at most so many characters.
PROPERTIES, REQUIRED = {"value", "lower_value", "upper_value"}, {"value"}
LONGEST_BENCHMARK, LONGEST_MEASURE = 1024, 64
HIT = f"t.py::test_a::{ADD}::hit"


def metrics_of(run: ReportedRun) -> dict[str, dict[str, dict[str, Any]]]:
    text = bencher(run)
    assert form_of(text) == BENCHER
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    for benchmark, measures in found.items():
        assert 0 < len(benchmark) <= LONGEST_BENCHMARK
        for measure, metric in measures.items():
            assert 0 < len(measure) <= LONGEST_MEASURE
            assert REQUIRED <= metric.keys() <= PROPERTIES
            assert all(isinstance(number, (int, float)) for number in metric.values())
    return found


def test_a_latency_lies_between_the_least_sample_and_where_the_median_ends() -> None:
    metrics = metrics_of(run_of())
    assert metrics[HIT] == {"latency": {"value": 7000, "lower_value": 6900, "upper_value": 9000}}
    assert list(metrics) == [f"t.py::test_a::{ADD}::miss", HIT]


def test_there_is_no_interval_where_none_is_known() -> None:
    few = Samples(State.HIT, HITS[:4])
    ranks = Samples(State.COLD, HITS, by_rank=((0, HITS), (1, HITS)))
    metrics = metrics_of(run_of(row(ADD, few, ranks)))
    assert [list(measures["latency"]) for measures in metrics.values()] == [["value"]] * 2


def test_what_is_no_latency_has_another_measure() -> None:
    own = Unit(hit="thread_cpu_hit_ns", miss="thread_cpu_miss_ns")
    counted = Samples(State.MISS, (5, 6), unit=INSTRUCTIONS)
    numbers = (MetricValue("t.py::test_a::train", "misses_per_step", 2),)
    metrics = metrics_of(run_of(row(ADD, Samples(State.HIT, HITS, unit=own), counted), numbers=numbers))
    assert [list(measures) for measures in metrics.values()] == [
        ["time-ns"],
        ["instructions"],
        ["misses_per_step"],
    ]


def test_a_long_name_is_cut_before_its_state_and_names_stay_apart() -> None:
    rows = (row("x" * 10_000), row("x" * 10_000 + "y"))
    metrics = metrics_of(run_of(*rows))
    assert len(metrics) == 4
    assert {name.rpartition("::")[2] for name in metrics} == {"miss", "hit"}
    assert len(metrics_of(hostile_run())) == 3 * len(hostile_run().measured)
