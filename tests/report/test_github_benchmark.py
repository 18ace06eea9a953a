"""A run as github-action-benchmark reads it."""

from __future__ import annotations

import json
from typing import Any

from pytest_dtdispatch.core.forms import GITHUB, form_of
from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Samples, State
from pytest_dtdispatch.core.metrics import MetricValue
from pytest_dtdispatch.report.github_benchmark import github_benchmark
from pytest_dtdispatch.report.reported_run import ReportedRun
from tests.reported_runs import ADD, hostile_run, row, run_of

# ``interface BenchmarkResult`` of src/extract.ts, benchmark-action/github-action-benchmark at 8157ef49: name,
# value and unit it must have, range and extra it may; ``extractCustomBenchmarkResult`` takes these five.
REQUIRED: dict[str, tuple[type, ...]] = {"name": (str,), "value": (int, float), "unit": (str,)}
OPTIONAL: dict[str, tuple[type, ...]] = {"range": (str,), "extra": (str,)}


def entries_of(run: ReportedRun) -> list[dict[str, Any]]:
    text = github_benchmark(run)
    assert form_of(text) == GITHUB
    entries: list[dict[str, Any]] = json.loads(text)
    for entry in entries:
        assert REQUIRED.keys() <= entry.keys() <= {**REQUIRED, **OPTIONAL}.keys()
        assert all(isinstance(entry[name], {**REQUIRED, **OPTIONAL}[name]) for name in entry)
    return entries


def test_each_state_is_an_entry_in_nanoseconds_with_the_scatter_of_the_table() -> None:
    miss, hit = entries_of(run_of())
    assert (miss["name"], hit["name"]) == (f"t.py::test_a::{ADD}::miss", f"t.py::test_a::{ADD}::hit")
    assert (hit["unit"], hit["value"], hit["range"]) == ("ns", 7000, "\xb1 28.6 %")
    assert hit["extra"].splitlines() == [ADD, "quietest block of 6 samples, proved"]


def test_a_noisy_figure_is_called_noisy() -> None:
    noisy = row(ADD, Samples(State.HIT, (100, 900, 100, 900, 100, 900)))
    [entry] = entries_of(run_of(noisy))
    assert entry["extra"].splitlines()[-1].startswith("noisy: ")


def test_counts_have_their_own_unit_and_no_range() -> None:
    numbers = (MetricValue("t.py::test_a::train", "misses_per_step", 2), MetricValue("t", "wall_ns", 7))
    counted = row(ADD, Samples(State.HIT, (66_000, 66_050), unit=INSTRUCTIONS))
    instructions, misses, wall = entries_of(run_of(counted, numbers=numbers))
    assert (instructions["value"], instructions["unit"]) == (66_000, "instructions")
    assert misses == {"name": "t.py::test_a::train::misses_per_step", "unit": "misses per step", "value": 2}
    assert wall["unit"] == "ns"
    assert not [entry for entry in (instructions, misses, wall) if "range" in entry]


def test_no_name_is_more_than_one_line() -> None:
    for entry in entries_of(hostile_run()):
        assert all(text.isprintable() for text in (entry["name"], *entry.get("extra", "").splitlines()))
