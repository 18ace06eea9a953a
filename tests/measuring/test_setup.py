"""What a setup may give a call."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.errors import CaptureError
from pytest_dtdispatch.measuring.setup import given_arguments


def test_arguments_stay_where_there_is_no_setup_or_it_returns_nothing() -> None:
    assert given_arguments((1, 2), None) == (1, 2)
    assert given_arguments((1, 2), lambda: None) == (1, 2)


def test_a_tuple_replaces_the_arguments() -> None:
    assert given_arguments((1, 2), lambda: ()) == ()
    assert given_arguments((1, 2), lambda: (3,)) == (3,)


def test_anything_else_is_a_mistake_that_says_what_is_valid() -> None:
    with pytest.raises(CaptureError, match=r"^setup returned 5: it must return a tuple of arguments, or"):
        given_arguments((), lambda: 5)  # type: ignore[arg-type, return-value]
