"""What counters prove of a call, what is recorded, and what is refused."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.core.measurement import INSTRUCTIONS, State
from pytest_dtdispatch.measuring.rounds import (
    A_COUNTER_MOVED,
    NO_COUNTER_MOVED,
    NOT_COLD,
    NOT_COUNTED,
    NOT_PROPAGATED,
    PROPAGATED_AGAIN,
    ProvedCall,
    SampleRecorder,
    moved,
)


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
    assert recorder.recorded(State.HIT) == [46_104]
    assert [str(refused) for refused in recorder.refused(State.HIT)] == [f"{NOT_COUNTED} (2x)"]
    assert not recorder.recorded(State.MISS)
