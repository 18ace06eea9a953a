"""What the Trace Event Format asks of a file, held against one.

Written from the format's document, sections "JSON Object Format", "Event Descriptions", "Complete Events" and
"Metadata Events": https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

KINDS = {*"BEXiICnbesStfPNODMVvRc", "(", ")"}  # the one-letter phases of the format, old ones too
TIME_UNITS = {"ms", "ns"}
OF_ALL = {"name", "cat", "ph", "ts", "tts", "pid", "tid", "args", "cname", "id"}
OF_COMPLETE = {"dur", "tdur", "sf", "esf", "stack", "estack"}
METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
Event = dict[str, Any]


def read_trace(text: str) -> list[Event]:
    """Read a trace, and assert that it is one; return its complete events."""
    trace = json.loads(text, parse_constant=lambda name: f"{name} is no JSON")
    assert isinstance(trace, dict)
    assert trace["displayTimeUnit"] in TIME_UNITS
    assert isinstance(trace.get("otherData", {}), dict)
    events = trace["traceEvents"]
    assert isinstance(events, list)
    assert not [wrong for event in events for wrong in wrong_in(event)]
    complete = [event for event in events if event["ph"] == "X"]
    assert not list(not_nested(complete))
    return complete


def wrong_in(event: Event) -> Iterator[str]:
    """Say what the format does not allow in an event."""
    kind = event.get("ph")
    if kind not in KINDS:
        yield f"{kind!r} is no kind of events"
    if not isinstance(event.get("name"), str) or not isinstance(event.get("cat", ""), str):
        yield "name and categories are texts"
    if not isinstance(event.get("args", {}), dict):
        yield "arguments are an object"
    if any(type(event.get(name)) is not int for name in ("pid", "tid")):
        yield "process and thread are integers"
    unknown = {*event} - OF_ALL - (OF_COMPLETE if kind == "X" else set())
    if unknown:
        yield f"no fields of the format: {unknown}"
    if kind == "M":
        argument, of = METADATA.get(str(event["name"]), ("", object))
        if not isinstance(event.get("args", {}).get(argument), of):
            yield f"{event['name']} needs {argument}"
    elif not is_time(event.get("ts")) or (kind == "X" and not is_time(event.get("dur"))):
        yield "times are microseconds"


def is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def not_nested(events: list[Event]) -> Iterator[str]:
    """Name spans that begin in another one of their thread and end after it."""
    by_thread = defaultdict(list)
    for event in events:
        by_thread[event["pid"], event["tid"]].append(event)
    for of_thread in by_thread.values():
        around: list[Event] = []
        for event in sorted(of_thread, key=lambda event: (begin_ns(event), -end_ns(event))):
            while around and end_ns(around[-1]) <= begin_ns(event):
                around.pop()
            if around and end_ns(event) > end_ns(around[-1]):
                yield f"{event['name']} ends after {around[-1]['name']}"
            around.append(event)


def begin_ns(event: Event) -> int:
    return round(float(event["ts"]) * 1000)


def end_ns(event: Event) -> int:
    return begin_ns(event) + round(float(event["dur"]) * 1000)
