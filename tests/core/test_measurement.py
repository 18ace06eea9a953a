"""Samples, and what is derived from those of one signature."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Contains,
    Figures,
    Measurement,
    Refused,
    Samples,
    State,
)

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def measurement(*samples: Samples) -> Measurement:
    return Measurement("add@4", "add@4", "add.Tensor", "4", Contains.DISPATCH, 1, Figures(20, samples))


def of(state: State, *ns: int, refused: tuple[Refused, ...] = ()) -> Samples:
    return Samples(state, ns, refused)


MISSES = of(State.MISS, 1_000_000, 1_300_000, 1_200_000)
HITS = of(State.HIT, 6_000, 7_000, 9_000, 6_500)
LOCALS = of(State.LOCAL, 1_000, 2_000, 1_500)
CALLS = of(State.CALL, 400, 500)


@unhurried
@given(st.lists(st.integers(0, 10**15), min_size=1))
def test_samples_are_kept_in_their_order(ns: list[int]) -> None:
    samples = of(State.HIT, *ns)
    assert samples.ns == tuple(ns)
    assert min(ns) <= samples.median_ns <= max(ns)


@unhurried
@given(st.lists(st.integers(0, 100)), st.integers(max_value=-1))
def test_a_negative_latency_is_refused(ns: list[int], negative: int) -> None:
    with pytest.raises(ValueError, match=f"a latency of {negative} ns"):
        of(State.HIT, *ns, negative)


def test_the_steady_latency_is_the_hits_else_the_calls() -> None:
    assert HITS.median_ns == 6_750, "an even number: between two"
    assert measurement(MISSES, HITS).steady_ns == 6_500
    assert measurement(CALLS).steady_ns == 450
    assert measurement(HITS, CALLS).steady_ns == 6_500
    assert measurement(MISSES).steady_ns is None
    assert measurement(of(State.HIT, 0), CALLS).steady_ns == 0


def test_overhead_is_what_is_above_the_local_op() -> None:
    assert measurement(HITS, LOCALS).overhead_ns == 5_000
    assert measurement(CALLS, LOCALS).overhead_ns == -1_050
    assert measurement(HITS).overhead_ns is None
    assert measurement(LOCALS).overhead_ns is None


def test_a_miss_is_set_against_a_hit_and_nothing_else() -> None:
    assert measurement(of(State.MISS, 1000), of(State.HIT, 10)).miss_over_hit == 100
    assert measurement(MISSES, CALLS).miss_over_hit is None
    assert measurement(HITS).miss_over_hit is None
    assert measurement(MISSES, of(State.HIT, 0)).miss_over_hit is None


def test_a_state_without_samples_has_no_median_and_no_row() -> None:
    empty = of(State.MISS, refused=(Refused("propagation did not run", 20),))
    measured = measurement(empty, HITS)
    assert measured.of(State.MISS) is None
    assert measured.median_ns(State.MISS) is None
    assert measured.median_ns(State.COLD) is None
    assert list(measured.recorded()) == [HITS]


@pytest.mark.parametrize(
    ("samples", "phrase"),
    [
        ((MISSES, HITS, LOCALS), "proved"),
        ((MISSES,), "proved"),
        ((HITS,), "proved"),
        ((CALLS, LOCALS), "unpropagated"),
        ((), "not measured"),
        ((LOCALS,), "not measured"),
        ((of(State.HIT, 1, refused=(Refused("propagation ran again", 3),)),), "propagation ran again (3x)"),
        ((of(State.CALL, 1, refused=(Refused("a cache counter moved", 2),)),), "a cache counter moved (2x)"),
        (
            (Samples(State.HIT, (), (Refused("the meter did not count", 10),), INSTRUCTIONS),),
            "the meter did not count (10x)",
        ),
        (
            (
                of(State.MISS, refused=(Refused("propagation did not run", 20),)),
                of(State.HIT, 5, refused=(Refused("a", 1), Refused("b", 2))),
            ),
            "propagation did not run (20x), a (1x), b (2x)",
        ),
    ],
)
def test_the_proof_says_what_the_counters_said(samples: tuple[Samples, ...], phrase: str) -> None:
    assert measurement(*samples).proof == phrase


def test_states_and_starts_are_written_as_their_values() -> None:
    assert [str(state) for state in State] == [
        *("miss", "hit", "cold", "call", "local"),
        *("compile-cold", "compile-warm", "eager"),
    ]
    assert str(Contains.DISPATCH) == "dispatch from below autograd"
    assert f"{Contains.END_TO_END}" == "end to end from Python, autograd included"


# Instructions


def counts(state: State, *values: int) -> Samples:
    return Samples(state, values, unit=INSTRUCTIONS)


@pytest.mark.parametrize("reading", [0, -1, 2**63, 2**64 - 1])
def test_what_a_counter_reads_that_does_not_count_is_no_record(reading: int) -> None:
    with pytest.raises(ValueError, match=f"no count of instructions: {reading}"):
        counts(State.HIT, 46_104, reading)


def test_instructions_are_no_latencies() -> None:
    measured = measurement(counts(State.MISS, 9, 7), counts(State.HIT, 3))
    assert measured.steady_ns is measured.median_ns(State.MISS) is measured.overhead_ns is None
    assert list(measured.times()) == []
    assert [one.state for one in measured.recorded()] == [State.MISS, State.HIT]
    assert (measured.figure(State.MISS), measured.figure(State.COLD)) == (7, None)
    assert measured.proof == "proved"


def test_the_steady_count_is_that_of_hits_else_of_calls() -> None:
    hits, calls = counts(State.HIT, 3), counts(State.CALL, 2)
    assert measurement(calls, hits).steady is hits
    assert measurement(calls).steady is calls
    assert measurement(calls).proof == "unpropagated"
    assert measurement(counts(State.HIT)).steady is None


def test_the_figure_of_times_is_the_quietest_block_and_of_counts_the_least() -> None:
    ns = (9, 8, 9, 5, 4, 6, 9, 7, 9)
    assert (of(State.MISS, *ns).figure, of(State.MISS, *ns).figure_name) == (5, "quietest block")
    counted = Samples(State.MISS, ns, unit=INSTRUCTIONS)
    assert (counted.figure, counted.figure_name, counted.scatter) == (4, "least", None)


def test_states_whose_samples_scatter_by_more_than_their_figure_are_noisy() -> None:
    waits = of(State.MISS, *(1_000, 5_000, 4_000) * 7)
    assert waits.is_noisy
    assert not of(State.HIT, *(1_000, 1_900, 1_500) * 7).is_noisy
    assert not of(State.MISS, 1_000, 9_000).is_noisy, "nobody knows"
    assert measurement(waits, HITS).noisy == (State.MISS,)
    assert measurement(MISSES, HITS).noisy == ()
