"""Samples, and figures derived from those of one signature."""

from __future__ import annotations

from functools import partial

import pytest

from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Refused, Samples, State, Unit
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
        ((MISSES, HITS, LOCALS), 6_500, 5_000, 1_200_000 / 6_500, "proved"),
        ((MISSES,), None, None, None, "proved"),
        ((HITS, CALLS), 6_500, None, None, "unpropagated"),
        ((CALLS, LOCALS), 450, -1_050, None, "unpropagated"),
        ((MISSES, CALLS), 450, None, None, "unpropagated"),
        ((MISSES, of(State.HIT, 0), CALLS), 0, None, None, "unpropagated"),
        ((LOCALS,), None, None, None, "not measured"),
        ((), None, None, None, "not measured"),
        ((REFUSED, HITS), 6_500, None, None, "propagation did not run (20x)"),
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


def test_figure_is_quietest_block_or_minimum_count() -> None:
    ns = (9, 8, 9, 5, 4, 6, 9, 7, 9)
    timed, counted = of(State.MISS, *ns), counts(State.MISS, *ns)
    assert (timed.ns, timed.figure, timed.figure_name) == (ns, 5, "quietest block")
    assert (counted.ns, counted.figure, counted.figure_name, counted.scatter) == ((), 4, "least", None)
    assert HITS.median_ns == 6_750, "even number of values: between the middle two"


def test_state_with_scattered_samples_is_noisy() -> None:
    waits = of(State.MISS, *(1_000, 5_000, 4_000) * 7)
    assert measurement(waits, HITS).noisy == (State.MISS,)
    for quiet in (of(State.HIT, *(1_000, 1_900, 1_500) * 7), of(State.MISS, 1_000, 9_000)):
        assert measurement(quiet).noisy == (), "unknown for two samples"


def test_count_cannot_have_the_unit_of_times() -> None:
    with pytest.raises(ValueError, match="needs the plural of what it counts"):
        Unit(steady="references", is_time=False)
    assert Unit("references", is_time=False).name == "references"
