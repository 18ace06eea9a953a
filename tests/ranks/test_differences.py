"""Where ranks differ: in how a test ended on them, and in what they collected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.ranks.differences import (
    FAILED,
    PASSED,
    SKIPPED,
    PhaseOutcome,
    all_agree,
    collected_difference,
    complaints,
)


def test_outcomes_that_agree_are_one() -> None:
    assert all_agree({0: PhaseOutcome("t", PASSED), 1: PhaseOutcome("t", PASSED)})
    assert all_agree({0: PhaseOutcome("t", SKIPPED, "a"), 1: PhaseOutcome("t", SKIPPED, "b")})
    assert not all_agree({0: PhaseOutcome("t", PASSED), 1: PhaseOutcome("t", SKIPPED)})
    assert not all_agree({0: PhaseOutcome("t", PASSED), 1: PhaseOutcome("u", PASSED)})


def test_ranks_that_failed_alike_are_told_in_one_line() -> None:
    outcomes = {
        0: PhaseOutcome("t", FAILED, "timed out"),
        1: PhaseOutcome("t", FAILED, "boom"),
        2: PhaseOutcome("t", FAILED, "timed out"),
        3: PhaseOutcome("t", PASSED),
    }
    assert complaints(outcomes) == ["ranks 0, 2 failed: timed out", "rank 1 failed: boom"]


def test_a_rank_that_expects_to_fail_is_told_apart() -> None:
    outcomes = {
        0: PhaseOutcome("t", PASSED),
        1: PhaseOutcome("t", "xfailed", "known"),
        2: PhaseOutcome("t", PASSED),
    }
    assert complaints(outcomes) == ["rank 1 xfailed what ranks 0, 2 run: known"]


def test_ranks_in_different_tests_are_told_so() -> None:
    outcomes = {0: PhaseOutcome("t", PASSED), 1: PhaseOutcome("u", PASSED)}
    assert complaints(outcomes) == ["rank 0 ran t", "rank 1 ran u"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (["a", "b", "c"], ""),
        (["a", "c"], "lacks b"),
        ([], "lacks a and 2 more"),
        (["a", "b", "c", "d", "e"], "has besides d and 1 more"),
        (["a", "b", "d"], "lacks c and has besides d"),
        (["a", "c", "b"], "has c in place 2, where rank 0 has b"),
        (["a", "b", "c", "c"], "has 4 tests, and rank 0 3"),
    ],
)
def test_the_first_difference_of_collections_is_named(other: list[str], says: str) -> None:
    assert collected_difference(["a", "b", "c"], other) == says


@given(some.lists(some.text(max_size=3)), some.lists(some.text(max_size=3)))
def test_collections_differ_where_a_difference_is_named(first: list[str], other: list[str]) -> None:
    assert bool(collected_difference(first, other)) == (first != other)
