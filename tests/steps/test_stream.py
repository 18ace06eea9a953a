"""A stream of shapes: when it is steady, what a miss costs, what missed again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.steps.happened import Asked, Miss
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.steps.stream import LOST, Steady, Stream, TimeSpread, stream_of

MISS = Miss("mm.default(f32[8,8]R, f32[8,8]R)@4", "shape of self [9,8], was [8,8]", Asked.NATIVE)
MS = 1_000_000


def stream(shapes: str, misses: list[int], took_ms: list[float] | None = None, warmup: int = 0) -> Stream:
    """Make a stream of shapes of one letter each, whose steps miss on calls of that shape alone."""
    lost = replace(MISS, reason=LOST[0])
    missed = [[replace(lost, signature=shape)] * n for shape, n in zip(shapes[warmup:], misses, strict=True)]
    counted = [
        StepCounts(hits=3, missed=tuple(of_step), cache_growth=(("native", n), ("FakeTensor", 2 * n)))
        for n, of_step in zip(misses, missed, strict=True)
    ]
    warm = [StepCounts(missed=(replace(MISS, signature=shape),)) for shape in shapes[:warmup]]
    took = [round(ms * MS) for ms in took_ms or [1.0] * len(misses)]
    return stream_of(list(shapes), warm, counted, took)


@pytest.mark.parametrize(
    ("shapes", "misses", "steady"),
    [
        ("aaaa", [0, 0, 0, 0], Steady(0, 0)),
        ("abab", [1, 1, 0, 0], Steady(2, 2)),
        ("aabcab", [1, 0, 1, 1, 0, 0], Steady(3, 4)),
        ("abcd", [1, 0, 0, 0], Steady(1, 1)),
        ("abab", [1, 1, 0, 1], None),
        ("ab", [0, 1], None),
        ("a", [1], None),
        ("", [], Steady(0, 0)),
    ],
)
def test_a_stream_is_steady_after_its_last_miss_unless_that_is_its_end(
    shapes: str, misses: list[int], steady: Steady | None
) -> None:
    assert stream(shapes, misses).steady_after == steady


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 2)), max_size=12))
def test_no_step_misses_after_a_stream_is_steady(steps: list[tuple[str, int]]) -> None:
    found = stream("".join(shape for shape, _ in steps), [misses for _, misses in steps])
    steady = found.steady_after
    if steady is None:
        assert found.steps[-1].misses
    else:
        assert not any(step.misses for step in found.steps[steady.steps :])
        assert steady.shapes == len({shape for shape, _ in steps[: steady.steps]})
        assert not steady.steps or found.steps[steady.steps - 1].misses


def test_what_was_gained_and_met_so_far_is_told_of_each_step() -> None:
    found = stream("abac", [2, 1, 0, 1])
    assert [step.shapes for step in found.steps] == [1, 2, 2, 3]
    assert [step.entries for step in found.steps] == [4, 6, 6, 8]
    assert [step.is_repeated for step in found.steps] == [False, False, True, False]
    assert found.grown_most == "FakeTensor"
    assert (found.shapes, found.misses_per_shape) == (("a", "b", "c"), 4 / 3)


def test_shapes_of_the_warm_up_are_known_and_its_steps_do_not_count() -> None:
    found = stream("abca", [1, 0], warmup=2)
    assert found.warmup == ("a", "b")
    assert [step.is_repeated for step in found.steps] == [False, True]
    assert found.steady_after == Steady(3, 1)
    assert found.shapes == ("c", "a")
    assert stream("aba", [0], warmup=2).steady_after == Steady(2, 0)


def test_a_shape_that_misses_again_is_named() -> None:
    [again] = stream("abab", [1, 1, 0, 2]).missed_again
    assert (again.shape, len(again.again), again.missed_inside) == ("b", 2, False)
    assert not stream("abab", [1, 1, 0, 0]).missed_again
    assert len(stream("aab", [1, 1], warmup=1).missed_again) == 1


def test_calls_of_one_signature_that_differ_in_what_it_does_not_show_do_not_miss_again() -> None:
    counted = [StepCounts(missed=(replace(MISS, reason="type of other float, was int"),))] * 2
    assert not stream_of(["a", "a"], [], counted, [1] * 2).missed_again


def test_new_calls_on_a_shape_that_came_before_miss_inside() -> None:
    counted = [StepCounts(missed=(replace(MISS, signature=f"cat(f32[{n}])"),)) for n in range(3)]
    found = stream_of(["a", "a", "b"], [], counted, [1] * 3)
    assert [step.missed_inside for step in found.steps] == [False, True, False]
    assert not found.missed_again


# What a miss costs


@pytest.mark.parametrize("misses", [[0, 0, 0], [1, 1, 1], []], ids=["never", "always", "no step"])
def test_without_both_kinds_of_steps_there_is_no_cost(misses: list[int]) -> None:
    assert stream("aaa"[: len(misses)], misses).miss_cost is None


def test_a_step_that_missed_stands_against_steps_of_its_shape() -> None:
    cost = stream("ababab", [2, 2, 0, 0, 0, 0], [5, 105, 1, 101, 1, 101]).miss_cost
    assert cost
    assert (cost.step.median_ns, cost.miss.median_ns) == (4 * MS, 2 * MS)
    assert (cost.is_of_same_shape, cost.is_noise) == (True, False)


def test_a_dear_shape_that_has_only_missed_is_no_cost_of_a_miss() -> None:
    cost = stream("aab", [1, 0, 1], [3, 1, 500]).miss_cost
    assert cost
    assert cost.step == TimeSpread(2 * MS, 2 * MS, 2 * MS, 1)


def test_where_no_shape_has_both_all_shapes_stand_against_each_other() -> None:
    cost = stream("abcd", [1, 1, 0, 0], [5, 5, 1, 2]).miss_cost
    assert cost
    assert cost.step == TimeSpread(3.5 * MS, 3 * MS, 4 * MS, 2)
    assert not cost.is_of_same_shape


def test_times_that_overlap_are_noise() -> None:
    cost = stream("aaaa", [1, 0, 0, 0], [2, 1, 3, 1]).miss_cost
    assert cost
    assert cost.is_noise


def test_the_spread_of_both_sides_is_in_that_of_the_cost() -> None:
    cost = stream("aaabbb", [1, 0, 0, 1, 0, 0], [10, 1, 3, 20, 2, 4]).miss_cost
    assert cost
    assert (cost.step.low_ns, cost.step.high_ns) == (7 * MS, 18 * MS)


def test_times_are_no_part_of_what_makes_two_streams_equal() -> None:
    assert stream("ab", [1, 0], [1, 2]) == stream("ab", [1, 0], [3, 4])
    assert stream("ab", [1, 0]) != stream("ab", [1, 1])
    assert stream("ab", [1, 0]) != stream("ac", [1, 0])
