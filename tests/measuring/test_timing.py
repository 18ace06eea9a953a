"""A figure does not depend on how deep in the stack its program stands."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest

from pytest_dtdispatch.core.measurement import INSTRUCTIONS, State
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.rounds import Rounds
from pytest_dtdispatch.measuring.sampler import WallClock
from pytest_dtdispatch.measuring.timing import (
    A_COUNTER_MOVED,
    NO_COUNTER_MOVED,
    NOT_COLD,
    NOT_COUNTED,
    NOT_PROPAGATED,
    PROPAGATED_AGAIN,
    ProvedCall,
    Reader,
    SampleRecorder,
    Subject,
    moved,
)


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
    plan = Plan(rounds=1, repeat=20, sampler=WallClock(page_faults))
    taken = Rounds(Subject(nest, lambda: (10,)), NoCaches(), plan).take()
    [samples] = [samples for samples in taken.samples if samples.state is State.CALL]
    return samples.median_ns


def at_depth(depth: int, measure: Callable[[], float]) -> float:
    return at_depth(depth - 1, measure) if depth else measure()


def test_no_call_maps_memory_for_its_frames_at_any_depth() -> None:
    # A chunk of CPython's stack holds some 150 of these small frames: the depths pass two ends of one.
    assert {at_depth(depth, median_faults_of_a_call) for depth in range(300)} == {0}


@pytest.mark.parametrize(
    ("hits", "misses", "no_miss", "no_hit", "not_unpropagated"),
    [
        (1, 0, NOT_PROPAGATED, "", A_COUNTER_MOVED),
        (0, 1, "", PROPAGATED_AGAIN, A_COUNTER_MOVED),
        (1, 1, "", PROPAGATED_AGAIN, A_COUNTER_MOVED),
        (0, 0, NOT_PROPAGATED, NO_COUNTER_MOVED, ""),
    ],
)
def test_counters_say_what_a_call_is(
    hits: int, misses: int, no_miss: str, no_hit: str, not_unpropagated: str
) -> None:
    call = ProvedCall(7, hits, misses)
    assert call.why_no_miss(True, NOT_PROPAGATED) == no_miss
    assert call.why_no_miss(False, NOT_PROPAGATED) == NOT_COLD
    assert call.why_no_hit(others_missed=False) == no_hit
    assert call.why_no_hit(others_missed=True) == PROPAGATED_AGAIN
    assert call.why_not_unpropagated() == not_unpropagated


def test_counters_of_several_caches_add_up() -> None:
    assert moved((1, 2, "more"), (4, 3, "less")) == (3, 1)
    assert moved([(1, 2), (0, 0)], [(4, 3), (1, 5)]) == (4, 6)


def test_a_reading_that_is_none_is_refused_whatever_the_counters_say() -> None:
    recorder = SampleRecorder(INSTRUCTIONS)
    for reading in (0, 46_104, 2**64 - 1):
        recorder.record(State.HIT, reading)
    [hits] = recorder.samples()
    assert (hits.values, hits.unit) == ((46_104,), INSTRUCTIONS)
    assert [str(refused) for refused in hits.refused] == [f"{NOT_COUNTED} (2x)"]
    assert recorder.recorded(State.MISS) == ()
