"""dtdispatch.compile in a run of pytest: rows, table, gates, captures, mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pytest_dtdispatch.instructions.instruction_sampler import InstructionSampler
from pytest_dtdispatch.measuring.sampler import SAMPLERS, WallClock
from tests.plugin_runs import (
    IMPORTS,
    MEASURED,
    assert_mistakes,
    benchmarks_of,
    import_compilers,
    measure,
    measure_source,
    run,
    text_of,
)
from tests.probes import NATIVE_CACHE, compiles_once_under_a_mode, has, needs_that

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Propagations while `x + x` is traced: some torch without a native cache asks no cache then.
ONCE = "1" if has(NATIVE_CACHE) else r"[1-9]\d*"

import_compilers()

FEW = ("--benchmark-quiet", "-odtdispatch_compile_rounds=2")
DOUBLE = """
def double(x):
    return x + x

@pytest.fixture
def a(device_mesh):
    return sharded(device_mesh)

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


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# Rows


def test_a_compile_has_rows_in_files_and_a_line_of_its_own(pytester: pytest.Pytester) -> None:
    result = measure_source(pytester, DOUBLE, *FEW, "-v", "--benchmark-json=rows.json", passed=1)
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
    text = text_of(result)
    assert re.search(r"\n  compiled +cold s +warm ms +call us +eager us +graphs +breaks", text)
    assert "test_it.py::test_double (compiled by aot_eager)" in text
    assert re.search(rf"\n  double( +[\d.,]+){{4}} +1 +0 +\d+ +0 +{ONCE} .*2\+2\+6(  noisy)?\n", text)
    assert "signature " not in text


def test_without_the_flag_nothing_is_compiled(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(IMPORTS + BREAKS.replace("backend=", "backend='no such backend' or "))
    run(pytester).assert_outcomes(passed=2)


def test_breaks_and_recompiles_are_counted_exactly_and_listed(pytester: pytest.Pytester) -> None:
    text = text_of(measure_source(pytester, BREAKS, *FEW, passed=2))
    assert len(re.findall(r"graph break at \S*test_it.py:(\d+): ", text)) == 2
    assert len(re.findall(r"recompiled <lambda> \(\S*test_it.py:\d+\): ", text)) == 1
    # Where nothing is timed they are counted too, and an assertion that fails lists them.
    failing = BREAKS.replace("breaks == 2", "breaks == 0")
    result = measure_source(pytester, failing, *FEW, "--dtdispatch-metric=counts", failed=1, passed=1)
    assert re.search(r"\n  twice_broken +3 +2 +\d+ +0 +0 ", text_of(result))
    result.stdout.fnmatch_lines(["E*assert 2 == 0", "E*test_it.py:*: *"])


# Gates


def test_limits_and_expected_results_hold_counts(pytester: pytest.Pytester) -> None:
    marker = "@pytest.mark.dtdispatch(max='graph_breaks={}')\ndef test_"
    marked = BREAKS.replace("def test_b", f"{marker.format(1)}b")
    source = f"{marked}\n{marker.format(0)}plain(dtdispatch): pass"
    result = measure_source(pytester, source, *FEW, "--dtdispatch-max=recompiles=0", failed=3)
    lines = ("E*graph_breaks=1, and there are 2", "E*recompiles=0, and there are 1")
    idle = "graph_breaks=0 judged nothing: nothing was compiled*"
    result.stdout.fnmatch_lines_random([*lines, idle])
    name = "test_it.py::test_breaks::twice_broken"
    pytester.makefile(".csv", expected=f"{name},graphs,3,0\n{name},graph_breaks,1,0\n{name},recompiles,0,0\n")
    result = measure(pytester, *FEW, "--dtdispatch-max=graph_breaks=2", "--dtdispatch-expected=expected.csv")
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(["gate: failed against expected.csv: 2 passed, 1 regressed*"])


def test_thresholds_of_saved_runs_hold_for_compiles(pytester: pytest.Pytester) -> None:
    eight = ("--benchmark-quiet", "-odtdispatch_compile_rounds=8")
    measure_source(pytester, DOUBLE.replace("aot_eager", "eager"), *eight, "--benchmark-save=base", passed=1)
    gate = ("--benchmark-compare=0001", "--dtdispatch-fail=compile-cold=median:10000%")
    result = measure(pytester, *eight, *gate)
    # Where the machine is too busy to tell, no row could be judged.
    noisy = r"gate: failed against .*: 1 inconclusive(, 1 mismatched)?\n(.*\n)+ +noisy"
    assert re.search(f"gate: passed against .*: 1 passed|{noisy}", text_of(result))


# Captures


@needs_that(compiles_once_under_a_mode)
def test_ops_of_a_compiled_region_have_no_rows_and_those_outside_have(pytester: pytest.Pytester) -> None:
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
        # an old fake group leaves its outputs as they lie in memory, where NaN may be
        torch.testing.assert_close(result.to_local(), a.to_local() * 2, rtol=0, atol=0, equal_nan=True)
"""
    compiles = '    dtdispatch.compile(double, a, backend="aot_eager")\n'
    measure_source(pytester, DOUBLE.replace(compiles, body), "--benchmark-quiet", passed=1)


def test_what_ran_first_in_a_capture_keeps_running_compiled(pytester: pytest.Pytester) -> None:
    body = """
    assert not _get_current_dispatch_mode_stack()
    compiled = torch.compile(double, backend="aot_eager", fullgraph=True)
    with dtdispatch.capture():
        compiled(a)

    class Seen(Passing):
        ops = []
        @classmethod
        def is_infra_mode(cls):
            return True
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.ops.append(types)
            return func(*args, **(kwargs or {}))

    with Seen() as seen:
        compiled(a)
    from torch.distributed.tensor import DTensor
    assert seen.ops and not any(DTensor in types for types in seen.ops)
"""
    measure_source(pytester, DOUBLE + body, *FEW, passed=1)


def test_a_mistake_is_told_at_its_line(pytester: pytest.Pytester) -> None:
    mistakes = [
        ("[dtdispatch.call(abs, a), dtdispatch.compile(abs, a)]", "the name 'abs' is taken"),
        ("dtdispatch.compile(abs, a, backend='inductr')", "backend='inductr' is none of torch"),
    ]
    assert_mistakes(pytester, mistakes, *MEASURED, *FEW)


def test_what_keeps_a_function_from_compiling_is_told_with_its_place(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    raises = DOUBLE.replace("    return x + x", "    raise ValueError('of the program')")
    source = raises + BREAKS.replace("fullgraph=False", "fullgraph=True")
    result = measure_source(pytester, source, *FEW, "-k", "breaks or double", failed=2)
    text = text_of(result)
    broken = r"\nE .*CompileError: fullgraph=True, and there is a graph break at \S+test_it.py:\d+: "
    assert len(re.findall(broken, text)) == 1
    assert re.search(r"\ntest_it.py:\d+: ValueError", text)
    assert "pytest_dtdispatch/" not in text
    # What a run compiles leaves nothing in the folder for temporary files.
    measure_source(pytester, DOUBLE, *FEW, passed=1)
    assert not list(tmp_path.iterdir())


# Instructions


def test_instructions_of_a_compile_are_a_result_under_pytorch_s_name(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts here is the clock, in this process."""
    sampler = InstructionSampler(lambda: (WallClock().meter, None))
    monkeypatch.setitem(SAMPLERS, "clock-counts", sampler)
    few = ("--dtdispatch-rounds=5", "--dtdispatch-repeat=2", "-odtdispatch_compile_rounds=1")
    flags = ("--dtdispatch-metric=clock-counts", "--dtdispatch-export=csv:results.csv")
    result = measure_source(pytester, DOUBLE, *flags, *few, "--benchmark-quiet", passed=1)
    numbers = rf"( +[\d,]+){{3}} +1 +0 +\d+ +0 +{ONCE} .*1\+0\+10(  noisy)?"
    assert re.search(rf"\n  double{numbers}\n", text_of(result))
    results = [line.rsplit(",", 2) for line in (pytester.path / "results.csv").read_text().splitlines()]
    found = {metric: int(value) for _, metric, value in results}
    assert found.keys() == {
        *("instruction_count", "compile_time_instruction_count"),
        *("graphs", "graph_breaks", "recompiles"),
    }
    assert found["compile_time_instruction_count"] > found["instruction_count"] > 0
    assert {name for name, _, _ in results} == {"test_it.py::test_double::double"}
