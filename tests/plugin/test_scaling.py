"""Scalings in a run of pytest: rows, the section of the terminal, gates, mistakes."""

from __future__ import annotations

import re

import pytest

from tests.plugin_runs import IMPORTS, assert_says_once, measure, rows, run, text_of

pytestmark = pytest.mark.torch

SIZES = (1, 4, 16, 64)
# A hit of this takes as many adds as its size says; a miss is mostly that of the first of them.
ADDS = (
    IMPORTS
    + """
def test_adds(dtdispatch, device_mesh):
    a = sharded(device_mesh)

    def adds(n):
        return lambda: [a + a for _ in range(n)]

    scaling = dtdispatch.scaling(adds, (1, 4, 16, 64), {arguments})
    assert scaling.miss.exponent < 3
    print("points:", *(point.size for point in scaling.points))
"""
)
FIT = r"size\^-?\d+\.\d\d \(-?\d+\.\d\d to -?\d+\.\d\d in 7 passes\), from size to size( x\d+\.\d\d,?){3}"


def adds(arguments: str = "") -> str:
    return ADDS.replace("{arguments}", arguments)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


def test_without_the_flag_each_size_runs_once_and_nothing_is_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(adds("max_exponent=1e-6"))
    result = run(pytester, "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*points:"])


def test_every_size_is_a_row_with_the_samples_of_all_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=adds())
    result, found = rows(pytester, "-qq", "-s", "--dtdispatch-rounds=8", "--dtdispatch-max-time=60")
    assert result.ret == pytest.ExitCode.OK
    assert "grows as" not in text_of(result)
    result.stdout.fnmatch_lines(["*points: 1 4 16 64"])
    assert [row["fullname"] for row in found] == [
        f"test_it.py::test_adds::adds[{size}]::{state}" for size in SIZES for state in ("miss", "hit")
    ]
    assert [row["stats"]["rounds"] for row in found] == [14, 42] * len(SIZES)
    assert {row["params"]["mesh"] for row in found} == {"4"}
    assert {row["extra_info"]["contains"] for row in found} == {"end to end from Python, autograd included"}


def test_exponents_stand_below_the_table_a_line_a_state(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=adds("max_exponent=5"))
    result = measure(pytester, "--benchmark-quiet")
    result.assert_outcomes(passed=1)
    lines = result.outlines
    title = lines.index("test_it.py::test_adds: adds at sizes 1, 4, 16, 64")
    assert re.fullmatch(rf"  miss grows as {FIT}; below max_exponent=5", lines[title + 1])
    assert re.fullmatch(rf"  hit grows as {FIT}; below max_exponent=5", lines[title + 2])
    table = [n for n, line in enumerate(lines) if line.startswith("  adds[")]
    assert len(table) == len(SIZES)
    assert lines[table[-1] + 1] == "  4 of 4 rows are proved by the cache counters"
    assert table[-1] + 2 == title
    assert "miss: first call" in "".join(lines[title + 3 :])


def test_a_limit_below_the_exponents_fails_the_test_and_its_rows_are_kept(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(adds("max_exponent=0.1"))
    result, found = rows(pytester)
    result.assert_outcomes(failed=1)
    assert_says_once(result, "GateError: adds: over its limits")
    result.stdout.fnmatch_lines([">       scaling = dtdispatch.scaling(*"])
    result.stdout.re_match_lines(
        [r".*hit grows as size\^\S+ \(\S+ to \S+ in 7 passes\), all of it above the limit: 1: [\d,.]+ us, "]
    )
    result.stdout.fnmatch_lines(["  hit grows as *; above max_exponent=0.1"])
    assert len(found) == 2 * len(SIZES)


def test_a_callable_that_never_propagates_has_no_miss_and_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        IMPORTS
        + """
def test_moves(dtdispatch, device_mesh):
    a = sharded(device_mesh)

    def moves(n):
        return lambda: [a.redistribute(placements=[Shard(1)]) for _ in range(n)]

    scaling = dtdispatch.scaling(moves, (1, 8), max_exponent=5)
    assert scaling.hit.exponent > 0.1
    assert not scaling.miss.exponent < 100
"""
    )
    result = measure(pytester, "--benchmark-quiet")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "  miss not fitted: no miss was measured (unpropagated: *); cannot be held against *=5",
            "  call grows as *; below max_exponent=5",
        ]
    )


ONCE = (
    IMPORTS
    + """
def test_once(dtdispatch):
    plain = torch.ones(2, 3)
    dtdispatch.scaling(lambda n: lambda: plain.t_(), (1, 8), name="t_", {arguments})
"""
)


def test_a_limit_fails_where_nothing_was_measured_and_says_why(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ONCE.replace("{arguments}", "max_exponent=5"))
    result = measure(pytester)
    result.assert_outcomes(failed=1)
    why = "no miss was measured (runs once: it changed the layout of a tensor that it wrote to)"
    assert_says_once(result, f"E       max_exponent=5: miss not fitted: {why}; hit not")


def test_without_a_limit_nothing_measured_is_shown_and_does_not_fail(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ONCE.replace("{arguments}", ""))
    result = measure(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["  miss not fitted: no miss was measured (runs once: *)"])


def test_meshes_of_every_size_share_the_group_that_the_largest_opens(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        IMPORTS
        + """
def test_meshes(dtdispatch, mesh_factory):
    def add(ndim):
        a = sharded(mesh_factory((2,) * ndim))
        return lambda: a + a

    dtdispatch.scaling(add, (1, 2, 3))
"""
    )
    result, found = rows(pytester)
    result.assert_outcomes(passed=1)
    assert [row["params"]["mesh"] for row in found[::2]] == ["2", "2x2", "2x2x2"]
