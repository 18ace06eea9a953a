"""dtdispatch.compile in a run of pytest: rows, tables, gates, captures and errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_dtdispatch.instructions.instruction_sampler import InstructionSampler
from pytest_dtdispatch.rounds.sampler import SAMPLERS, WallClock
from tests.plugin_runs import benchmarks_of, import_compilers, measure_source, text_of
from tests.probes import compiles_once_under_a_mode, needs_that

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("reset_compilers")]


import_compilers()

FEW = ("--benchmark-quiet", "-odtdispatch_compile_rounds=2")
DOUBLE = """
def double(x):
    return x + x

def test_double(dtdispatch, a):
    dtdispatch.compile(double, a, backend="aot_eager")
"""
BREAKS = """
def twice_broken(x):
    x = x + 1
    torch._dynamo.graph_break()
    x = x * 2
    torch._dynamo.graph_break()
    return x - 1

def test_breaks(dtdispatch):
    compiled = dtdispatch.compile(twice_broken, torch.ones(3), backend="eager", fullgraph=False)
    if dtdispatch.enabled:
        assert compiled.graph_breaks == 2

def test_recompiles(dtdispatch):
    others = [(torch.ones(4),), (torch.ones(5),), (torch.ones(6),)]
    compiled = dtdispatch.compile(lambda x: x * 2, torch.ones(3), name="f", backend="eager", others=others)
    if dtdispatch.enabled:
        assert compiled.recompiles == 1
"""


# Rows


def test_compile_has_saved_rows(pytester: pytest.Pytester) -> None:
    measure_source(pytester, DOUBLE, *FEW, "--benchmark-json=rows.json", passed=1)
    by_state = {row["params"]["state"]: row for row in benchmarks_of(pytester.path / "rows.json")}
    assert list(by_state) == ["call", "compile-cold", "compile-warm", "eager"]
    for state, row in by_state.items():
        assert row["fullname"] == f"test_it.py::test_double::double::{state}"
        assert row["group"] == f"dtdispatch {state}"
        assert (row["params"]["op"], row["params"]["mesh"]) == ("double", "4")
    assert by_state["compile-cold"]["stats"]["rounds"] == 2
    assert by_state["call"]["stats"]["rounds"] == 6
    assert (
        by_state["compile-cold"]["extra_info"]["proof"] == by_state["call"]["extra_info"]["proof"] == "proved"
    )
    assert by_state["compile-cold"]["extra_info"]["contains"].startswith("torch.compile and the first call")


def test_breaks_and_recompiles_are_counted_exactly_and_listed(pytester: pytest.Pytester) -> None:
    measure_source(pytester, BREAKS, *FEW, passed=2)
    # They are also counted if nothing is timed, and a failed assertion lists them.
    failing = BREAKS.replace("breaks == 2", "breaks == 0")
    result = measure_source(pytester, failing, *FEW, "--dtdispatch-metric=counts", failed=1, passed=1)
    result.stdout.fnmatch_lines(["E*assert 2 == 0", "E*test_it.py:*: *"])


# Captures


@needs_that(compiles_once_under_a_mode)
def test_only_ops_outside_compiled_regions_have_rows(pytester: pytest.Pytester) -> None:
    body = """
    graphs = []
    from torch._dynamo.backends.debugging import aot_eager

    def backend(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    compiled = torch.compile(double, backend=backend, fullgraph=True)
    with dtdispatch.capture() as book:
        results = [compiled(a), a * 3, compiled(a)]
    results.append(compiled(a))
    assert [measurement.op for measurement in book.measurements()] == ["mul.Tensor"]
    assert len(graphs) == 1
    for result in (results[0], *results[2:]):
        # an old fake group leaves its outputs uninitialized, possibly with NaN
        torch.testing.assert_close(result.to_local(), a.to_local() * 2, rtol=0, atol=0, equal_nan=True)
"""
    compiles = '    dtdispatch.compile(double, a, backend="aot_eager")\n'
    measure_source(pytester, DOUBLE.replace(compiles, body), "--benchmark-quiet", passed=1)


def test_failed_compile_reports_reason_and_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    raises = DOUBLE.replace("    return x + x", "    raise ValueError('of the program')")
    source = raises + BREAKS.replace("fullgraph=False", "fullgraph=True")
    result = measure_source(pytester, source, *FEW, "-k", "breaks or double", failed=2)
    text = text_of(result)
    broken = r"\nE .*MeasurementError: fullgraph=True, and there is a graph break at \S+test_it.py:\d+: "
    assert len(re.findall(broken, text)) == 1
    assert re.search(r"\ntest_it.py:\d+: ValueError", text)
    assert "pytest_dtdispatch/" not in text
    # Compilation leaves no files in the temporary folder.
    measure_source(pytester, DOUBLE, *FEW, passed=1)
    assert not list(tmp_path.iterdir())


# Instructions


def test_compile_has_instruction_rows(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this process stands for the instruction counter."""
    sampler = InstructionSampler(lambda: (WallClock().meter, None))
    monkeypatch.setitem(SAMPLERS, "clock-counts", sampler)
    few = ("--dtdispatch-rounds=5", "--dtdispatch-repeat=2", "-odtdispatch_compile_rounds=1")
    flags = ("--dtdispatch-metric=clock-counts", "--dtdispatch-export=csv:results.csv")
    measure_source(pytester, DOUBLE, *flags, *few, "--benchmark-quiet", passed=1)
    results = [line.rsplit(",", 2) for line in (pytester.path / "results.csv").read_text().splitlines()]
    found = {metric: int(value) for _, metric, value in results}
    assert found.keys() == {
        *("instruction_count", "compile_time_instruction_count"),
        *("graphs", "graph_breaks", "recompiles"),
    }
    assert found["compile_time_instruction_count"] > found["instruction_count"] > 0
    assert {name for name, _, _ in results} == {"test_it.py::test_double::double"}
