"""A run's measurements under names that outlive it."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.compiled.model import CompileCounts, CompiledFunction
from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Contains, Figures, Measurement, Samples, State
from pytest_dtdispatch.core.results import (
    FEW_SAMPLES,
    MOST_LISTED,
    Count,
    Finding,
    MetricValue,
    NamedCall,
    TestResults,
    listed,
    plain_name,
    repeated,
    row_key,
)
from pytest_dtdispatch.plugin.kinds import KINDS, metric_names
from pytest_dtdispatch.steps.events import Collective, Miss, QueriedCache, Redistribution
from pytest_dtdispatch.steps.model import StepCounts, Steps


def run_results(test: str, *found: Finding | Measurement) -> tuple[MetricValue, ...]:
    results = TestResults(test)
    for one in found:
        results.add(NamedCall(one.label, one) if isinstance(one, Measurement) else one)
    return tuple(results.metrics(KINDS))


MISS = Miss("mm.default(f32[8,8]S0, f32[8,8]R)@4", "first call of this op", QueriedCache.NATIVE)
MOVED = Redistribution("mm.default", "f32[8,8]", ("S0",), ("R",), 256)


def measured(label: str, *samples: Samples) -> Measurement:
    return Measurement(label, label, label, "4", Contains.DISPATCH, 1, Figures(2, samples))


def counts(state: State, *values: int) -> Samples:
    return Samples(state, values, unit=INSTRUCTIONS)


def test_hits_and_misses_are_given_by_their_medians_in_whole_nanoseconds() -> None:
    one = measured(
        "mm", Samples(State.MISS, (10, 30, 20)), Samples(State.HIT, (1, 2)), Samples(State.LOCAL, (1,))
    )
    assert run_results("t.py::test_mm", one) == (
        MetricValue("t.py::test_mm::mm", "dispatch_hit_ns", 2),
        MetricValue("t.py::test_mm::mm", "dispatch_miss_ns", 20),
    )


def test_a_miss_of_few_samples_is_given_as_one_that_cannot_be_judged() -> None:
    samples = Samples(State.MISS, (10,)), Samples(State.HIT, (2,) * 10)
    one = measured("mm", *samples)
    few = replace(one, figures=replace(one.figures, notes=(f"{FEW_SAMPLES}: a miss takes longer",)))
    found = {value.metric: value.scatter for value in run_results("t.py::test_mm", few)}
    assert found == {"dispatch_hit_ns": 0, "dispatch_miss_ns": math.inf}


def test_instructions_are_given_by_their_least() -> None:
    proved = (counts(State.MISS, 9_000, 7_000), counts(State.HIT, 60, 50))
    unpropagated = (counts(State.CALL, 31, 30),)
    rows = measured("mm", *proved), measured("is_same_size", *unpropagated)
    assert run_results("t.py::test", *rows) == (
        MetricValue("t.py::test::mm", "instruction_count", 50),
        MetricValue("t.py::test::mm", "instruction_count_miss", 7_000),
        MetricValue("t.py::test::is_same_size", "instruction_count", 30),
    )


def compiled(counts: CompileCounts, *samples: Samples) -> CompiledFunction:
    figures = Figures(1, samples)
    measurement = Measurement("f", "f", "f", "4", Contains.COMPILED, 1, figures)
    return CompiledFunction("f", "inductor", counts, measurement)


def test_the_instructions_of_a_compile_are_those_of_the_first_call_less_a_later_one() -> None:
    both = counts(State.COMPILE_COLD, 90_000), counts(State.CALL, 700, 600)
    results = run_results("t", compiled(CompileCounts(1, (), 22, ()), *both))
    assert {result.metric: result.value for result in results} == {
        "instruction_count": 600,
        "compile_time_instruction_count": 89_400,
        "graphs": 1,
        "graph_breaks": 0,
        "recompiles": 0,
    }
    assert run_results("t", compiled(CompileCounts(), both[0])) == ()


def test_lists_of_a_compile_are_given_by_their_lengths() -> None:
    counts = CompileCounts(3, ("t.py:1: print",) * 2, None, ("f (t.py:1): size",))
    results = run_results("t", compiled(counts))
    found = [(result.metric, result.value) for result in results]
    assert found == [("graphs", 3), ("graph_breaks", 2), ("recompiles", 1)]


def test_what_was_not_measured_has_no_result() -> None:
    call = measured("is_same_size", Samples(State.MISS, ()), Samples(State.HIT, ()))
    assert run_results("t.py::test_a", call, Steps("step", (), ())) == ()


def test_counters_are_those_of_the_step_that_has_most_as_limits_take_them() -> None:
    busy = StepCounts(events=(MISS, MOVED, MOVED, *map(Collective, ("all_gather", "all_gather", "a2a"))))
    steps = Steps("train", (StepCounts(events=(MISS,) * 9),), (StepCounts(hits=3), busy, StepCounts()))
    assert run_results("t.py::test_step", steps) == tuple(
        MetricValue("t.py::test_step::train", metric, value)
        for metric, value in (("misses_per_step", 1), ("redistributes", 2), ("collectives", 3))
    )


def test_every_metric_has_one_name() -> None:
    metrics = list(metric_names())
    assert len(set(metrics)) == len(metrics) == 16


@pytest.mark.parametrize("name", [" a  b ", "a\nb", "a\r\n b", "a\x00b", "a\u2028b", "a \udc80b"])
def test_a_name_is_one_line_that_can_be_written(name: str) -> None:
    assert plain_name(name) == "a b"
    plain_name(name).encode()


@given(st.text(max_size=30))
def test_a_key_is_the_name_on_one_line(name: str) -> None:
    key = row_key(name)
    assert row_key(key) == key == key.strip()
    assert key.isprintable()
    assert key == name or not name.isprintable() or name != name.strip()
    key.encode()


def test_names_that_differ_inside_have_keys_that_do() -> None:
    names = ("a b", "a  b", "a\nb", "a\tb", "a\u00a0b", "a\x1bb")
    assert len({row_key(name) for name in names}) == len(names)


@given(st.integers(0, 1000), st.integers(1, 50))
def test_a_count_is_a_number_and_compares_as_one(total: int, steps: int) -> None:
    count = Count(total * steps, steps, ["why"])
    assert float(count) == total
    assert str(count) == f"{total:g}"
    assert count.details == ("why",)


@pytest.mark.parametrize(("total", "steps"), [(1, 3), (7, 0), (10, 5)])
def test_a_copy_of_a_count_is_the_count_with_all_that_it_lists(total: int, steps: int) -> None:
    count = Count(total, steps, ["mm missed", "add missed"])
    pickled = [pickle.loads(pickle.dumps(count, each)) for each in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in (copy.copy(count), copy.deepcopy(count), *pickled):
        assert type(again) is Count
        assert (float(again), again.details) == (float(count), count.details)


def test_counts_of_steps_can_be_copied_inside_of_other_objects() -> None:
    misses: Any = Steps("train", (), (StepCounts(events=(MISS,)), StepCounts())).misses_per_step
    for again in (copy.deepcopy({"misses": misses}), pickle.loads(pickle.dumps({"misses": misses}))):
        assert repr(again) == "{'misses': 0.5}"
        assert again["misses"].details == misses.details


def test_what_is_listed_is_indented_and_the_rest_is_counted() -> None:
    assert repeated([]) == listed([]) == []
    assert listed(range(MOST_LISTED))[-1] == f"    {MOST_LISTED - 1}"
    assert listed(range(MOST_LISTED + 2))[MOST_LISTED:] == ["    and 2 more"]
