"""Memory held by 200,000 samples while they are measured. Without torch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.rounds import Rounds
from pytest_dtdispatch.rounds.sampler import WallClock
from pytest_dtdispatch.rounds.timing import Subject
from tests.scripted_bench import Bench, figures_of

MANY = 200_000
MAX_BYTES = 8_000_000 + 64 * MANY  # fixed part, and part of each sample


@pytest.fixture
def held() -> Iterator[Callable[[], int]]:
    """Return a function that measures the peak of additional bytes."""
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
    sampler = WallClock(lambda: next(count) * 1000)  # not the small integers that Python caches
    plan = Plan(rounds=8, repeat=MANY // 8, max_time_s=1e9, sampler=sampler)
    figures = figures_of(Rounds(Subject(bench.op, tuple), bench.caches, plan))
    assert MANY in [len(one.values) for one in figures.samples]
    assert held() < MAX_BYTES
