"""What resampling says of a ratio, and the exact interval of a rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_dtdispatch.stats.resampling import rate_interval, ratio_interval, smallest_past

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)

times = st.lists(st.integers(1, 10**6).map(float), min_size=1, max_size=12)


@unhurried
@given(times, times, st.sampled_from([0.5, 4.0]), st.integers(1, 4))
def test_the_interval_of_a_ratio_is_seeded_and_keeps_its_scale(
    base: list[float], head: list[float], scale: float, block: int
) -> None:
    interval = ratio_interval(base, head, resamples=50, block=block)
    low, high = interval
    assert ratio_interval(base, head, resamples=50, block=block) == interval
    assert 0 < low <= high
    assert min(head) / max(base) <= low
    assert high <= max(head) / min(base)
    slower = ratio_interval(base, [scale * value for value in head], resamples=50, block=block)
    assert slower == pytest.approx((scale * low, scale * high))
    wider = ratio_interval(base, head, resamples=50, block=block, confidence=0.999)
    assert wider[0] <= low
    assert high <= wider[1]


def test_the_interval_of_a_ratio_is_about_as_wide_as_scipys() -> None:
    base = [100 + 10 * math.sin(n * n) for n in range(60)]
    head = [110 + 10 * math.cos(n * n) for n in range(60)]
    ours = ratio_interval(base, head)
    theirs = stats.bootstrap(
        (base, head),
        lambda b, h, axis: np.median(h, axis=axis) / np.median(b, axis=axis),
        confidence_level=0.99,
        method="percentile",
        random_state=0,
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_blocks_widen_an_interval_where_samples_resemble_their_neighbours() -> None:
    drifting = [100.0 + 10 * (n // 10 % 2) + n % 3 for n in range(200)]
    alone, together = (ratio_interval(drifting, drifting, block=block) for block in (1, 10))
    assert together[0] < alone[0]
    assert alone[1] < together[1]


def test_the_smallest_slow_down_past_a_threshold_is_the_lower_half_of_the_interval() -> None:
    assert smallest_past(1.5, 1.25) == pytest.approx(20)
    assert smallest_past(1.0, 1.0) == 0


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


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: ratio_interval([], [1.0]), "at least one sample"),
        (lambda: ratio_interval([1.0], [1.0], confidence=0), "between 0 and 1"),
        (lambda: ratio_interval([1.0], [1.0], resamples=0), "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], Sequence[float]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        call()
