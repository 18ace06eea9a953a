"""Samples, and figures derived from those of one signature."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Clock,
    Figures,
    Refused,
    Samples,
    State,
    Unit,
    common_clock,
    merge,
    passes_of,
)
from tests.reported_runs import measured

measurement = partial(measured, "add@4")


def of(state: State, *ns: int, refused: tuple[Refused, ...] = ()) -> Samples:
    return Samples(state, ns, refused)


def counts(state: State, *values: int) -> Samples:
    return Samples(state, values, unit=INSTRUCTIONS)


MISSES = of(State.MISS, 1_000_000, 1_300_000, 1_200_000)
HITS = of(State.HIT, 6_000, 7_000, 9_000, 6_500)
LOCALS = of(State.LOCAL, 1_000, 2_000, 1_500)
CALLS = of(State.CALL, 400, 500)
REFUSED = of(State.MISS, refused=(Refused("propagation did not run", 20),))
AGAIN = of(State.HIT, 5, refused=(Refused("a", 1), Refused("b", 2)))


@pytest.mark.parametrize(
    ("samples", "steady_ns", "overhead_ns", "miss_over_hit", "proof"),
    [
        ((MISSES, HITS, LOCALS), 6_000, 5_000, 1_000_000 / 6_000, "proved"),
        ((MISSES,), None, None, None, "proved"),
        ((HITS, CALLS), 6_000, None, None, "unpropagated"),
        ((CALLS, LOCALS), 400, -600, None, "unpropagated"),
        ((MISSES, CALLS), 400, None, None, "unpropagated"),
        ((MISSES, of(State.HIT, 0), CALLS), 0, None, None, "unpropagated"),
        ((LOCALS,), None, None, None, "not measured"),
        ((), None, None, None, "not measured"),
        ((REFUSED, HITS), 6_000, None, None, "propagation did not run (20x)"),
        ((REFUSED, AGAIN), 5, None, None, "propagation did not run (20x), a (1x), b (2x)"),
        ((counts(State.MISS, 9, 7), counts(State.HIT, 3)), None, None, 7 / 3, "proved"),
        ((counts(State.CALL, 2),), None, None, None, "unpropagated"),
    ],
)
def test_row_figures_are_derived_from_samples(
    samples: tuple[Samples, ...],
    steady_ns: float | None,
    overhead_ns: float | None,
    miss_over_hit: float | None,
    proof: str,
) -> None:
    row = measurement(*samples)
    found_ns = row.steady.figure if row.steady and row.steady.ns else None
    found = (found_ns, row.overhead_ns, row.miss_over_hit, row.proof)
    assert found == (steady_ns, overhead_ns, miss_over_hit, proof)
    assert list(row.recorded()) == [each for each in samples if each.values]
    assert list(row.times()) == [each for each in samples if each.ns]
    assert row.median_ns(State.COLD) is row.figure(State.COLD) is None


@pytest.mark.parametrize(
    ("state", "values", "unit", "message"),
    [
        (State.HIT, (5, -1), {}, "a latency of -1 ns"),
        *(
            (State.HIT, (46_104, reading), {"unit": INSTRUCTIONS}, f"no count of instructions: {reading}")
            for reading in (0, -1, 2**63, 2**64 - 1)
        ),
    ],
)
def test_impossible_reading_is_rejected(
    state: State, values: tuple[int, ...], unit: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Samples(state, values, **unit)  # type: ignore[arg-type]


def test_cpu_time_of_each_sample_is_required() -> None:
    assert Samples(State.HIT, (7, 9), cpu=(5, 6)).cpu == (5, 6)
    with pytest.raises(ValueError, match="CPU times of 1 samples, but 2 samples"):
        Samples(State.HIT, (7, 9), cpu=(5,))


# Clocks and figures


OWN = Unit("thread ns", hit="own_ns")
COUNTED, OF_SAMPLER = counts(State.HIT, 9, 8), Samples(State.HIT, (9, 8), unit=OWN)
WITH_CPU = Samples(State.HIT, (90, 70, 80), cpu=(60, 65, 50))


@pytest.mark.parametrize(
    ("samples", "clock", "figure", "median_ns"),
    [
        (HITS, Clock.WALL, 6_000, 6_750),
        (WITH_CPU, Clock.CPU, 50, 80),
        (COUNTED, Clock.METRIC, 8, None),
        (OF_SAMPLER, Clock.METRIC, 8, 8.5),
    ],
)
def test_figure_is_the_least_sample_by_its_clock(
    samples: Samples, clock: Clock, figure: int, median_ns: float | None
) -> None:
    assert (samples.clock, samples.figure, samples.figure_name) == (clock, figure, "least")
    assert measurement(samples).figure(State.HIT) == figure
    assert measurement(samples).median_ns(State.HIT) == median_ns
    assert samples.least(Clock.WALL) == min(samples.values)


@pytest.mark.parametrize(
    ("first", "second", "clock"),
    [
        (WITH_CPU, WITH_CPU, Clock.CPU),
        (WITH_CPU, HITS, Clock.WALL),
        (HITS, WITH_CPU, Clock.WALL),
        (HITS, HITS, Clock.WALL),
        (OF_SAMPLER, OF_SAMPLER, Clock.METRIC),
    ],
)
def test_common_clock_is_cpu_time_of_both(first: Samples, second: Samples, clock: Clock) -> None:
    assert common_clock(first, second) is clock


def test_overhead_has_one_clock() -> None:
    local = of(State.LOCAL, 30, 40, 20)
    assert measurement(WITH_CPU, replace(local, cpu=(15, 10, 30))).overhead_ns == 50 - 10
    assert measurement(WITH_CPU, local).overhead_ns == 70 - 20, "wall time of both"


# Passes


IN_PASSES = replace(WITH_CPU, lengths=(2, 1))


def test_samples_are_split_into_passes_by_clock() -> None:
    assert IN_PASSES.passes(Clock.WALL) == ((90, 70), (80,))
    assert IN_PASSES.passes(Clock.CPU) == ((60, 65), (50,))
    assert WITH_CPU.passes(Clock.WALL) == ((90,), (70,), (80,)), "without lengths, each sample is a pass"


@given(st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=5), max_size=8))
def test_passes_contain_every_sample_in_order(passes: list[list[int]]) -> None:
    values = [value for of_pass in passes for value in of_pass]
    assert passes_of(values, [*map(len, passes)]) == tuple(map(tuple, passes))


@pytest.mark.parametrize(("stat", "figure", "median_ns"), [("median", 15, 19), ("max", 16, 30)])
def test_figure_over_ranks_is_the_least_statistic_of_a_pass(
    stat: str, figure: float, median_ns: float
) -> None:
    ranks = ((0, (9, 11, 10, 1, 1, 1)), (1, (20, 20, 20, 15, 15, 18)), (2, (30, 30, 30, 16, 16, 30)))
    samples = Samples(State.HIT, (1,), by_rank=ranks, stat=stat, lengths=(3, 3))
    statistic = ((20,), (15,)) if stat == "median" else ((30,), (16,))
    assert samples.passes(samples.clock) == statistic
    assert (samples.figure, samples.figure_name) == (figure, f"least {stat} of rank medians")
    assert samples.median_ns == median_ns


@pytest.mark.parametrize(
    ("samples", "scatter"),
    [
        (of(State.HIT, 100, 110, 120, 105), 0.05),
        (replace(of(State.HIT, 100, 900, 120, 900), lengths=(2, 2)), 0.2),
        (Samples(State.HIT, (100, 900, 100, 900), cpu=(100, 101, 150, 110)), 0.01),
        (Samples(State.HIT, (1,), by_rank=((0, (100, 103)), (1, (100, 130)), (2, (7,)))), 0.3),
        (of(State.HIT, 100), None),
        (of(State.HIT, 0, 100), None),
        (COUNTED, None),
    ],
)
def test_scatter_is_the_gap_between_halves_of_passes(samples: Samples, scatter: float | None) -> None:
    assert samples.scatter == (scatter and pytest.approx(scatter))
    assert samples.is_noisy is bool(scatter and scatter > 0.1)


def test_states_with_scattered_halves_are_noisy() -> None:
    assert measurement(of(State.MISS, 1_000, 1_101), of(State.HIT, 1_000, 1_099)).noisy == (State.MISS,)


# Merged figures


@pytest.mark.parametrize(("others", "cpu"), [((5, 6), (60, 65, 50, 5, 6)), ((), ())])
def test_merged_samples_have_cpu_time_if_all_have(others: tuple[int, ...], cpu: tuple[int, ...]) -> None:
    second = Samples(State.HIT, (10, 20), cpu=others, lengths=(1, 1))
    [merged] = merge([Figures(3, (IN_PASSES,)), Figures(2, (second,))]).samples
    assert (merged.values, merged.lengths, merged.cpu) == ((90, 70, 80, 10, 20), (2, 1, 1, 1), cpu)


# Units


def test_count_cannot_have_the_unit_of_times() -> None:
    with pytest.raises(ValueError, match="needs the plural of what it counts"):
        Unit(steady="references", is_time=False)
    assert Unit("references", is_time=False).name == "references"
