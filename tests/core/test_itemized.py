"""Numbers that know what they consist of, and lists of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.itemized import MOST_LISTED, Count, listed, repeated


@given(st.integers(0, 1000), st.integers(1, 50))
def test_a_count_is_a_number_and_compares_as_one(total: int, steps: int) -> None:
    count = Count(total * steps, steps, ["why"])
    assert float(count) == total
    assert str(count) == f"{total:g}"
    assert count.details == ("why",)


def test_nothing_is_listed_of_nothing() -> None:
    assert repeated([]) == listed([]) == []


def test_what_is_listed_is_indented_and_the_rest_is_counted() -> None:
    assert listed(range(MOST_LISTED))[-1] == f"    {MOST_LISTED - 1}"
    assert listed(range(MOST_LISTED + 2))[MOST_LISTED:] == ["    and 2 more"]
