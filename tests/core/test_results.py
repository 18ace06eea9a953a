"""Results of one test, numbers of calls, and names of its numbers in files."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.compiled.model import CompileCounts, CompiledFunction
from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Contains, Figures, Samples, State
from pytest_dtdispatch.core.results import (
    Count,
    Finding,
    MetricValue,
    plain_name,
    repeated,
    row_key,
    row_metrics,
)
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.core.store import ResultStore, TestRecord
from pytest_dtdispatch.core.text import MAX_LISTED, listed
from pytest_dtdispatch.plugin.kinds import KINDS, metric_names
from pytest_dtdispatch.steps.events import Collective, Miss, QueriedCache, Redistribution
from pytest_dtdispatch.steps.model import StepCounts, Steps
from tests.reported_runs import measured

ADD = Signature("add.Tensor", ("f32[8]S0",), (2, 4), "cuda")
LONG = Signature("cat.default", (tuple(f"f32[{size}]S0" for size in range(40)),), (4,), "cpu")
SHARED = ("measured", "scaling", "compiled", "compared", "one of a plugin")
FIGURES = Figures(5, (Samples(State.HIT, (7,)),))
MISS = Miss("mm.default(f32[8,8]S0, f32[8,8]R)@4", "first call of this op", QueriedCache.NATIVE)
MOVED = Redistribution("mm.default", "f32[8,8]", ("S0",), ("R",), 256)
EXPLICIT = replace(MOVED, op="redistribute")


def counts(state: State, *values: int) -> Samples:
    return Samples(state, values, unit=INSTRUCTIONS)


def compiled(counts: CompileCounts, *samples: Samples) -> CompiledFunction:
    return CompiledFunction("f", "inductor", counts, measured("f", *samples, contains=Contains.COMPILED))


def results_of(found: Iterable[Finding]) -> ResultStore:
    results = ResultStore("t.py::test_a")
    for one in found:
        results.add(one)
    return results


def called(name: str, *samples: Samples) -> TestRecord:
    results = ResultStore("t.py::test_a")
    results.enter_call(name, "4", Figures(5, samples))
    return results.freeze()


def numbers_of(record: TestRecord) -> list[MetricValue]:
    return [*row_metrics(record.test, record.rows()), *record.numbers()]


# Signatures and named calls


def test_named_calls_follow_signatures_in_call_order() -> None:
    book = ResultStore()
    for call in (LONG, "warm start", ADD, LONG, "warm start", ADD, ADD):
        if isinstance(call, str):
            book.enter_call(call, "2x4", FIGURES)
        elif not book.count(call):
            book.enter(call, FIGURES)
    found = [(one.label, one.full_label, one.mesh, one.calls, one.contains) for one in book.measurements()]
    assert found == [
        (str(LONG), LONG.full, "4", 2, Contains.DISPATCH),
        ("add.Tensor(f32[8]S0)@2x4:cuda",) * 2 + ("2x4:cuda", 3, Contains.DISPATCH),
        ("warm start", "warm start", "2x4", 1, Contains.END_TO_END),
    ]
    numbers = numbers_of(book.freeze())
    assert [number.row.label for number in numbers] == [label for label, *_ in found]
    assert [number.signature for number in numbers] == [LONG.full, "", ""], "completely if it is shortened"


def test_names_of_steps_and_budgets_are_separate() -> None:
    book = results_of([Steps("steps", (), ()), Budget("budget"), compiled(CompileCounts())])
    book.enter_call("call", "4", FIGURES)
    assert [one.label for one in book.measurements()] == ["call", "f"]
    names = {kind: book.names_beside(kind) for kind in ("steps", "budget", *SHARED)}
    assert names == {"steps": {"steps"}, "budget": {"budget"}, **{kind: {"call", "f"} for kind in SHARED}}


# Numbers

TIMED = (Samples(State.MISS, (10, 30, 20)), Samples(State.HIT, (1, 2)), Samples(State.LOCAL, (1,)))
CPU_HITS = Samples(State.HIT, (9, 5, 7), cpu=(4, 5, 3))  # the figure is CPU time
BUSY = StepCounts(
    events=(MISS, MOVED, EXPLICIT, MOVED, *map(Collective, ("all_gather", "all_gather", "a2a")))
)
STEPS = Steps("train", (StepCounts(events=(MISS,) * 9),), (StepCounts(hits=3), BUSY, StepCounts()))
BROKEN = CompileCounts(3, ("t.py:1: print",) * 2, None, ("f (t.py:1): size",))
COMPILES = counts(State.COMPILE_COLD, 90_000), counts(State.CALL, 700, 600)


@pytest.mark.parametrize(
    ("record", "numbers"),
    [
        (called("mm", *TIMED), {"dispatch_hit_ns": 1, "dispatch_miss_ns": 10}),
        (called("add", Samples(State.CALL, (7,)), Samples(State.LOCAL, (3,))), {"call_ns": 7}),
        (called("mm", Samples(State.MISS, ()), Samples(State.HIT, ())), {}),
        (
            called("mm", counts(State.MISS, 9_000, 7_000), counts(State.HIT, 60, 50)),
            {"instruction_count": 50, "instruction_count_miss": 7_000},
        ),
        (called("same", counts(State.CALL, 31, 30)), {"instruction_count": 30}),
        (
            called("mm", Samples(State.MISS, (30, 20, 60)), CPU_HITS),
            {"dispatch_hit_ns": 3, "dispatch_miss_ns": 20},
        ),
    ],
)
def test_named_call_has_the_numbers_of_its_samples(record: TestRecord, numbers: dict[str, int]) -> None:
    [row] = record.rows()
    values = numbers_of(record)
    assert {value.metric: value.value for value in values} == numbers
    assert {value.row for value in values} <= {RowId("t.py::test_a", row.label)}


@pytest.mark.parametrize(
    ("found", "numbers"),
    [
        (
            compiled(CompileCounts(1, (), 22, ()), *COMPILES),  # the first call minus a later one
            {
                "instruction_count": 600,
                "compile_time_instruction_count": 89_400,
                "graphs": 1,
                "graph_breaks": 0,
                "recompiles": 0,
            },
        ),
        (compiled(CompileCounts(), COMPILES[0]), {}),
        (compiled(BROKEN), {"graphs": 3, "graph_breaks": 2, "recompiles": 1}),
        # Of the step with the maximum.
        (
            STEPS,
            {
                "misses_per_step": 1,
                "redistributes": 3,
                "implicit": 2,
                "collectives": 3,
                "collective_bytes": 0,
                "reads": 0,
                "partial_reads": 0,
                "dtensor_growth": 0,
                "calls": 3,
            },
        ),
        (  # one step from empty caches has no growth
            Steps("step", (), (StepCounts(unpropagated=2, dtensor_growth=5),)),
            dict.fromkeys(
                ("misses_per_step", "redistributes", "implicit", "collectives", "collective_bytes"), 0
            )
            | {"reads": 0, "partial_reads": 0, "calls": 2},
        ),
        (Steps("step", (), ()), {}),
    ],
)
def test_each_kind_of_result_has_its_numbers(found: Finding, numbers: dict[str, int]) -> None:
    values = numbers_of(results_of([found]).freeze(KINDS))
    assert {value.metric: value.value for value in values} == numbers
    assert {value.row for value in values} <= {RowId("t.py::test_a", found.name)}


def test_every_metric_has_one_name() -> None:
    metrics = list(metric_names())
    assert len(set(metrics)) == len(metrics) == 26


# Names


@given(st.text(max_size=30) | st.sampled_from([" a  b ", "a\r\n b", "a\x00b", "a\u2028b", "a \udc80b"]))
def test_names_and_keys_are_single_printable_lines(name: str) -> None:
    key = row_key(name)
    assert row_key(key) == key == key.strip()
    assert key == name or not name.isprintable() or name != name.strip()
    assert plain_name(name).split(" ") == (plain_name(name).split() or [""])
    for text in (key, plain_name(name)):
        assert text.isprintable()
        text.encode()


def test_distinct_long_names_have_distinct_keys() -> None:
    names = ("a b", "a  b", "a\nb", "a\tb", "a\u00a0b", "a\x1bb")
    assert len({row_key(name) for name in names}) == len(names)


# Counts


@pytest.mark.parametrize(("total", "steps", "text"), [(1, 3, "0.333333"), (7, 0, "0"), (10, 5, "2")])
def test_copied_count_preserves_its_details(total: int, steps: int, text: str) -> None:
    count = Count(total, steps, ["mm missed", "add missed"])
    pickled = [pickle.loads(pickle.dumps(count, each)) for each in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in (copy.copy(count), copy.deepcopy(count), *pickled):
        assert type(again) is Count
        assert (float(again), str(again), again.details) == (float(count), text, ("mm missed", "add missed"))


def test_listed_items_are_indented_and_limited() -> None:
    assert repeated([]) == listed([]) == []
    assert listed(range(MAX_LISTED))[-1] == f"    {MAX_LISTED - 1}"
    assert listed(range(MAX_LISTED + 2))[MAX_LISTED:] == ["    and 2 more"]
