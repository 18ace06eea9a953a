"""Series of calls in turn: when passes end, and in which order they call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from pytest_dtdispatch.core.trail import Trail
from pytest_dtdispatch.rounds.plan import Deadline, Stop, take
from tests.scripted_bench import FakeClock


class Settled:
    """Agreement of other ranks on the given numbers."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def sync(self, subject: str) -> None:
        """No-op."""

    def note(self, trail: Trail) -> None:
        """No-op."""

    def minimum(self, step: str, numbers: Sequence[int]) -> tuple[int, ...] | None:
        return self.numbers or None


def passes_of(stop: Stop, clock: FakeClock) -> int:
    """Take passes of a second."""
    for _ in take("a", stop):
        clock.passes(10**9)
    return stop.done


@pytest.mark.parametrize(
    ("limit_s", "most", "least", "pass_s", "done"),
    [
        (9.0, 5, 0, 0.0, 5),
        (2.5, 5, 0, 0.0, 3),
        (2.5, 5, 0, 1.0, 2),  # a third pass would end after the deadline
        (2.5, 5, 4, 1.0, 4),
        (0.0, 3, 4, 1.0, 3),
        (1e300, 3, 0, 1.0, 3),
    ],
)
def test_passes_end_at_the_deadline_after_the_least(
    limit_s: float, most: int, least: int, pass_s: float, done: int
) -> None:
    clock = FakeClock()
    assert passes_of(Stop(Deadline(limit_s, clock), most, least, pass_s * 1e9), clock) == done


def test_agreed_passes_ignore_the_deadline() -> None:
    clock = FakeClock()
    stop = Stop(Deadline(0.0, clock), 9)
    assert stop.settle(Settled(6, 3, 4), "the calls", 9, 7, 8) == (3, 4)
    assert passes_of(stop, clock) == stop.most == 6


@pytest.mark.parametrize("agreement", [None, Settled()])
def test_without_other_ranks_proposals_stay(agreement: Settled | None) -> None:
    stop = Stop(None, 2)
    assert stop.settle(agreement, "the calls", 1, 7, 8) == (7, 8)
    assert stop.most == 2


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_series_is_first_and_last_equally_often(count: int) -> None:
    orders = [tuple(order) for order in take(range(count), Stop(None, 2 * count), rotates=True)]
    assert [order[::-1] for order in orders[::2]] == orders[1::2]
    assert Counter(order[0] for order in orders) == Counter(order[-1] for order in orders)
    assert set(Counter(order[0] for order in orders).values()) == {2}
