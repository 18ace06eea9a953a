"""Spans as a file that trace viewers open."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from pytest_dtdispatch.core.forms import TRACE, form_of
from pytest_dtdispatch.core.spans import Interval, TraceSpan
from pytest_dtdispatch.report.chrome_trace import chrome_trace
from tests.trace_format import Event, not_nested, read_trace, wrong_in

STEP = TraceSpan("step", "1", Interval(77, 5_000_000, 5_900_000), {"misses": 1})
MISS = TraceSpan("miss", "mm", Interval(77, 5_100_000, 5_100_001), {"at": "train.py:3"})


def traced(*spans: TraceSpan, test: str = "t.py::test") -> str:
    return chrome_trace({test: spans})


def test_a_span_is_a_complete_event_in_microseconds_since_the_first() -> None:
    text = traced(MISS, STEP)
    assert form_of(text) == TRACE
    step, miss = read_trace(text)
    assert step == {
        "ph": "X",
        "name": "step 1",
        "cat": "step",
        "pid": 1,
        "tid": 1,
        "ts": 0,
        "dur": 900,
        "args": {"misses": 1},
    }
    assert (miss["name"], miss["ts"], miss["dur"]) == ("miss mm", 100, 0.001)


def names(text: str, what: str) -> dict[tuple[int, int], str]:
    events = json.loads(text)["traceEvents"]
    return {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == what}


def test_tests_are_processes_and_threads_are_numbered_from_that_of_the_steps() -> None:
    elsewhere = TraceSpan("miss", "mm", Interval(12, 5_000_000, 5_000_100))
    text = chrome_trace({"a": [elsewhere, STEP], "b": [STEP]})
    assert names(text, "process_name") == {(1, 1): "a", (2, 1): "b"}
    assert names(text, "thread_name") == {
        (1, 1): "thread of the steps",
        (1, 2): "thread 2",
        (2, 1): "thread of the steps",
    }
    assert {(one["cat"], one["pid"], one["tid"]) for one in read_trace(text)} == {
        *(("step", 1, 1), ("miss", 1, 2), ("step", 2, 1)),
    }


@pytest.mark.parametrize("name", ['"quoted\\', "line\nend", "\x1b[31m", "\u202egnp", "\ud800", "</a>", ""])
def test_any_name_makes_a_valid_file(name: str) -> None:
    [event] = read_trace(traced(TraceSpan("module", name, STEP.when, {"at": name}), test=name))
    assert event["name"] == f"module {name}"
    assert event["args"] == {"at": name}


@pytest.mark.parametrize("tests", [{}, {"t": []}])
def test_no_spans_are_a_valid_file_too(tests: dict[str, Sequence[TraceSpan]]) -> None:
    assert read_trace(chrome_trace(tests)) == []


def test_what_the_format_does_not_allow_is_seen() -> None:
    [event] = read_trace(traced(MISS))
    wrongs: list[Event]
    wrongs = [{"ph": "Y"}, {"ts": "1"}, {"dur": -1}, {"pid": "1"}, {"args": []}, {"file": "train.py"}]
    for wrong in wrongs:
        assert list(wrong_in({**event, **wrong})), wrong
    assert list(not_nested([{**event, "ts": 0, "dur": 2}, {**event, "ts": 1, "dur": 2}]))
