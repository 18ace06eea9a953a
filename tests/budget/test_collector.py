"""Pauses of Python's garbage collector: recorded, summed, and shown outside of the parts. Without torch."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from pytest_dtdispatch.budget.collector import OLDEST, CollectorPauses, Pause, PauseMeter
from pytest_dtdispatch.budget.data import budgets_data
from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.budget.table import document
from pytest_dtdispatch.core.events import Cell
from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.report.document import View
from pytest_dtdispatch.report.terminal import plain_text


@pytest.fixture
def meter() -> Iterator[PauseMeter]:
    meter = PauseMeter()
    with meter:
        yield meter


def test_each_collection_is_a_pause(meter: PauseMeter) -> None:
    began_ns = time.perf_counter_ns()
    gc.collect(0)
    gc.collect()
    wall_ns = time.perf_counter_ns() - began_ns
    assert [pause.generation for pause in meter.pauses][-2:] == [0, OLDEST]
    assert 0 < sum(pause.ns for pause in meter.pauses) < wall_ns


def test_recording_ends_and_ignores_half_a_pause() -> None:
    meter = PauseMeter()
    callbacks = [*gc.callbacks]
    with meter:
        gc.callbacks[-1]("stop", {"generation": 2})  # started before the recording
    assert gc.callbacks == callbacks
    gc.collect(0)
    assert not meter.pauses
    with meter:
        gc.callbacks.clear()
    gc.callbacks[:] = callbacks


def test_few_pauses_have_no_share() -> None:
    two, three = (CollectorPauses.of([Pause(0, 10)] * count, 4, 100) for count in (2, 3))
    assert (two.pauses, two.share) == (2, None)
    assert (three.pauses, three.share, three.oldest) == (3, 0.3, 0)


def test_pauses_are_outside_of_the_sum() -> None:
    pauses = CollectorPauses.of([Pause(OLDEST, 40), Pause(0, 1), Pause(0, 1)], 20, 100)
    bare = Budget("train", 100.0, (Cell("local", "mm", None, 90.0, 1.0),), steps=20)
    budget = Budget("train", 100.0, bare.cells, steps=20, collector=pauses)
    assert (budget.parts, budget.unexplained_ns) == (bare.parts, bare.unexplained_ns)
    assert decode(Budget, encode(budget)) == budget
    brief, text = (plain_text(document({"test": [budget]}, View(verbose)), 200) for verbose in (False, True))
    assert "in 20 more: 42.0% of their time, 3 pauses, 1 of the oldest generation, longest 40 ns" in text
    assert "garbage" not in brief


def test_exported_budget_contains_pauses() -> None:
    pauses = CollectorPauses.of([Pause(OLDEST, 40), Pause(0, 1)], 20, 100)
    [measured, unmeasured] = budgets_data([Budget("train", collector=pauses), Budget("train")])
    assert measured["collector"] == {
        "steps": 20,
        "wall_ns": 100,
        "pauses": 2,
        "paused_ns": 41,
        "longest_ns": 40,
        "oldest": 1,
        "oldest_ns": 40,
    }
    assert unmeasured["collector"] is None
