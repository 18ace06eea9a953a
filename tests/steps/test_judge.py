"""Gates on counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.metrics import MOST_LISTED
from pytest_dtdispatch.steps.judge import LIMITS, complaint
from pytest_dtdispatch.steps.model import Asked, Miss, Redistribution, StepCounts, Steps

MISS = Miss("mm.default(f32[8,8]R, f32[8,8]R)@4", "first call of this op", Asked.NATIVE)
GATHER = Redistribution("mm.default", "f32[8,8]", ("S0",), ("R",), 256)
# A step that has two of each.
TWO = StepCounts(
    missed=(MISS, MISS),
    cache_growth=(("native", 2), ("FakeTensor", 1)),
    spec_growth=2,
    redistributions=(GATHER, GATHER),
    collectives=(("all_gather", 1), ("all_reduce", 1)),
)


def steps_of(*counts: StepCounts) -> Steps:
    return Steps("train", (), counts)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_step_over_a_limit_is_told_with_what_it_has(limit: str) -> None:
    title, what, *_ = complaint(steps_of(StepCounts(), TWO), {limit: 1}).splitlines()
    assert (title, what) == ("train: over its limits", f"{limit}=1, and step 2 has 2")


@pytest.mark.parametrize("limit", LIMITS)
def test_a_step_at_a_limit_is_not_over_it(limit: str) -> None:
    assert not complaint(steps_of(TWO), {limit: 2})


@pytest.mark.parametrize("limits", [{}, dict.fromkeys(LIMITS)])
def test_without_limits_nothing_is_exceeded(limits: dict[str, None]) -> None:
    assert not complaint(steps_of(TWO), limits)


def test_a_limit_of_0_is_a_limit() -> None:
    assert complaint(steps_of(TWO), {"max_misses_per_step": 0})


def test_the_warm_up_is_not_judged_and_no_step_exceeds_nothing() -> None:
    assert not complaint(Steps("train", (TWO,), (StepCounts(),)), {"max_misses_per_step": 0})
    assert not complaint(steps_of(), dict.fromkeys(LIMITS, 0))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 5))
def test_one_step_over_the_limit_is_enough_and_the_worst_is_told(misses: list[int], most: int) -> None:
    steps = steps_of(*(StepCounts(missed=(MISS,) * count) for count in misses))
    told, worst = complaint(steps, {"max_misses_per_step": most}), max(misses)
    assert bool(told) == (worst > most)
    assert not told or f"and step {misses.index(worst) + 1} has {worst}\n" in told


def test_an_excess_lists_what_it_consists_of_up_to_a_length() -> None:
    assert complaint(steps_of(TWO), {"max_redistributes": 0, "max_collectives": 1}) == (
        "train: over its limits\n"
        f"max_redistributes=0, and step 1 has 2\n    {GATHER} (2x)\n"
        "max_collectives=1, and step 1 has 2\n    all_gather: 1x\n    all_reduce: 1x"
    )
    different = (Miss(f"mm {i}", "another shape", Asked.NATIVE) for i in range(MOST_LISTED + 3))
    assert complaint(steps_of(StepCounts(missed=(*different,))), {"max_misses_per_step": 0}).endswith(
        "\n    and 3 more"
    )
