"""dtdispatch.compile in a run of pytest: rows, table, gates, captures, mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pytest_dtdispatch.instructions.instruction_sampler import InstructionSampler
from pytest_dtdispatch.measuring.sampler import SAMPLERS, WallClock
from tests.plugin_runs import (
    IMPORTS,
    MEASURED,
    assert_mistakes,
    import_compilers,
    measure,
    rows,
    run,
    text_of,
)
from tests.probes import NATIVE_CACHE, compiles_once_under_a_mode, has, needs_that

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Propagations while `x + x` is traced: some torch without a native cache asks no cache then.
ONCE = "1" if has(NATIVE_CACHE) else r"[1-9]\d*"

import_compilers()

FEW = ("--benchmark-quiet", "-odtdispatch_compile_rounds=2")
DOUBLE = (
    IMPORTS
    + """
def double(x):
    return x + x

@pytest.fixture
def a(device_mesh):
    return sharded(device_mesh)

def test_double(dtdispatch, a):
    dtdispatch.compile(double, a, backend="aot_eager")
"""
)
BREAKS = (
    IMPORTS
    + """
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
)


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLUMNS", "200")
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# Rows


def test_rows_go_into_pytest_benchmark(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_rows=DOUBLE)
    result, found = rows(pytester, *FEW)
    result.assert_outcomes(passed=1)
    by_state = {row["params"]["state"]: row for row in found}
    assert list(by_state) == ["call", "compile-cold", "compile-warm", "eager"]
    for state, row in by_state.items():
        assert row["fullname"] == f"test_rows.py::test_double::double::{state}"
        assert row["group"] == f"dtdispatch {state}"
        assert (row["params"]["op"], row["params"]["mesh"]) == ("double", "4")
    assert by_state["compile-cold"]["stats"]["rounds"] == 2
    assert by_state["call"]["stats"]["rounds"] == 6
    assert by_state["compile-cold"]["extra_info"]["proof"].startswith("each sample: caches were empty")
    assert by_state["call"]["extra_info"]["proof"].endswith("nothing was compiled")
    assert by_state["compile-cold"]["extra_info"]["contains"].startswith("torch.compile and the first call")


def test_the_table_has_a_line_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_table=DOUBLE)
    text = text_of(measure(pytester, *FEW))
    assert re.search(r"\n  compiled +cold s +warm ms +call us +eager us +cold/call +graphs +breaks", text)
    assert "test_table.py::test_double (compiled by aot_eager)" in text
    assert re.search(rf"\n  double( +[\d.,]+){{5}} +1 +0 +\d+ +0 +{ONCE} .*2\+2\+6(  noisy)?\n", text)
    assert "signature " not in text
    verbose = text_of(measure(pytester, *FEW, "-v"))
    misses = "1" if has(NATIVE_CACHE) else r"\d+"
    assert re.search(rf"tracing: {ONCE} propagations, {misses} misses of the sharding caches", verbose)


def test_an_argument_beats_the_marker_and_the_marker_the_ini_file(pytester: pytest.Pytester) -> None:
    marker = "@pytest.mark.dtdispatch(compile_backend='eager')"
    source = DOUBLE.replace("def test_double", f"{marker}\ndef test_double")
    pytester.makepyfile(test_given=source, test_marked=source.replace(', backend="aot_eager"', ""))
    ini = "-odtdispatch_compile_backend=aot_eager_decomp_partition"
    text = text_of(measure(pytester, *FEW, ini))
    assert "test_given.py::test_double (compiled by aot_eager)" in text
    assert "test_marked.py::test_double (compiled by eager)" in text


def test_without_the_flag_nothing_is_compiled(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(BREAKS.replace("backend=", "backend='no such backend' or "))
    run(pytester).assert_outcomes(passed=2)


def test_counts_are_taken_where_nothing_is_timed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_counts=BREAKS)
    result, found = rows(pytester, *FEW, "--dtdispatch-metric=counts")
    result.assert_outcomes(passed=2)
    assert found == []
    assert re.search(r"\n  twice_broken +3 +2 +\d+ +0 +0 ", text_of(result))


def test_breaks_and_recompiles_are_counted_exactly_and_listed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_listed=BREAKS)
    result = measure(pytester, *FEW)
    result.assert_outcomes(passed=2)
    text = text_of(result)
    assert len(re.findall(r"graph break at \S*test_listed.py:(16|18): ", text)) == 2
    assert len(re.findall(r"recompiled <lambda> \(\S*test_listed.py:\d+\): ", text)) == 1


def test_a_failed_assertion_on_a_count_lists_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_listed=BREAKS.replace("breaks == 2", "breaks == 0"))
    result = measure(pytester, *FEW)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["E*assert 2 == 0", "E*test_listed.py:1[68]: *"])


# Gates


def test_limits_and_expected_results_hold_counts(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(BREAKS)
    result = measure(pytester, *FEW, "--dtdispatch-max=graph_breaks=0", "--dtdispatch-max=recompiles=0")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E*graph_breaks=0, and there are 2"])
    result.stdout.fnmatch_lines(["E*recompiles=0, and there are 1"])
    pytester.makepyfile(test_named=BREAKS)
    name = "test_named.py::test_breaks::twice_broken"
    pytester.makefile(".csv", expected=f"{name},graphs,3,0\n{name},graph_breaks,1,0\n{name},recompiles,0,0\n")
    limits = ("--dtdispatch-max=graph_breaks=2,recompiles=0", "--dtdispatch-expected=expected.csv")
    result = measure(pytester, *FEW, *limits, "test_named.py")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["gate: failed against expected.csv: 2 passed, 1 regressed*"])


def test_a_limit_of_the_marker_holds_for_its_test(pytester: pytest.Pytester) -> None:
    marker = "@pytest.mark.dtdispatch(max='graph_breaks=1')"
    marked = BREAKS.replace("def test_breaks", f"{marker}\ndef test_breaks")
    idle = "import pytest\n@pytest.mark.dtdispatch(max='graph_breaks=0')\ndef test_plain(dtdispatch): pass"
    pytester.makepyfile(test_marked=marked, test_idle=idle)
    result = measure(pytester, *FEW, "-k", "breaks or plain")
    result.assert_outcomes(failed=2, deselected=1)
    result.stdout.fnmatch_lines_random(
        ["E*graph_breaks=1, and there are 2", "graph_breaks=0 judged nothing: nothing was compiled*"]
    )


def test_thresholds_of_saved_runs_hold_for_compiles(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(DOUBLE.replace("aot_eager", "eager"))
    eight = ("--benchmark-quiet", "-odtdispatch_compile_rounds=8")
    measure(pytester, *eight, "--benchmark-save=base").assert_outcomes(passed=1)
    gate = ("--benchmark-compare=0001", "--dtdispatch-fail=compile-cold=median:10000%")
    result = measure(pytester, *eight, *gate)
    # Where the machine is too busy to tell, no row could be judged.
    noisy = r"gate: failed against .*: 1 inconclusive(, 1 mismatched)?\n(.*\n)+ +noisy"
    assert re.search(f"gate: passed against .*: 1 passed|{noisy}", text_of(result))


# Captures


@needs_that(compiles_once_under_a_mode)
def test_ops_of_a_compiled_region_have_no_rows_and_those_outside_have(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        DOUBLE.replace(
            '    dtdispatch.compile(double, a, backend="aot_eager")\n',
            """
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
""",
        )
    )
    measure(pytester, "--benchmark-quiet").assert_outcomes(passed=1)


def test_what_ran_first_in_a_capture_keeps_running_compiled(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        DOUBLE
        + """
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
    )
    measure(pytester, *FEW).assert_outcomes(passed=1)


def test_a_mistake_is_told_at_its_line(pytester: pytest.Pytester) -> None:
    mistakes = [
        ("[dtdispatch.call(abs, a), dtdispatch.compile(abs, a)]", "the name 'abs' is taken"),
        ("dtdispatch.compile(abs, a, backend='inductr')", "backend='inductr' is none of torch"),
    ]
    assert_mistakes(pytester, mistakes, *MEASURED, *FEW)


def test_a_graph_break_is_told_in_one_line_with_its_place(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_one=BREAKS.replace("fullgraph=False", "fullgraph=True"))
    result = measure(pytester, *FEW, "-k", "breaks")
    result.assert_outcomes(failed=1)
    text = text_of(result)
    [line] = [each for each in text.splitlines() if each.startswith("E ")]
    assert re.search(r"CompileError: fullgraph=True, and there is a graph break at \S+test_one.py:16: ", line)
    assert "pytest_dtdispatch/" not in text


def test_what_the_function_raises_fails_its_test_with_its_own_traceback(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_fails=DOUBLE.replace("    return x + x", "    raise ValueError('of the program')")
    )
    result = measure(pytester, *FEW)
    result.assert_outcomes(failed=1)
    text = text_of(result)
    assert "test_fails.py:15: ValueError" in text
    assert "pytest_dtdispatch/" not in text


def test_a_run_is_none_the_wiser_of_folders(pytester: pytest.Pytester, tmp_path: Any) -> None:
    """What a run compiles leaves nothing in the folder for temporary files."""
    pytester.makepyfile(DOUBLE)
    import tempfile

    before = tempfile.tempdir
    tempfile.tempdir = str(tmp_path)
    try:
        measure(pytester, *FEW).assert_outcomes(passed=1)
    finally:
        tempfile.tempdir = before
    assert not list(tmp_path.iterdir())


# Instructions


def test_instructions_of_a_compile_are_a_result_under_pytorch_s_name(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts here is the clock, in this process."""
    sampler = InstructionSampler(lambda: (WallClock().meter, None))
    monkeypatch.setitem(SAMPLERS, "clock-counts", sampler)
    pytester.makepyfile(test_named=DOUBLE)
    few = ("--dtdispatch-rounds=5", "--dtdispatch-repeat=2", "-odtdispatch_compile_rounds=1")
    flags = ("--dtdispatch", "--dtdispatch-metric=clock-counts", "--dtdispatch-export=csv:results.csv")
    result = run(pytester, *flags, *few, "--benchmark-quiet")
    result.assert_outcomes(passed=1)
    numbers = rf"( +[\d,]+){{4}} +1 +0 +\d+ +0 +{ONCE} .*1\+0\+10(  noisy)?"
    assert re.search(rf"\n  double{numbers}\n", text_of(result))
    results = [line.rsplit(",", 2) for line in (pytester.path / "results.csv").read_text().splitlines()]
    found = {metric: int(value) for _, metric, value in results}
    assert found.keys() == {
        *("instruction_count", "compile_time_instruction_count"),
        *("graphs", "graph_breaks", "recompiles"),
    }
    assert found["compile_time_instruction_count"] > found["instruction_count"] > 0
    assert {name for name, _, _ in results} == {"test_named.py::test_double::double"}
