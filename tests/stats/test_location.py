"""Where samples lie: laws of the figures, and that they agree with NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.stats.location import hodges_lehmann, quantile

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)

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


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: quantile([], 0.5), "at least one value"),
        (lambda: quantile([1.0], 1.5), "between 0 and 1"),
        (lambda: hodges_lehmann([1.0], []), "at least one sample"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        call()
