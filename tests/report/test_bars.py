"""Bars as data: their scale, and where their pieces stand on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.report.bars import Ends, LogScale, log_scale

ENDS = st.tuples(*[st.none() | st.just(0.0) | st.floats(1e-3, 1e12)] * 3)


def test_a_scale_goes_from_a_power_of_ten_to_another() -> None:
    assert log_scale([(1_500, 6_000, 900_000)]) == LogScale(1e3, 1e6)
    assert log_scale([(1_000, None, 1_000)]) == LogScale(1e3, 1e4), "a scale is never empty"


@pytest.mark.parametrize("bars", [[], [()], [(None, None, None)], [(0, 0.0, None)]])
def test_there_is_no_scale_without_a_figure(bars: list[Ends]) -> None:
    assert log_scale(bars) is None


def test_equal_factors_are_equal_lengths() -> None:
    stops = [stop for _, stop in LogScale(1, 1000).pieces((10, 100, 1000))]
    assert stops == pytest.approx([1 / 3, 2 / 3, 1])


def test_a_piece_that_is_not_known_or_adds_nothing_is_empty() -> None:
    scale = LogScale(1, 100)
    assert scale.pieces((None, 10, None)) == ((0, 0), (0, 0.5), (0.5, 0.5))
    assert scale.pieces((10, 1, 100)) == ((0, 0.5), (0.5, 0.5), (0.5, 1))


@given(st.lists(ENDS, max_size=5))
def test_pieces_follow_each_other_within_the_scale(bars: list[Ends]) -> None:
    scale = log_scale(bars)
    for ends in bars if scale else []:
        start = 0.0
        for left, right in scale.pieces(ends):  # type: ignore[union-attr]
            assert left == start <= right <= 1
            start = right
