"""Values of flags, ini files and markers: each is read as what it says, or refused in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.core import parsing
from pytest_dtdispatch.core.text import MOST_SHOWN, shown
from pytest_dtdispatch.core.verdicts import THRESHOLD_FIELDS, THRESHOLD_STATES, Threshold
from pytest_dtdispatch.plugin.settings import SETTINGS
from tests.fuzz.inputs import assert_one_line, fuzzed, odd_texts, odd_values, spoiled


def is_whole(value: object, least: int, most: float = math.inf) -> bool:
    return type(value) is int and least <= value <= most


def is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def is_threshold(limit: Threshold) -> bool:
    is_known = limit.state in ("", *THRESHOLD_STATES) and limit.field in THRESHOLD_FIELDS
    return is_known and 0 < limit.fraction <= 100


# Of each kind a good text, what else its reader is given, and what may come out, whatever goes in.
KINDS: dict[str, tuple[str, tuple[Any, ...], Callable[[Any], bool]]] = {
    "count": ("20", (), lambda read: is_whole(read, 1)),
    "choice": ("fake", (("fake", "gloo"),), lambda read: read in ("fake", "gloo")),
    "exports": (
        "csv:a",
        (("csv", "html"),),
        lambda read: set() < {each.format for each in read} <= {"csv", "html"},
    ),
    "files": ("out.csv", (), lambda read: bool(read) and all(isinstance(file, Path) for file in read)),
    "globs": ("add*", (), lambda read: isinstance(read, tuple) and all(map(is_name, read))),
    "mesh": ("2x4", (), lambda read: bool(read) and all(is_whole(extent, 1) for extent in read)),
    "limits": ("wraps=0", (("wraps",),), lambda read: {*read} <= {"wraps"} and is_whole(read["wraps"], 0)),
    "names": ("dp", (), lambda read: len(set(read)) == len(read) and all(map(is_name, read))),
    "ranks": ("2", (), lambda read: is_whole(read, 1, 1024)),
    "rounds": ("auto", (), lambda read: read == "auto" or is_whole(read, 1)),
    "seconds": ("1.5", (), lambda read: type(read) is float and 0 < read <= 1e9),
    "switch": ("true", (), lambda read: type(read) is bool),
    "thresholds": ("hit=median:7.5%", (), lambda read: bool(read) and all(map(is_threshold, read))),
}


def show_progress(kind: str, value: Any) -> Any:
    """Read a value, or return None where it is refused in words that can be shown."""
    try:
        return getattr(parsing, f"read_{kind}")(value, *KINDS[kind][1])
    except ValueError as error:
        assert_one_line(error)
        assert shown(value).isprintable()
        assert len(shown(value)) <= MOST_SHOWN
        return None


def test_every_kind_of_value_is_tried() -> None:
    readers = {setting.reader for setting in SETTINGS.values()} - {"metric"}
    assert set(KINDS) == readers


@pytest.mark.parametrize("kind", KINDS)
@fuzzed
@given(data=some.data())
def test_a_value(kind: str, data: some.DataObject) -> None:
    good, _, means_something = KINDS[kind]
    value = data.draw(some.one_of(odd_texts, spoiled(good), odd_values))
    read = show_progress(kind, value)
    assert read is None or means_something(read)
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{0,2}", value):  # what is plainly a number is one
        if kind in ("count", "ranks", "rounds", "seconds"):
            assert read == float(value)
        elif kind == "thresholds":
            assert read is None
    if kind == "thresholds" and isinstance(value, str) and read is not None:
        [limit] = read
        assert limit.fraction == pytest.approx(float(re.split("[:=]", value)[-1].rstrip("%")) / 100)
    if read is not None and kind in ("count", "ranks"):
        assert int(value) == read  # nothing is cut off
