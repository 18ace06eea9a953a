"""What a test gives to be measured: arguments of a setup, steps."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_dtdispatch.errors import CaptureError
from pytest_dtdispatch.measuring.preconditions import check_steps, given_arguments


def test_arguments_stay_where_there_is_no_setup_or_it_returns_nothing() -> None:
    assert given_arguments((1, 2), None) == (1, 2)
    assert given_arguments((1, 2), lambda: None) == (1, 2)


def test_a_tuple_replaces_the_arguments() -> None:
    assert given_arguments((1, 2), lambda: ()) == ()
    assert given_arguments((1, 2), lambda: (3,)) == (3,)


def test_anything_else_is_a_mistake_that_says_what_is_valid() -> None:
    with pytest.raises(CaptureError, match=r"^setup returned 5: it must return a tuple of arguments, or"):
        given_arguments((), lambda: 5)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("steps", [0, -1, 1.5, "5", True, None])
def test_a_number_of_steps_that_counts_nothing_is_refused(steps: Any) -> None:
    with pytest.raises(CaptureError, match=r"steps\(\): steps=.* is not a whole number of at least 1"):
        check_steps(lambda: None, 3, steps)


@pytest.mark.parametrize("warmup", [-1, 0.5, None])
def test_a_warm_up_of_no_number_is_refused(warmup: Any) -> None:
    with pytest.raises(CaptureError, match=r"warmup=.* is not a whole number of at least 0"):
        check_steps(lambda: None, warmup, 5)


def test_a_step_that_takes_arguments_is_refused() -> None:
    def step(batch: Any, *, lr: float, verbose: bool = False) -> None:
        del batch, lr, verbose

    with pytest.raises(
        CaptureError, match=r"the step takes arguments \(batch, lr\), and steps\(\) gives none"
    ):
        check_steps(step, 3, 5)  # type: ignore[arg-type]


def test_a_step_whose_arguments_are_optional_is_taken() -> None:
    check_steps(lambda scale=2, *more, **options: None, 0, 1)
    check_steps(dict, 0, 1)


def test_what_is_no_callable_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"steps\(None\): give a callable"):
        check_steps(None, 3, 5)  # type: ignore[arg-type]
