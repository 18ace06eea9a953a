"""What torch's profiler recorded of the steps of a run, as one file that Perfetto and Chrome open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pytest_dtdispatch.core.forms import TRACE_FORMAT

COMPLETE = "X"  # the phase of an event that has a beginning and an end, as the format calls it


def joined_trace(traces: Sequence[str]) -> str:
    """Join traces of one process: their times are of one clock.

    Args:
        traces: each as torch writes it, in the Trace Event Format.
    """
    first, *others = (json.loads(trace) for trace in traces)
    events = [event for one in (first, *others) for event in one["traceEvents"]]
    whole = {"otherData": {"format": TRACE_FORMAT}, **first, "traceEvents": events}
    return json.dumps(whole) + "\n"


def event_count(traces: Sequence[str]) -> int:
    """Count what took a time: ops, and what happened in steps."""
    every: list[Any] = [event for trace in traces for event in json.loads(trace)["traceEvents"]]
    return sum(event.get("ph") == COMPLETE for event in every)
