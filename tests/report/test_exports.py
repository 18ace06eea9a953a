"""Export formats of a run, as their consumers require them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Samples, State, Unit
from pytest_dtdispatch.core.parsing import Export
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.plugin.settings import EXPORTS
from pytest_dtdispatch.report.exports import FORMATS, RESULT, export_saved
from pytest_dtdispatch.report.repro import file_name
from pytest_dtdispatch.report.run import ReportedRun
from tests.reported_runs import ADD, HITS, hostile_run, op_row, row, run_of
from tests.row_ids import number

TRACE = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "step 1", "ts": 0, "dur": 1}]}'
MISS, HIT = f"t.py::test_a::{ADD}::miss", f"t.py::test_a::{ADD}::hit"
NUMBERS = (number("t.py::test_a::train", "misses_per_step", 2), number("t", "wall_ns", 7))
COUNTED = row(ADD, Samples(State.HIT, (66_000, 66_050), unit=INSTRUCTIONS))


def exported(name: str, run: ReportedRun) -> Any:
    """Export a run in a JSON format, and parse it."""
    return json.loads(FORMATS[name].render(run, "out")[0])


def test_flag_lists_every_format() -> None:
    assert tuple(FORMATS) == EXPORTS


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "repro"])
def test_earlier_file_format_is_detected_from_its_beginning(name: str) -> None:
    form = FORMATS[name]
    text, output = form.render(run_of(traces=(TRACE,)), "out")
    assert re.match(form.begins, text)
    assert [other for other, of in FORMATS.items() if re.match(of.begins, text)] == [name]
    assert output.endswith("written to out")
    if name != "trace":
        assert re.match(form.begins, form.render(hostile_run(), "out")[0])


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("test_it.py::test_add::add,dispatch_hit_ns,6940\n", True),
        ('"t.py::test_a::add(S0, S0)",misses_per_step,0\n', True),
        ('t.py::test_a::add,dispatch_hit_ns,6940,"add([f32[8]R*40], f32[8]R)@4"\n', True),
        ("t.py::test_a::add,dispatch_hit_ns,6940,0\n", False),  # an expected file
        ("t.py::test_a::add,dispatch_hit_ns,6940,1e-3,slower (why)\n", False),
        ("# why\n\nt.py::test_a::add,dispatch_hit_ns,6940,1e-3,slower\n", False),
        ("name,score,class\nann,5,b\n", False),
        ("ann,math,5\n", False),
        ('"open', False),
    ],
)
def test_results_file_is_distinguished_from_expected_file(text: str, is_one: bool) -> None:
    assert bool(re.match(FORMATS["csv"].begins, text)) is is_one


def test_traces_are_joined() -> None:
    form = FORMATS["trace"]
    text, output = form.render(run_of(traces=(TRACE, TRACE)), "out")
    assert output == "2 events written to out"
    assert [event["name"] for event in json.loads(text)["traceEvents"]] == ["step 1"] * 2


# Kineto's output for names with quotes: on separate lines, or on one line in torch 2.5.
QUOTED = """{"traceEvents": [
  {
    "ph": "X",
    "name": "the "hot", "pid": 1, step",
    "pid": 1, "args": {
      "name": "thread "0""
    }
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "k"q", "pid": 3, "tid": 4,
    "ts": 0
  }
]}"""


def test_quotes_in_names_of_a_trace_are_escaped() -> None:
    events = exported("trace", run_of(traces=(TRACE, QUOTED)))["traceEvents"]
    assert [event["name"] for event in events] == ["step 1", 'the "hot", "pid": 1, step', 'k"q']
    assert events[1]["args"] == {"name": 'thread "0"'}
    assert (events[2]["pid"], events[2]["ts"]) == (3, 0)


def test_invalid_trace_is_refused_by_its_file() -> None:
    with pytest.raises(DtDispatchError, match=r"^out was not written: .*profiler wrote invalid JSON"):
        FORMATS["trace"].render(run_of(traces=(TRACE, TRACE[:-1])), "out")


# ``interface BenchmarkResult`` of src/extract.ts, benchmark-action/github-action-benchmark at 8157ef49: name,
# value and unit are required, range and extra optional; ``extractCustomBenchmarkResult`` reads these five.
REQUIRED: dict[str, tuple[type, ...]] = {"name": (str,), "value": (int, float), "unit": (str,)}
OPTIONAL: dict[str, tuple[type, ...]] = {"range": (str,), "extra": (str,)}


def entries_of(run: ReportedRun) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = exported("github-action-benchmark", run)
    for entry in entries:
        assert REQUIRED.keys() <= entry.keys() <= {**REQUIRED, **OPTIONAL}.keys()
        assert all(isinstance(entry[name], {**REQUIRED, **OPTIONAL}[name]) for name in entry)
    return entries


def test_each_state_is_a_nanosecond_entry_with_scatter() -> None:
    miss, hit = entries_of(run_of())
    assert (miss["name"], hit["name"]) == (MISS, HIT)
    assert (hit["unit"], hit["value"], hit["range"]) == ("ns", 6900, "\xb1 2.2 %")
    assert hit["extra"].splitlines() == [ADD, "least of 6 samples, proved"]
    [noisy] = entries_of(run_of(row(ADD, Samples(State.HIT, (100, 900, 100, 900, 100, 900)))))
    assert noisy["extra"].splitlines()[-1].startswith("noisy: ")


def test_counts_are_entries_without_a_range() -> None:
    instructions, misses, wall = entries_of(run_of(COUNTED, numbers=NUMBERS))
    assert (instructions["value"], instructions["unit"]) == (66_000, "instructions")
    assert misses == {"name": "t.py::test_a::train::misses_per_step", "unit": "misses per step", "value": 2}
    assert wall["unit"] == "ns"
    assert not [entry for entry in (instructions, misses, wall) if "range" in entry]


def test_entry_names_have_no_line_breaks() -> None:
    for entry in entries_of(hostile_run()):
        assert all(text.isprintable() for text in (entry["name"], *entry.get("extra", "").splitlines()))


# https://bencher.dev/docs/reference/bencher-metric-format: the JSON Schema https://bencher.dev/bmf.json has
# these numeric properties, where only the first is required; names have a maximum length.
PROPERTIES, FIRST = {"value", "lower_value", "upper_value"}, {"value"}
LONGEST_BENCHMARK, LONGEST_MEASURE = 1024, 64


def metrics_of(run: ReportedRun) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = exported("bencher", run)
    for benchmark, measures in found.items():
        assert 0 < len(benchmark) <= LONGEST_BENCHMARK
        for measure, metric in measures.items():
            assert 0 < len(measure) <= LONGEST_MEASURE
            assert FIRST <= metric.keys() <= PROPERTIES
            assert all(isinstance(number, (int, float)) for number in metric.values())
    return found


def test_latency_range_spans_the_figures_of_both_halves() -> None:
    metrics = metrics_of(run_of())
    assert metrics[HIT] == {"latency": {"value": 6900, "lower_value": 6900, "upper_value": 7050}}
    assert list(metrics) == [MISS, HIT]


def test_latency_of_one_pass_has_only_a_value() -> None:
    [measures] = metrics_of(run_of(row(ADD, Samples(State.HIT, HITS, lengths=(6,))))).values()
    assert list(measures["latency"]) == ["value"]


def test_counts_and_other_times_have_own_measures() -> None:
    own = Unit(hit="thread_cpu_hit_ns", miss="thread_cpu_miss_ns")
    counted = Samples(State.MISS, (5, 6), unit=INSTRUCTIONS)
    timed = row(ADD, Samples(State.HIT, HITS, unit=own), counted)
    metrics = metrics_of(run_of(timed, numbers=NUMBERS[:1]))
    measures = ["time-ns", "instructions", "misses_per_step"]
    assert [list(measures) for measures in metrics.values()] == [[name] for name in measures]


def test_long_names_are_shortened_but_stay_unique() -> None:
    metrics = metrics_of(run_of(row("x" * 10_000), row("x" * 10_000 + "y")))
    assert len(metrics) == 4
    assert {name.rpartition("::")[2] for name in metrics} == {"miss", "hit"}
    assert len(metrics_of(hostile_run())) == 3 * len(hostile_run().measured)


# Saved runs


def test_empty_format_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    exports = [Export("csv", tmp_path / "a.csv"), Export("trace", tmp_path / "b")]
    with pytest.raises(DtDispatchError, match="b was not written: no steps were counted"):
        export_saved(run_of(), exports)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DtDispatchError, match="no result has a figure"):
        export_saved(ReportedRun(), exports[:1])


def test_files_must_differ_and_contain_only_exports(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    with pytest.raises(DtDispatchError, match="two formats have the same file"):
        export_saved(run_of(), [Export("csv", file), Export("bencher", tmp_path / "." / "a.csv")])
    assert export_saved(run_of(), [Export("csv", file)]) == [f"2 results written to {file}"]
    message = r"a\.csv has another format: name another file, or remove it"
    with pytest.raises(DtDispatchError, match=message):
        export_saved(run_of(), [Export("bencher", file)])


def test_scripts_are_written_to_a_folder_again(tmp_path: Path) -> None:
    export, other = Export("repro", tmp_path / "scripts"), tmp_path / "scripts" / "other.py"
    for _ in range(2):
        [message] = export_saved(run_of(op_row()), [export])
        assert message == f"1 script written to {export.path}"
        other.touch()
    assert {path.name for path in export.path.iterdir()} == {file_name(f"t.py::test_a::{ADD}"), "other.py"}


def test_folder_of_scripts_must_be_writable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("other")
    for path, message in (
        (file, "has another format: name another file"),
        (tmp_path / "none" / "scripts", "there is no folder"),
        (tmp_path / ("x" * 300), "cannot be written: File name too long"),
    ):
        with pytest.raises(DtDispatchError, match=message):
            export_saved(run_of(op_row()), [Export("repro", path)])


def test_beginning_with_colons_is_searched_once() -> None:
    assert not re.match(RESULT, ":" * 2**16)  # 12 s if each colon starts a search
    assert re.match(RESULT, "t.py::a::b,collectives,3\n")
