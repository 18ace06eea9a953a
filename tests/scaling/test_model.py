"""Scalings as data and as text."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.scaling.model import Fit, Point, Scaling, not_measured, number_text, row_name

MISS = Fit(State.MISS, 0.9, 0.8, 1.0, (2.0,), 7)
HIT = Fit(State.HIT, 0.1, 0.0, 0.2, (1.1,), 7)


def test_what_was_not_measured_passes_every_limit_and_has_no_points() -> None:
    scaling = not_measured("stack")
    assert scaling.points == ()
    assert [fit.state for fit in scaling.fits] == [State.MISS, State.HIT]
    for fit in scaling.fits:
        assert (fit.exponent, fit.low, fit.high, fit.passes) == (0, 0, 0, 0)
        assert fit.why_not == "nothing is measured in this run"


def test_a_scaling_is_a_line_a_size() -> None:
    scaling = Scaling("stack", (Point(8, 1_512_345, 11_650.5), Point(16, None, 14_000)), MISS, HIT)
    assert str(scaling).splitlines() == [
        "stack",
        "  8: miss 1,512.3 us, hit 11.7 us",
        "  16: miss -, hit 14.0 us",
    ]


def test_a_fit_that_there_is_not_says_why() -> None:
    assert (
        str(Fit(State.HIT, 0, 0, 0, why_not="no hit was measured")) == "hit not fitted: no hit was measured"
    )


@pytest.mark.parametrize(("passes", "coverage"), [(0, 0.0), (1, 0.0), (2, 0.5), (5, 0.9375), (7, 0.984375)])
def test_more_passes_cover_the_median_more_surely(passes: int, coverage: float) -> None:
    assert Fit(State.MISS, 1, 1, 1, passes=passes).coverage == coverage


@pytest.mark.parametrize(
    ("value", "text"), [(0.995, "0.99"), (-0.001, "0.00"), (-0.25, "-0.25"), (12, "12.00")]
)
def test_exponents_have_two_decimals_and_no_negative_zero(value: float, text: str) -> None:
    assert number_text(value) == text


def test_a_row_is_named_by_its_size() -> None:
    assert row_name("stack", 8) == "stack[8]"


def test_a_book_keeps_scalings_in_order_beside_its_measurements() -> None:
    book = TestResults()
    assert book.scalings() == ()
    one, other = not_measured("one"), not_measured("other")
    book.add(one)
    book.add(other)
    assert book.scalings() == (one, other)
    assert book.measurements() == ()
