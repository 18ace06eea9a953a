"""Samplers: registration and the interface of custom samplers."""

from __future__ import annotations

import time

import pytest

from pytest_dtdispatch.core.measurement import TIME, UNITS, State, Unit
from pytest_dtdispatch.errors import MeterError
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.rounds import Rounds
from pytest_dtdispatch.rounds.sampler import SAMPLERS, Sampler, WallClock, register_sampler, start_sampler
from pytest_dtdispatch.rounds.timing import Subject
from tests.scripted_bench import Bench, figures_of


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_dtdispatch.rounds.sampler.SAMPLERS", dict(SAMPLERS))
    monkeypatch.setattr("pytest_dtdispatch.rounds.sampler.UNITS", list(UNITS))


class Calls(Sampler):
    """Reads the number of calls of an op: every sample of one call is 1."""

    name, unit = "calls", Unit("calls", is_time=False, steady="calls")

    def __init__(self, bench: Bench) -> None:
        self.begin = self.end = lambda: bench.op.calls
        self.started = 0

    def start(self) -> None:
        self.started += 1


def test_time_is_sampled_by_the_round_clock() -> None:
    clock = start_sampler("time")
    assert isinstance(clock, WallClock)
    assert clock.meter == (time.perf_counter_ns, time.perf_counter_ns, None)
    assert (clock.clock, clock.unit, clock.is_exact) == (time.perf_counter_ns, TIME, False)


def test_cpu_time_is_read_if_it_is_fine() -> None:
    is_fine = time.get_clock_info("thread_time").resolution <= 1e-6
    assert start_sampler("time").cpu is (time.thread_time_ns if is_fine else None)
    assert Calls(Bench()).cpu is None, "a registered sampler has its own reading only"


def test_registered_sampler_is_started_by_name() -> None:
    sampler = Calls(Bench())
    register_sampler(sampler)
    assert start_sampler("calls") is sampler
    assert sampler.started == 1


def test_unregistered_sampler_is_refused_in_one_line() -> None:
    with pytest.raises(MeterError, match=r"^--dtdispatch-metric none: no sampler of this name is registered"):
        start_sampler("none")


def test_samples_have_the_unit_of_their_sampler() -> None:
    bench = Bench()
    figures = figures_of(Rounds(Subject(bench.op, tuple), bench.caches, Plan(3, 2, sampler=Calls(bench))))
    assert {samples.state: samples.values for samples in figures.samples} == {
        State.MISS: (1,) * 3,
        State.HIT: (1,) * 6,
    }
    assert {samples.unit for samples in figures.samples} == {Calls.unit}
    assert not any(samples.ns for samples in figures.samples)
    assert figures.rounds == 3
