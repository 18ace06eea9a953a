"""Numbers of passes and calls of a plan, and their reduction for slow calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import MIN_PASSES, PASSES
from pytest_dtdispatch.rounds.plan import Effort, Plan, fitted

PLANNED = Effort(8, 5, 50, 10)
SECOND, MS = 10**9, 10**6


@given(st.integers(1, 500), st.integers(1, 100))
def test_passes_have_the_planned_calls(rounds: int, repeat: int) -> None:
    passes, misses, hits, _ = Plan(rounds, repeat).effort
    assert passes == min(PASSES, rounds)
    assert rounds <= passes * misses < rounds + passes
    assert hits == misses * repeat


@pytest.mark.parametrize(
    ("miss_ns", "hit_ns", "left_ns", "planned", "reduced"),
    [
        (MS, 10_000, SECOND, PLANNED, PLANNED),
        (100 * SECOND, 100 * SECOND, SECOND, PLANNED, Effort(4, 1, 1, 0)),
        (MS, MS, -SECOND, PLANNED, Effort(4, 1, 1, 0)),  # the rehearsal exceeded the limit
        (10 * MS, 10 * MS, SECOND, PLANNED, Effort(8, 1, 8, 1)),
        (SECOND, SECOND, SECOND, Effort(3, 1, 10, 10), Effort(3, 1, 1, 0)),
        # Hits remain if they take at most a tenth of the time, or of one miss.
        (44 * MS, 100_000, SECOND, PLANNED, Effort(8, 2, 50, 10)),
        (44 * MS, 200_000, SECOND, PLANNED, Effort(8, 2, 23, 4)),
        (370 * MS, 500_000, SECOND, PLANNED, Effort(4, 1, 50, 10)),
        (0, 10 * MS, SECOND, PLANNED, Effort(8, 1, 9, 1)),
    ],
)
def test_slow_calls_reduce_the_effort(
    miss_ns: int, hit_ns: int, left_ns: int, planned: Effort, reduced: Effort
) -> None:
    assert fitted(planned, miss_ns, hit_ns, left_ns) == reduced


@given(
    planned=st.builds(Effort, st.integers(1, PASSES), *[st.integers(1, 50)] * 2, st.integers(0, 20)),
    miss_ns=st.integers(0, 10**11),
    hit_ns=st.integers(1, 10**11),
    left_ns=st.integers(-(10**12), 10**15) | st.just(float("inf")),
)
def test_reduced_effort_fits_or_has_minimal_passes(
    planned: Effort, miss_ns: int, hit_ns: int, left_ns: float
) -> None:
    reduced = fitted(planned, miss_ns, hit_ns, left_ns)
    fewest = min(MIN_PASSES, planned.passes)
    assert fewest <= reduced.passes <= planned.passes
    assert all(1 <= one <= most for one, most in zip(reduced[1:3], planned[1:3], strict=True))
    assert 0 <= reduced.warmup <= planned.warmup
    if reduced.passes > fewest:
        assert (reduced.passes + 1) * reduced.ns(miss_ns, hit_ns) <= left_ns
    if (planned.passes + 1) * planned.ns(miss_ns, hit_ns) <= left_ns:
        assert reduced == planned
    if 10 * planned.ns(0, hit_ns) <= miss_ns:
        assert reduced[2:] == planned[2:]
