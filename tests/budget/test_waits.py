"""Waits for a core in budgets: outside of measured times, or a note."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pytest_dtdispatch.budget import measure
from pytest_dtdispatch.budget.measure import (
    BudgetMeasurement,
    StepTime,
    budgeted_region,
    run_and_measure_budget,
)
from pytest_dtdispatch.budget.model import MeasuredBudget
from pytest_dtdispatch.budget.timeline import Range
from pytest_dtdispatch.core.events import Event, Part
from pytest_dtdispatch.rounds.core_waits import CoreWaits, core_waits

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap", "nothing_stays")]

WAIT_NS = 20_000_000
Wait = Callable[[int], None]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Wait:
    """Return a sleep that counts as waiting for a core."""
    waited_ns = 0

    def sleep(ns: int) -> None:
        nonlocal waited_ns
        time.sleep(ns / 1e9)
        waited_ns += ns

    @contextmanager
    def scripted() -> Iterator[CoreWaits]:
        with core_waits() as waits:
            yield CoreWaits(lambda: waits.counted() + waited_ns, is_counted=True)

    monkeypatch.setattr(measure, "core_waits", scripted)
    return sleep


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a system that does not count waits."""
    monkeypatch.setattr(measure, "core_waits", lambda: core_waits("/no/such/file"))


def test_waits_are_outside_of_the_step(wait: Wait) -> None:
    found = run_and_measure_budget(lambda: wait(WAIT_NS), 1, 5, "step").budget
    assert found.waiting_ns >= WAIT_NS
    assert found.measured_ns < WAIT_NS / 2
    assert sum(found.parts.values()) + found.unexplained_ns == pytest.approx(found.measured_ns)
    assert found.parts[Part.OTHER] < WAIT_NS / 2
    assert sum(one.ns for one in found.by_phase()) < WAIT_NS / 2


def test_noise_is_judged_without_waits(wait: Wait) -> None:
    lengths = iter([0, 4 * WAIT_NS] * 500)

    def step() -> None:
        wait(next(lengths))
        end = time.thread_time_ns() + WAIT_NS // 2
        while time.thread_time_ns() < end:
            continue

    found = run_and_measure_budget(step, 1, 5, "step").budget
    assert found.noise < 2, "with the waits it would be 8"


@pytest.mark.parametrize("level", ["_undisturbed", "_marked", "_doubled", "_profiled"])
def test_noise_of_each_kind_of_step_counts(level: str) -> None:
    with BudgetMeasurement(4, "step") as measurement:
        while measurement.begin_step():
            measurement.end_step()
    for each in ("_undisturbed", "_marked", "_doubled", "_profiled"):
        lengths = (1, 1, 5, 5) if each == level else (1,) * 4
        setattr(measurement, each, [StepTime(length * 10**9, 0) for length in lengths])
    assert measurement.result().budget.is_noisy


def test_uncounted_off_core_time_is_a_note(uncounted: None) -> None:
    found = run_and_measure_budget(lambda: time.sleep(WAIT_NS / 1e9), 1, 5, "step").budget
    assert "not on a core (waiting and sleeping): " in found.note
    assert not found.waiting_ns
    assert found.parts[Part.OTHER] > 0.9 * WAIT_NS


def test_single_step_notes_its_waits(wait: Wait) -> None:
    found: list[MeasuredBudget] = []
    with budgeted_region("test", found.append):
        wait(WAIT_NS)
    assert "waiting for a core: " in found[0].budget.note
    assert not found[0].budget.waiting_ns
    assert found[0].budget.parts[Part.OTHER] > 0.9 * WAIT_NS


def test_single_step_notes_uncounted_off_core_time(uncounted: None) -> None:
    found: list[MeasuredBudget] = []
    with budgeted_region("test", found.append):
        time.sleep(WAIT_NS / 1e9)
    assert "not on a core (waiting and sleeping): " in found[0].budget.note


@pytest.mark.parametrize(
    ("is_counted", "off_core_ns", "stops"),
    [(True, (1, 1, 0), True), (True, (0, 0, 80), False), (False, (50, 50, 50), False)],
)
def test_marks_stop_during_waits_if_most_steps_waited(
    is_counted: bool, off_core_ns: tuple[int, ...], stops: bool
) -> None:
    """The clock of marks reads waits at each mark, which doubles its cost."""
    waits = CoreWaits(lambda: 0, is_counted)
    clock = measure.marking_clock(waits, [StepTime(100, ns) for ns in off_core_ns])
    assert clock == (waits.clock if stops else time.perf_counter_ns)


def test_clocks_are_aligned_by_the_shortest_anchor() -> None:
    """A thread that loses its core between two readings would attribute ops to earlier lines."""
    late = 300_000_000
    anchors = [(1_000, 1_000 + late), (late + 2_000, late + 2_010), (late + 3_000, late + 3_400)]
    events = [Event(Range.ANCHOR, ns, ns + 1) for ns in (900 + late, 2_005 + late - 50, 3_300 + late)]
    *_, op = measure.on_python_clock([*events, Event("aten::mm", 0, 1)], anchors)
    assert (op.begin_ns, op.end_ns) == (50, 51)
