"""Rows of the atlas: what they have and why they lack the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.atlas.model import Atlas, AtlasRow, Outcome, count_ops, quietest
from pytest_dtdispatch.core.environment import Environment
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Refused, Samples, State

ENVIRONMENT = Environment("2.13.0+cpu", "abc", "", "cpu", "", "fake", 8, 1, "native+python")


def visit(*samples: Samples, notes: tuple[str, ...] = ()) -> Measurement:
    figures = Figures(5, samples, notes)
    return Measurement("mm@4", "mm@4", "mm.default", "4", Contains.DISPATCH, 1, figures)


def measured(*samples: Samples, notes: tuple[str, ...] = ()) -> AtlasRow:
    return visited(visit(*samples, notes=notes))


def visited(*visits: Measurement) -> AtlasRow:
    return AtlasRow("mm.default", "mm@4", "4", Outcome.MEASURED, visits=visits)


MISSES, HITS = Samples(State.MISS, (1_000_000,)), Samples(State.HIT, (7_000,))
REFUSED = AtlasRow("tril.default", "tril@4", "4", Outcome.UNSUPPORTED, "RuntimeError: no")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (measured(MISSES, HITS), ""),
        (measured(MISSES, notes=("never hits: propagation runs on every call",)), "never hits: propagation"),
        (measured(Samples(State.CALL, (400,))), "never asks the sharding propagator"),
        (measured(MISSES), "proved"),
        (REFUSED, ""),
    ],
)
def test_a_measured_signature_without_a_hit_says_why(row: AtlasRow, why: str) -> None:
    assert row.why_no_hit.startswith(why)
    assert bool(row.why_no_hit) == bool(why)


def test_a_row_that_was_not_measured_has_no_figures() -> None:
    assert REFUSED.measurement is None
    assert REFUSED.moves == ()


def test_rows_are_found_by_outcome_and_ops_counted_once() -> None:
    rows = (measured(MISSES, HITS), measured(MISSES), REFUSED)
    atlas = Atlas(rows, ENVIRONMENT, "a CPU", 2, "3.11.7", "2026-11-21", "dtdispatch atlas")
    assert atlas.of(Outcome.UNSUPPORTED) == (REFUSED,)
    assert atlas.of(Outcome.MEASURED, Outcome.UNSUPPORTED) == rows
    assert atlas.ops == 2
    assert count_ops(()) == 0


def test_each_state_is_shown_as_the_quietest_visit_had_it() -> None:
    noisy_miss = visit(Samples(State.MISS, (1_700, 1_800)), Samples(State.HIT, (7,)))
    noisy_hit = visit(Samples(State.MISS, (1_000, 1_100)), Samples(State.HIT, (12,)))
    row = visited(noisy_miss, noisy_hit)
    assert row.measurement is not None
    assert (row.measurement.median_ns(State.MISS), row.measurement.steady_ns) == (1_050, 7)
    assert row.spread(State.MISS) == 1_750 / 1_050


def test_a_state_that_one_visit_alone_recorded_is_shown_and_has_no_spread() -> None:
    row = visited(visit(MISSES), visit(MISSES, HITS))
    assert row.measurement is not None
    assert row.measurement.steady_ns == 7_000
    assert row.spread(State.HIT) is None
    assert REFUSED.spread(State.HIT) is None


@pytest.mark.parametrize(
    ("medians", "is_confirmed"),
    [((), True), ((100,), False), ((100, 120), True), ((121, 100), False), ((160, 161, 100), False)],
)
def test_a_figure_is_confirmed_by_a_second_visit_that_found_it(
    medians: tuple[int, ...], is_confirmed: bool
) -> None:
    row = visited(*(visit(Samples(State.HIT, (median,))) for median in medians))
    assert row.unconfirmed == (() if is_confirmed else (State.HIT,))


def test_what_any_visit_refused_is_kept() -> None:
    again = Samples(State.HIT, (5,), (Refused("propagation ran again", 2),))
    never = Samples(
        State.HIT, (), (Refused("propagation ran again", 1), Refused("no cache counter moved", 4))
    )
    assert quietest((visit(again), visit(never))).samples == (
        Samples(State.HIT, (5,), (Refused("propagation ran again", 3), Refused("no cache counter moved", 4))),
    )


@given(st.lists(st.integers(1, 10**9), min_size=1))
def test_another_visit_never_makes_a_figure_larger(medians: list[int]) -> None:
    visits = [visit(Samples(State.MISS, (median,))) for median in medians]
    shown = [quietest(visits[: 1 + last]).median_ns(State.MISS) for last in range(len(visits))]
    assert shown == [min(medians[: 1 + last]) for last in range(len(medians))]
