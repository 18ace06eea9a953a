"""Rows of the atlas: what they have and why they lack the rest."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.records.atlas import Atlas, AtlasRow, Counts, Move, Outcome, count_ops
from pytest_dtdispatch.records.environment import Environment
from pytest_dtdispatch.records.measurement import Contains, Figures, Measurement, Samples, State

ENVIRONMENT = Environment("2.13.0+cpu", "abc", "", "cpu", "", "fake", 8, 1, "native+python")


def measured(*samples: Samples, notes: tuple[str, ...] = ()) -> AtlasRow:
    figures = Figures(5, samples, notes)
    measurement = Measurement("mm@4", "mm@4", "mm.default", "4", Contains.DISPATCH, 1, figures)
    return AtlasRow("mm.default", "mm@4", "4", Outcome.MEASURED, measurement=measurement)


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
    assert REFUSED.median_ns(State.MISS) is None
    assert REFUSED.steady_ns is None
    assert REFUSED.overhead_ns is None
    assert REFUSED.moves == ()


def test_figures_of_a_row_are_those_of_its_measurement() -> None:
    row = measured(MISSES, HITS, Samples(State.LOCAL, (2_000,)))
    assert (row.median_ns(State.MISS), row.steady_ns, row.overhead_ns) == (1_000_000, 7_000, 5_000)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("mat2",), "mat2 f32[8] S0 -> R"),
        (("self", "other"), "self or other f32[8] S0 -> R"),
        ((), "f32[8] S0 -> R"),
    ],
)
def test_a_move_names_the_arguments_that_it_may_be(names: tuple[str, ...], text: str) -> None:
    move = Move(names, "f32[8]", "S0", "R")
    assert str(move) == text
    counts = Counts(1, (move,))
    assert AtlasRow("mm.default", "mm@4", "4", Outcome.MEASURED, counts=counts).moves == (move,)


def test_rows_are_found_by_outcome_and_ops_counted_once() -> None:
    rows = (measured(MISSES, HITS), measured(MISSES), REFUSED)
    atlas = Atlas(rows, ENVIRONMENT, "a CPU", 2, "3.11.7", "2026-11-21", "dtdispatch atlas", 5, 10)
    assert atlas.of(Outcome.UNSUPPORTED) == (REFUSED,)
    assert atlas.of(Outcome.MEASURED, Outcome.UNSUPPORTED) == rows
    assert atlas.ops == 2
    assert count_ops(()) == 0
