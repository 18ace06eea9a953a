"""A figure does not depend on how deep in the stack its program stands."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.rounds import Reader, Rounds, Subject
from pytest_dtdispatch.measuring.sampler import WallClock


class NoCaches:
    """Caches that nothing asks: every call is an unpropagated one."""

    def clear(self) -> None:
        pass

    def clear_cold(self) -> None:
        pass

    def cold_entries(self) -> int:
        return 0

    def readers(self) -> tuple[Reader, ...]:
        return (read_nothing,)

    def counting_uncached(self) -> AbstractContextManager[list[int]]:
        return nullcontext([0])


def read_nothing() -> Sequence[int]:
    return (0, 0)


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def nest(depth: int) -> int:
    return nest(depth - 1) if depth else 0


def median_faults_of_a_call() -> float:
    caches: Any = NoCaches()
    plan = Plan(rounds=1, repeat=20, sampler=WallClock(page_faults))
    taken = Rounds(Subject(nest, lambda: (10,)), caches, plan).take()
    [samples] = [samples for samples in taken.samples if samples.state is State.CALL]
    return samples.median_ns


def at_depth(depth: int, measure: Callable[[], float]) -> float:
    return at_depth(depth - 1, measure) if depth else measure()


def test_no_call_maps_memory_for_its_frames_at_any_depth() -> None:
    # A chunk of CPython's stack holds some 150 of these small frames: the depths pass two ends of one.
    assert {at_depth(depth, median_faults_of_a_call) for depth in range(300)} == {0}
