"""Collectives and shapes that differ between ranks: the first difference, and none between equal ranks."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.trail import (
    CalledOp,
    RanCollective,
    Trail,
    collective_difference,
    shape_difference,
)

REDUCE, GATHER, END = (
    RanCollective(kind, f"t.py:{line}", 8)
    for kind, line in (("all_reduce", 3), ("all_gather", 5), ("all_reduce", 9))
)


def difference(*by_rank: list[RanCollective]) -> str:
    return collective_difference({rank: Trail(tuple(ran)) for rank, ran in enumerate(by_rank)})


def test_equal_collectives_have_no_difference() -> None:
    assert difference([REDUCE, GATHER], [REDUCE, GATHER]) == ""
    assert difference([], []) == ""


def test_skipped_collective_is_named_with_its_line() -> None:
    assert difference([GATHER, REDUCE, END], [GATHER, REDUCE, END], [GATHER, END]) == (
        "ranks differ first in collective 2: ranks 0, 1 ran all_reduce at t.py:3; "
        "rank 2 ran all_reduce at t.py:9"
    )
    assert difference([GATHER, END], [GATHER]).endswith(
        "rank 0 ran all_reduce at t.py:9; rank 1 ran no further one"
    )


def test_equal_collectives_of_two_branches_are_no_difference() -> None:
    assert difference([REDUCE, GATHER], [END, GATHER]) == ""
    assert "collective 3" in difference([REDUCE, GATHER, REDUCE], [END, GATHER])


def test_sizes_are_compared_after_lines() -> None:
    longer = REDUCE._replace(bytes=16)
    assert difference([REDUCE, GATHER], [longer, GATHER]).endswith(
        "rank 0 ran all_reduce of 8 bytes at t.py:3; rank 1 ran all_reduce of 16 bytes at t.py:3"
    )
    assert "collective 2" in difference([REDUCE, GATHER], [longer, END])
    assert difference([GATHER], [GATHER._replace(bytes=16)]) == "", "the source of a scatter has more"


def ops(*signatures: str, mesh_size: int = 2) -> Trail:
    return Trail(ops=tuple(CalledOp(each, "t.py:7", mesh_size) for each in signatures))


def test_differing_global_shape_is_named() -> None:
    found = shape_difference({0: ops("mul(f32[5,4]S0)@2"), 1: ops("mul(f32[4,4]S0)@2")})
    assert found.endswith("rank 0 mul(f32[5,4]S0)@2; rank 1 mul(f32[4,4]S0)@2, at t.py:7")


@pytest.mark.parametrize(
    "others",
    [
        ops("mul(f32[5,4]S0)@2"),
        ops("mul(f32[5,4]R)@2"),
        ops("mul(f32[5,4]S0)@2", "mul(f32[8,4]S0)@2"),
        ops("mul(f32[8,4]S0)@1", mesh_size=1),
        Trail(),
    ],
    ids=["equal", "other placements", "more shapes", "a mesh of some ranks", "not called"],
)
def test_other_differences_are_not_those_of_a_shape(others: Trail) -> None:
    first = ops("mul(f32[5,4]S0)@2")
    assert shape_difference({0: first, 1: others}) == ""


def test_trail_passes_through_json() -> None:
    trail = Trail((REDUCE, GATHER)) + ops("mul(f32[5,4]S0)@2")
    assert decode(Trail, encode(trail)) == trail
