"""Reduction of a plan for slow calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.rounds.plan import FEWEST, MIN_ROUNDS, SLOW_NS, Effort, fitted, is_precise

PLANNED = Effort(20, 20, 10, 10)
SECOND, MS = 10**9, 10**6


def fit(miss_ns: int, hit_ns: int, planned: Effort = PLANNED, seconds: float = 1.0) -> Effort:
    return fitted(planned, miss_ns, hit_ns, seconds * SECOND, seconds * SECOND)


@pytest.mark.parametrize(
    ("miss_ns", "hit_ns", "seconds", "planned", "reduced"),
    [
        (MS, 10_000, 2e-3, PLANNED, PLANNED),  # the hits are fast
        (100 * SECOND, 100 * SECOND, 1.0, PLANNED, Effort(5, 5, 1, 0, is_paced=True)),
        # Hits are reduced before rounds.
        (15 * MS, 15 * MS, 1.0, PLANNED, Effort(5, 5, 10, 3, is_paced=True)),
        (SECOND, SECOND, 1.0, Effort(3, 20, 10, 10), Effort(3, 3, 1, 0, is_paced=True)),
        # Hits retain a tenth of the time if misses use all of it.
        (370 * MS, 5 * MS, 1.0, PLANNED, Effort(5, 5, 4, 10, is_paced=True)),
    ],
)
def test_slow_calls_reduce_the_effort(
    miss_ns: int, hit_ns: int, seconds: float, planned: Effort, reduced: Effort
) -> None:
    assert fit(miss_ns, hit_ns, planned, seconds) == reduced


@given(
    planned=st.builds(Effort, *[st.integers(1, 50)] * 3, st.integers(0, 20), st.just(False)),
    miss_ns=st.integers(1, 10**11),
    hit_ns=st.integers(1, 10**11),
    seconds=st.floats(1e-9, 1e6),
)
def test_reduced_effort_fits_or_is_minimal(
    planned: Effort, miss_ns: int, hit_ns: int, seconds: float
) -> None:
    reduced = fit(miss_ns, hit_ns, planned, seconds)
    minimum = min(MIN_ROUNDS, planned.rounds)
    assert all(1 <= one <= maximum for one, maximum in zip(reduced[:3], planned[:3], strict=True))
    assert 0 <= reduced.warmup <= planned.warmup
    assert minimum <= reduced.rounds
    if reduced == planned:
        assert hit_ns < SLOW_NS or planned.ns(miss_ns, hit_ns) <= seconds * SECOND
    # With a tolerance of one row and its warm-up: further rounds check the clock.
    one_row = reduced._replace(in_a_row=reduced.rounds)
    is_minimal = (
        reduced.rounds == minimum and minimum * (miss_ns + reduced.repeat * hit_ns) > 0.9 * seconds * SECOND
    )
    fits = one_row.ns(miss_ns, hit_ns) <= seconds * SECOND * 1.001
    assert fits or is_minimal or reduced == planned


@given(st.integers(1, 10**9), st.integers(0, 40))
def test_equal_samples_with_an_interval_are_precise(value: int, count: int) -> None:
    assert is_precise([value] * count) is (count >= FEWEST)


@pytest.mark.parametrize(("farthest", "is_near"), [(110, True), (111, False)])
def test_precise_median_is_within_a_tenth(farthest: int, is_near: bool) -> None:
    assert is_precise([*[100] * 7, farthest]) is is_near
