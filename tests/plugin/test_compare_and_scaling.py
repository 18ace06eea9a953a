"""Comparisons and scalings in a run of pytest: rows, tables, gates, files, claims and limits."""

from __future__ import annotations

import re

import pytest

from pytest_dtdispatch.report.run import read_run
from tests.plugin_runs import assert_reported_once, benchmarks_of, measure, measure_source, run, text_of

pytestmark = pytest.mark.torch

MLP = """
def test_mlp(dtdispatch, a):
    local = a.to_local()
    calls = []

    def plain():
        calls.append(1)
        return [local + local for _ in range(4)] and None

    def dtensor():
        return [a + a for _ in range(20)] and None

    compared = dtdispatch.compare({"dtensor": dtensor, "plain": plain}, name="mlp")
    print("calls:", len(calls))
    assert compared["plain"].faster_than("dtensor", by=0.2)
    assert not compared["plain"].slower_than("dtensor")
    assert compared["dtensor"].counts.misses == 0
    {more}
"""


def mlp(more: str = "") -> str:
    return MLP.replace("{more}", more)


def test_variants_are_rows_of_one_group(pytester: pytest.Pytester) -> None:
    flags = ("--benchmark-columns=median", "--benchmark-json=rows.json", "--benchmark-save=base")
    result = measure_source(pytester, mlp(), *flags, "--dtdispatch-export=csv:found.csv", passed=1)
    found = benchmarks_of(pytester.path / "rows.json")
    names = [f"test_it.py::test_mlp::mlp[{label}]::call" for label in ("dtensor", "plain")]
    assert [row["fullname"] for row in found] == names
    assert {row["group"] for row in found} == {"dtdispatch call test_it.py::test_mlp::mlp"}
    [rounds] = {row["stats"]["rounds"] for row in found}  # as many of each, fewer on a busy machine
    assert rounds > 1
    assert {row["params"]["state"] for row in found} == {"call"}
    subtitle = "variants in turn; end to end from Python, autograd included"
    assert {row["extra_info"]["contains"] for row in found} == {subtitle}
    result.stdout.fnmatch_lines(["*benchmark 'dtdispatch call test_it.py::test_mlp::mlp': 2 tests*"])
    text = (pytester.path / "found.csv").read_text()
    for label in ("dtensor", "plain"):
        for metric in ("call_ns", "misses_per_call", "redistributes_per_call", "collectives_per_call"):
            assert re.search(rf"test_it.py::test_mlp::mlp\[{label}\],{metric},\d+", text)
    row = "test_it.py::test_mlp::mlp[plain],redistributes_per_call,0,0\n"
    (pytester.path / "expected.csv").write_text(row)
    gate = ("--benchmark-compare", "--dtdispatch-fail=median:1000%", "--dtdispatch-expected=expected.csv")
    judged = measure(pytester, *gate, "--benchmark-json=judged.json")
    # On a busy machine, noisy rows are inconclusive, and a gate that judges no row fails.
    of_times, of_counts = read_run(pytester.path / "judged.json").gates
    assert [str(verdict.row) for verdict in of_times.verdicts] == names
    assert {str(verdict.verdict) for verdict in of_times.verdicts} <= {"passed", "inconclusive"}
    assert not of_counts.has_failed
    assert judged.ret == of_times.has_failed
    unmeasured = run(pytester, "-s", passed=1)
    unmeasured.stdout.fnmatch_lines(["*calls: 1"])


def test_failed_claim_shows_ratio_and_interval(pytester: pytest.Pytester) -> None:
    """A failed claim reports ratio and interval. Claims are disabled if nothing is timed."""
    claim = "assert compared['dtensor'].faster_than('plain')"
    result = measure_source(pytester, mlp(claim), failed=1)
    result.stdout.fnmatch_lines(["*assert dtensor against plain: slower, *(* to *) times as long*"])
    result = measure(pytester, "--dtdispatch-metric=counts", failed=1)
    assert_reported_once(result, "plain faster_than('dtensor', by=0.2) is disabled")


def test_unequal_results_fail_before_anything_is_measured(pytester: pytest.Pytester) -> None:
    source = """
def test_unequal(dtdispatch):
    dtdispatch.compare({"zeros": lambda: torch.zeros(2), "ones": lambda: torch.ones(2)})
"""
    for result in (measure_source(pytester, source), run(pytester)):
        result.assert_outcomes(failed=1)
        message = "the results of 'ones' and 'zeros' are not equal: Tensor-likes are not equal!"
        assert message in text_of(result)


# Scalings

SIZES = (1, 4, 16, 64)
# A hit runs `size` adds; a miss is dominated by the first of them.
ADDS = """
def test_adds(dtdispatch, a):
    def adds(n):
        return lambda: [a + a for _ in range(n)]

    scaling = dtdispatch.scaling(adds, (1, 4, 16, 64), {arguments})
    assert scaling.miss.exponent < 3
    print("sizes:", *scaling.sizes)

def test_meshes(dtdispatch, mesh_factory):
    def add(ndim):
        a = sharded(mesh_factory((2,) * ndim))
        return lambda: a + a

    dtdispatch.scaling(add, (1, 2, 3))

def test_once(dtdispatch):
    plain = torch.ones(2, 3)
    dtdispatch.scaling(lambda n: lambda: plain.t_(), (1, 8), name="t_", max_exponent=5)
"""


def adds(arguments: str = "") -> str:
    return ADDS.replace("{arguments}", arguments)


def test_sizes_are_rows_above_the_exponents(pytester: pytest.Pytester) -> None:
    flags = ("-s", "--dtdispatch-rounds=8", "--dtdispatch-max-time=60", "--benchmark-json=rows.json")
    result = measure_source(pytester, adds("max_exponent=5"), *flags, passed=2, failed=1)
    result.stdout.fnmatch_lines(["*sizes: 1 4 16 64"])
    every = benchmarks_of(pytester.path / "rows.json")
    found, meshes = ([row for row in every if test in row["fullname"]] for test in ("adds", "meshes"))
    # Meshes of all sizes share the process group of the largest.
    assert [row["params"]["mesh"] for row in meshes[::2]] == ["2", "2x2", "2x2x2"]
    once = "no miss was measured (runs once: it changed the layout of a tensor that it wrote to)"
    assert f"E max_exponent=5: miss not fitted: {once}; hit not" in " ".join(text_of(result).split())
    assert [row["fullname"] for row in found] == [
        f"test_it.py::test_adds::adds[{size}]::{state}" for size in SIZES for state in ("miss", "hit")
    ]
    assert [row["stats"]["rounds"] for row in found] == [14, 42] * len(SIZES)
    assert {row["params"]["mesh"] for row in found} == {"4"}
    assert {row["extra_info"]["contains"] for row in found} == {"end to end from Python, autograd included"}
    assert "grows as" not in text_of(measure(pytester, "-qq", "-kadds"))
    unmeasured = run(pytester, "-s", passed=3)
    unmeasured.stdout.fnmatch_lines(["*sizes:"])


def test_exceeded_max_exponent_fails_but_saves_rows(pytester: pytest.Pytester) -> None:
    flags = ("-k", "adds", "--benchmark-json=rows.json")
    result = measure_source(pytester, adds("max_exponent=0.1"), *flags, failed=1)
    assert_reported_once(result, "GateError: adds: over its limits")
    result.stdout.fnmatch_lines([">       scaling = dtdispatch.scaling(*"])
    message = r".*hit grows as size\^\S+ \(\S+ to \S+ in 7 passes\), all of it above the limit"
    result.stdout.re_match_lines([message])
    assert len(benchmarks_of(pytester.path / "rows.json")) == 2 * len(SIZES)
