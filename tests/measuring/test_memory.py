"""What a million samples hold, while they are taken and after. Without torch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_dtdispatch.core.measurement import Figures, Samples, State
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.rounds import Rounds, Subject
from pytest_dtdispatch.measuring.sampler import WallClock
from tests.scripted_bench import Bench

MILLION = 1_000_000
MOST_BYTES = 64_000_000
Held = Callable[[], tuple[int, ...]]


@pytest.fixture
def held() -> Iterator[Held]:
    """Tell how many bytes were gained, and how many at most."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    yield lambda: tuple(size - before for size in tracemalloc.get_traced_memory())
    tracemalloc.stop()


def figures(values: tuple[int, ...]) -> Figures:
    return Figures(1, (Samples(State.HIT, values),))


def test_one_row_of_a_million_samples_holds_eight_bytes_of_each(held: Held) -> None:
    results = TestResults("test")
    results.enter_call("row", "4", figures(tuple(range(5_000, 5_000 + MILLION))))
    assert held()[0] < 9 * MILLION
    [row] = results.measurements()
    [hits] = row.samples
    assert hits.values[:2] == (5_000, 5_001)
    assert len(hits.ns) == MILLION


def test_a_thousand_rows_of_a_thousand_samples_hold_as_little(held: Held) -> None:
    results = TestResults("test")
    for number in range(1_000):
        first = 5_000 + number
        results.enter_call(f"row {number}", "4", figures(tuple(range(first, first + 1_000))))
    assert held()[0] < 10 * MILLION


@pytest.mark.long
@pytest.mark.parametrize("propagates", [True, False])
def test_a_million_samples_are_taken_in_little_memory(held: Held, propagates: bool) -> None:
    bench = Bench()
    if not propagates:
        bench.op_that(lambda number: None)
    count: Any = iter(range(10**12))
    sampler = WallClock(lambda: next(count) * 1000)  # other numbers than those that Python keeps anyway
    plan = Plan(rounds=5, repeat=MILLION // 5, max_time_s=1e9, sampler=sampler)
    taken = Rounds(Subject(bench.op, tuple), bench.caches, plan).take()
    assert MILLION in [len(one.values) for one in taken.samples]
    assert held()[1] < MOST_BYTES
