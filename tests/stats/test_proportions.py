"""The exact interval of a rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.stats.proportions import rate_interval


def test_no_event_has_the_upper_end_that_can_be_written_down() -> None:
    """Without an event the upper end solves (1 - rate) ** total = 2.5 %."""
    low, high = rate_interval(0, 976)
    assert low == 0
    assert high == pytest.approx(1 - 0.025 ** (1 / 976))


def test_a_textbook_case() -> None:
    """Clopper-Pearson of 10 in 100 at 95 %: 4.90 % to 17.62 %."""
    assert rate_interval(10, 100) == pytest.approx((0.0490, 0.1762), abs=1e-4)


@pytest.mark.parametrize(("count", "total"), [(0, 0), (2, 1), (-1, 5)])
def test_what_is_no_rate_is_refused(count: int, total: int) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        rate_interval(count, total)


@given(st.integers(1, 300).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_the_interval_holds_the_rate_and_mirrors(counted: tuple[int, int]) -> None:
    count, total = counted
    low, high = rate_interval(count, total)
    assert 0 <= low <= count / total <= high <= 1
    assert rate_interval(total - count, total) == pytest.approx((1 - high, 1 - low), abs=1e-9)
