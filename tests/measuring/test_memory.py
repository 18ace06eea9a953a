"""What 200,000 samples hold while they are taken. Without torch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.rounds import Rounds
from pytest_dtdispatch.rounds.sampler import WallClock
from pytest_dtdispatch.rounds.timing import Subject
from tests.scripted_bench import Bench

MANY = 200_000
MOST_BYTES = 8_000_000 + 64 * MANY  # what is held however few they are, and each


@pytest.fixture
def held() -> Iterator[Callable[[], int]]:
    """Tell how many bytes were gained at most."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()

    def gained() -> int:
        return tracemalloc.get_traced_memory()[1] - before

    yield gained
    tracemalloc.stop()


@pytest.mark.long
@pytest.mark.parametrize("propagates", [True, False])
def test_many_samples_use_little_memory(held: Callable[[], int], propagates: bool) -> None:
    bench = Bench()
    if not propagates:
        bench.op_that(lambda number: None)
    count: Any = iter(range(10**12))
    sampler = WallClock(lambda: next(count) * 1000)  # other numbers than those that Python keeps anyway
    plan = Plan(rounds=5, repeat=MANY // 5, max_time_s=1e9, sampler=sampler)
    taken = Rounds(Subject(bench.op, tuple), bench.caches, plan).take()
    assert MANY in [len(one.values) for one in taken.samples]
    assert held() < MOST_BYTES
