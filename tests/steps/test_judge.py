"""Gates on counts."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.metrics import MOST_LISTED
from pytest_dtdispatch.steps.judge import Excess, Limits, exceeded
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
LIMITS = [limit.name for limit in fields(Limits)]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_step_over_a_limit_is_told_with_what_it_has(limit: str) -> None:
    steps = Steps("train", (), (StepCounts(), TWO))
    [excess] = exceeded(steps, Limits(**{limit: 1}))
    assert (excess.limit, excess.allowed, excess.found, excess.step) == (limit, 1, 2, 2)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_step_at_a_limit_is_not_over_it(limit: str) -> None:
    assert exceeded(Steps("train", (), (TWO,)), Limits(**{limit: 2})) == ()


def test_without_limits_nothing_is_exceeded() -> None:
    assert exceeded(Steps("train", (), (TWO,)), Limits()) == ()
    assert not Limits()


def test_a_limit_of_0_is_a_limit() -> None:
    assert Limits(max_misses_per_step=0)
    assert str(Limits(max_misses_per_step=0, max_collectives=3)) == "max_misses_per_step=0, max_collectives=3"


def test_the_warm_up_is_not_judged() -> None:
    assert exceeded(Steps("train", (TWO,), (StepCounts(),)), Limits(max_misses_per_step=0)) == ()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 5))
def test_one_step_over_the_limit_is_enough_and_the_worst_is_told(misses: list[int], most: int) -> None:
    steps = Steps("train", (), tuple(StepCounts(missed=(MISS,) * count) for count in misses))
    excesses = exceeded(steps, Limits(max_misses_per_step=most))
    assert bool(excesses) == (max(misses) > most)
    for excess in excesses:
        assert misses[excess.step - 1] == excess.found == max(misses)


def test_an_excess_lists_what_it_consists_of_up_to_a_length() -> None:
    assert str(Excess("max_collectives", 0, 2, 1, ("all_gather: 2x",))) == (
        "max_collectives=0, and step 1 has 2\n    all_gather: 2x"
    )
    many = Excess("max_misses_per_step", 0, 99, 1, tuple(map(str, range(MOST_LISTED + 3))))
    assert str(many).endswith("\n    and 3 more")
