"""What resampling says of a ratio, and the exact interval of a rate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_dtdispatch.stats.resampling import quantile, rate_interval, ratio_interval

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


def test_a_textbook_case() -> None:
    """Clopper-Pearson of 10 in 100 at 95 %: 4.90 % to 17.62 %."""
    assert rate_interval(10, 100) == pytest.approx((0.0490, 0.1762), abs=1e-4)
    # Without an event the upper end solves (1 - rate) ** total = 2.5 %.
    assert rate_interval(0, 976) == pytest.approx((0, 1 - 0.025 ** (1 / 976)))


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
        (lambda: rate_interval(0, 0), "is no rate"),
        (lambda: rate_interval(2, 1), "is no rate"),
        (lambda: rate_interval(-1, 5), "is no rate"),
        (lambda: quantile([], 0.5), "at least one value"),
        (lambda: quantile([1.0], 1.5), "between 0 and 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        call()


values = st.integers(-(2**20), 2**20).map(float)
samples = st.lists(values, min_size=1, max_size=25)
quantiles = st.floats(0, 1)


@unhurried
@given(samples, quantiles)
def test_a_quantile_is_numpys(some: list[float], q: float) -> None:
    assert quantile(some, q) == pytest.approx(float(np.quantile(some, q)), abs=1e-6)


@unhurried
@given(samples, quantiles, st.sampled_from([0.25, 0.5, 2.0, 8.0]), values)
def test_order_changes_nothing_scale_and_shift_go_through(
    some: list[float], q: float, scale: float, by: float
) -> None:
    moved = [scale * value + by for value in some]
    assert quantile(some[::-1], q) == quantile(some, q)
    assert quantile(moved, q) == pytest.approx(scale * quantile(some, q) + by, abs=1e-6)


@given(samples, quantiles, quantiles)
def test_quantiles_rise_and_stay_between_the_samples(some: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert min(some) <= quantile(some, low) <= quantile(some, high) <= max(some)
