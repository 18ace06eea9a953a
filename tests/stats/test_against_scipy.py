"""Agreement of rank sums with SciPy."""

from __future__ import annotations

import itertools
from types import ModuleType

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_dtdispatch.stats.intervals import MAX_EXACT
from pytest_dtdispatch.stats.rank_sums import mann_whitney
from tests.stats.test_rank_sums import two_untied

tied = st.lists(st.integers(0, 5).map(float), min_size=1, max_size=6)
long = st.lists(st.integers(0, 30).map(float), min_size=31, max_size=60)


@pytest.fixture(scope="module")
def stats() -> ModuleType:
    """Import SciPy when the first test runs, not when pytest collects tests: it takes seconds."""
    from scipy import stats

    return stats  # type: ignore[no-any-return]


@given(two_untied())
def test_exact_p_equals_scipy(stats: ModuleType, pair: tuple[list[float], list[float]]) -> None:
    base, head = pair
    expected = stats.mannwhitneyu(head, base, alternative="greater", method="exact").pvalue
    assert mann_whitney(base, head) == pytest.approx(float(expected), rel=1e-9)


@given(tied, tied)
def test_exact_p_with_ties_matches_all_permutations(
    stats: ModuleType, base: list[float], head: list[float]
) -> None:
    ranks = [float(rank) for rank in stats.rankdata([*base, *head])]
    found = sum(ranks[len(base) :])
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(head))]
    expected = sum(total >= found for total in sums) / len(sums)
    assert mann_whitney(base, head) == pytest.approx(expected, rel=1e-12)


@given(long, long)
def test_approximated_p_equals_scipy(stats: ModuleType, base: list[float], head: list[float]) -> None:
    assume(len({*base, *head}) > 1)
    expected = stats.mannwhitneyu(head, base, alternative="greater", method="asymptotic").pvalue
    assert mann_whitney(base, head) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


def test_exact_and_approximated_p_meet(stats: ModuleType) -> None:
    base, head = [float(n) for n in range(30)], [n + 4.5 for n in range(30)]
    exact = mann_whitney(base, head)
    assert len(base) + len(head) == MAX_EXACT
    approximated = stats.mannwhitneyu(head, base, alternative="greater", method="asymptotic").pvalue
    assert exact == pytest.approx(float(approximated), rel=0.05)
