"""Comparisons in a run of pytest: rows, the table, gates, files, mistakes."""

from __future__ import annotations

import re

import pytest

from tests.plugin_runs import IMPORTS, assert_says_once, measure, rows, run, text_of

pytestmark = pytest.mark.torch

MLP = (
    IMPORTS
    + """
def test_mlp(dtdispatch, device_mesh):
    a = sharded(device_mesh)
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
)


def mlp(more: str = "") -> str:
    return MLP.replace("{more}", more)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


def test_without_the_flag_each_variant_runs_once_and_claims_hold(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mlp())
    result = run(pytester, "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*calls: 1"])


def test_every_variant_is_a_row_of_one_group(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=mlp())
    result, found = rows(pytester, "--benchmark-columns=median")
    result.assert_outcomes(passed=1)
    names = [f"test_it.py::test_mlp::mlp[{label}]::call" for label in ("dtensor", "plain")]
    assert [row["fullname"] for row in found] == names
    assert {row["group"] for row in found} == {"dtdispatch call test_it.py::test_mlp::mlp"}
    assert {row["stats"]["rounds"] for row in found} == {15}
    assert {row["params"]["state"] for row in found} == {"call"}
    [contains] = {row["extra_info"]["contains"] for row in found}
    assert contains == "variants in turn; end to end from Python, autograd included"
    result.stdout.fnmatch_lines(["*benchmark 'dtdispatch call test_it.py::test_mlp::mlp': 2 tests*"])


def test_a_narrow_terminal_has_whole_lines_with_what_was_told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    pytester.makepyfile(test_it=mlp())
    [first, plain] = [line for line in measure(pytester).outlines if line.startswith("  mlp[")]
    assert max(len(first), len(plain)) <= 80
    assert plain.endswith("faster")
    assert "(" in plain  # the interval of its ratio


def test_the_table_has_a_line_for_each_variant(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=mlp())
    lines = measure(pytester, "--benchmark-quiet").outlines
    title = lines.index(
        "test_it.py::test_mlp: mlp (variants in turn; end to end from Python, autograd included)"
    )
    assert re.search(r"variant +median us +quietest us +\+-% +times +misses +redistributes", lines[title - 1])
    assert re.search(r"mlp\[dtensor\].* 1 +0 +0 +0 +0 +15 +first$", lines[title + 1])
    assert re.search(r"mlp\[plain\].* 0\.\d+ \(0\.\d+ to 0\.\d+\) +0 +0 +0 +0 +15 +faster$", lines[title + 2])


def test_figures_and_counts_go_into_files_that_gates_judge(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=mlp())
    saved = measure(pytester, "--benchmark-save=base", "--dtdispatch-export=csv:found.csv")
    saved.assert_outcomes(passed=1)
    text = (pytester.path / "found.csv").read_text()
    for label in ("dtensor", "plain"):
        for metric in ("call_ns", "misses_per_call", "redistributes_per_call", "collectives_per_call"):
            assert re.search(rf"test_it.py::test_mlp::mlp\[{label}\],{metric},\d+", text)
    file = pytester.path / "expected.csv"
    file.write_text("test_it.py::test_mlp::mlp[plain],redistributes_per_call,0,0\n")
    gate = ("--benchmark-compare", "--dtdispatch-fail=median:1000%", "--dtdispatch-expected=expected.csv")
    result = measure(pytester, *gate)
    assert result.ret == 0
    # A row whose samples scatter too far is judged by no gate; both are named in any case.
    result.stdout.re_match_lines([r"gate: passed against .*: (2 passed|1 passed, 1 inconclusive)$"])


def test_a_claim_that_fails_says_ratio_and_interval(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mlp("assert compared['dtensor'].faster_than('plain')"))
    result = measure(pytester)
    result.assert_outcomes(failed=1)
    found = "dtensor against plain: slower, *(* to *) times as long in 15 rounds"
    result.stdout.fnmatch_lines([f"*assert {found}; faster asks for all of it below 0.97*"])


def test_unequal_results_fail_before_anything_is_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        IMPORTS
        + """
def test_it(dtdispatch):
    dtdispatch.compare({"zeros": lambda: torch.zeros(2), "ones": lambda: torch.ones(2)})
"""
    )
    for flags in ((), ("--dtdispatch",)):
        result = run(pytester, *flags)
        result.assert_outcomes(failed=1)
        assert "the results of 'ones' and 'zeros' are not equal: Tensor-likes are not equal!" in text_of(
            result
        )


def test_where_latencies_are_not_taken_a_claim_is_disabled(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mlp())
    result = measure(pytester, "--dtdispatch-metric=counts")
    result.assert_outcomes(failed=1)
    says = "'mlp': plain faster_than('dtensor', by=0.2) is disabled: latencies are not taken"
    assert_says_once(result, says)
    assert "mlp[dtensor]" in text_of(result)
