"""Spans as a file in the Trace Event Format, which Perfetto and Chrome's ``about:tracing`` open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_dtdispatch.core.forms import TRACE_FORMAT
from pytest_dtdispatch.core.spans import TraceSpan, label

METADATA, COMPLETE = "M", "X"  # phases of events, as the format calls its kinds of them
HEAD = {"displayTimeUnit": "ns", "otherData": {"format": TRACE_FORMAT}}
MAIN = "thread of the steps"


def chrome_trace(tests: Mapping[str, Sequence[TraceSpan]]) -> str:
    r"""Write spans as JSON, each test as a process of its own, an event a line.

    A viewer draws spans of one thread by their nesting: a step holds its phases, those hold modules, and
    modules what DTensor did in them. Times are microseconds since the earliest span.

    Args:
        tests: spans by the name of the test, or of whatever else made them.

    Example:
        >>> print(chrome_trace({"train.py": []}))
        {"displayTimeUnit": "ns", "otherData": {"format": "pytest-dtdispatch trace"}, "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "train.py"}}
        ]}
        <BLANKLINE>
    """
    start_ns = min((span.when.begin_ns for spans in tests.values() for span in spans), default=0)
    events = (
        event
        for process, (test, spans) in enumerate(tests.items(), 1)
        for event in _events(process, test, spans, start_ns)
    )
    lines = ",\n".join(map(json.dumps, events))
    return f'{json.dumps(HEAD)[:-1]}, "traceEvents": [\n{lines}\n]}}\n'


def _events(
    process: int, test: str, spans: Sequence[TraceSpan], start_ns: int
) -> Iterator[Mapping[str, Any]]:
    threads = _numbered(spans)
    yield _named(process, 1, "process_name", test)
    for number in threads.values():
        yield _named(process, number, "thread_name", MAIN if number == 1 else f"thread {number}")
    # Of spans that begin at once, the one that holds the other comes first.
    for span in sorted(spans, key=lambda span: (span.when.begin_ns, -span.when.end_ns)):
        yield {
            "ph": COMPLETE,
            "name": label(span.kind, span.name),
            "cat": span.kind,
            "pid": process,
            "tid": threads[span.when.thread],
            "ts": (span.when.begin_ns - start_ns) / 1000,
            "dur": (span.when.end_ns - span.when.begin_ns) / 1000,
            "args": dict(span.arguments),
        }


def _numbered(spans: Sequence[TraceSpan]) -> dict[int, int]:
    """Number threads from 1, those that ran steps first."""
    steps = (span.when.thread for span in spans if span.kind == "step")
    threads = dict.fromkeys((*steps, *(span.when.thread for span in spans)))
    return {thread: number for number, thread in enumerate(threads, 1)}


def _named(process: int, thread: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": METADATA, "name": what, "pid": process, "tid": thread, "args": {"name": name}}
