"""Scalings in a run of pytest: rows, the section of the terminal, gates, mistakes."""

from __future__ import annotations

import re

import pytest

from tests.plugin_runs import assert_says_once, benchmarks_of, measure, measure_source, run, text_of

pytestmark = pytest.mark.torch

SIZES = (1, 4, 16, 64)
# A hit of this takes as many adds as its size says; a miss is mostly that of the first of them.
ADDS = """
def test_adds(dtdispatch, device_mesh):
    a = sharded(device_mesh)

    def adds(n):
        return lambda: [a + a for _ in range(n)]

    scaling = dtdispatch.scaling(adds, (1, 4, 16, 64), {arguments})
    assert scaling.miss.exponent < 3
    print("points:", *(point.size for point in scaling.points))
"""
FIT = r"size\^-?\d+\.\d\d \(-?\d+\.\d\d to -?\d+\.\d\d in 7 passes\), from size to size( x\d+\.\d\d,?){3}"


def adds(arguments: str = "") -> str:
    return ADDS.replace("{arguments}", arguments)


def test_every_size_is_a_row_and_exponents_stand_below_the_table(pytester: pytest.Pytester) -> None:
    flags = ("-s", "--dtdispatch-rounds=8", "--dtdispatch-max-time=60", "--benchmark-json=rows.json")
    result = measure_source(pytester, adds("max_exponent=5"), *flags, passed=1)
    result.stdout.fnmatch_lines(["*points: 1 4 16 64"])
    found = benchmarks_of(pytester.path / "rows.json")
    assert [row["fullname"] for row in found] == [
        f"test_it.py::test_adds::adds[{size}]::{state}" for size in SIZES for state in ("miss", "hit")
    ]
    assert [row["stats"]["rounds"] for row in found] == [14, 42] * len(SIZES)
    assert {row["params"]["mesh"] for row in found} == {"4"}
    assert {row["extra_info"]["contains"] for row in found} == {"end to end from Python, autograd included"}
    lines = result.outlines
    title = lines.index("test_it.py::test_adds: adds at sizes 1, 4, 16, 64")
    for line, state in ((lines[title + 1], "miss"), (lines[title + 2], "hit")):
        assert re.fullmatch(rf"  {state} grows as {FIT}; below max_exponent=5", line)
    table = [n for n, line in enumerate(lines) if line.startswith("  adds[")]
    assert len(table) == len(SIZES)
    assert lines[table[-1] + 1] == "  4 of 4 rows are proved by the cache counters"
    assert table[-1] + 2 == title
    assert "miss: first call" in "".join(lines[title + 3 :])
    assert "grows as" not in text_of(measure(pytester, "-qq"))
    unmeasured = run(pytester, "-s")
    unmeasured.assert_outcomes(passed=1)
    unmeasured.stdout.fnmatch_lines(["*points:"])


def test_a_limit_below_the_exponents_fails_the_test_and_its_rows_are_kept(pytester: pytest.Pytester) -> None:
    result = measure_source(pytester, adds("max_exponent=0.1"), "--benchmark-json=rows.json", failed=1)
    assert_says_once(result, "GateError: adds: over its limits")
    result.stdout.fnmatch_lines([">       scaling = dtdispatch.scaling(*"])
    result.stdout.re_match_lines(
        [r".*hit grows as size\^\S+ \(\S+ to \S+ in 7 passes\), all of it above the limit: 1: [\d,.]+ us, "]
    )
    result.stdout.fnmatch_lines(["  hit grows as *; above max_exponent=0.1"])
    assert len(benchmarks_of(pytester.path / "rows.json")) == 2 * len(SIZES)


OTHERS = """
def test_moves(dtdispatch, device_mesh):
    a = sharded(device_mesh)

    def moves(n):
        return lambda: [a.redistribute(placements=[Shard(1)]) for _ in range(n)]

    scaling = dtdispatch.scaling(moves, (1, 8), max_exponent=5)
    assert scaling.hit.exponent > 0.1
    assert not scaling.miss.exponent < 100

@pytest.mark.parametrize("limit", [{}, {"max_exponent": 5}])
def test_once(dtdispatch, limit):
    plain = torch.ones(2, 3)
    dtdispatch.scaling(lambda n: lambda: plain.t_(), (1, 8), name="t_", **limit)

def test_meshes(dtdispatch, mesh_factory):
    def add(ndim):
        a = sharded(mesh_factory((2,) * ndim))
        return lambda: a + a

    dtdispatch.scaling(add, (1, 2, 3))
"""


def test_what_has_no_miss_or_runs_once_says_so_and_fails_under_a_limit_alone(
    pytester: pytest.Pytester,
) -> None:
    result = measure_source(pytester, OTHERS, "--benchmark-json=rows.json", passed=3, failed=1)
    text = " ".join(text_of(result).split())
    once = "no miss was measured (runs once: it changed the layout of a tensor that it wrote to)"
    assert f"E max_exponent=5: miss not fitted: {once}; hit not" in text
    assert f" miss not fitted: {once}" in text.rpartition("= dtdispatch =")[2]
    result.stdout.fnmatch_lines(
        [
            "  miss not fitted: no miss was measured (unpropagated: *); cannot be held against *=5",
            "  call grows as *; below max_exponent=5",
        ]
    )
    # Meshes of every size share the group that the largest opens.
    meshes = [row for row in benchmarks_of(pytester.path / "rows.json") if "test_meshes" in row["fullname"]]
    assert [row["params"]["mesh"] for row in meshes[::2]] == ["2", "2x2", "2x2x2"]
