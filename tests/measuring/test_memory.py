"""What a million samples hold, while they are taken and after. Without torch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.rounds import Rounds, Subject
from pytest_dtdispatch.measuring.sampler import WallClock
from tests.scripted_bench import Bench

MILLION = 1_000_000
# As numbers of Python that many samples would take 8.8 MB more.
TAKEN, MOST_BYTES = 200_000, 17_000_000


@pytest.fixture
def held() -> Iterator[Callable[[], tuple[int, int]]]:
    """Tell how many bytes were gained, and how many at most."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()

    def gained() -> tuple[int, int]:
        now, peak = tracemalloc.get_traced_memory()
        return now - before, peak - before

    yield gained
    tracemalloc.stop()


@pytest.mark.long
@pytest.mark.parametrize("propagates", [True, False])
def test_many_samples_are_taken_in_little_memory(
    held: Callable[[], tuple[int, int]], propagates: bool
) -> None:
    bench = Bench()
    if not propagates:
        bench.op_that(lambda number: None)
    count: Any = iter(range(10**12))
    sampler = WallClock(lambda: next(count) * 1000)  # other numbers than those that Python keeps anyway
    plan = Plan(rounds=5, repeat=TAKEN // 5, max_time_s=1e9, sampler=sampler)
    taken = Rounds(Subject(bench.op, tuple), bench.caches, plan).take()
    assert TAKEN in [len(one.values) for one in taken.samples]
    assert held()[1] < MOST_BYTES
