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

GOOD = {
    "choice": "fake", "count": "20", "exports": "csv:out.csv", "files": "out.csv",
    "globs": "add*", "limits": "misses=0", "mesh": "2x4", "names": "dp", "ranks": "2", "rounds": "auto",
    "seconds": "1.5", "switch": "true", "thresholds": "hit=median:7.5%", "word": "inductor",
}  # fmt: skip
VALID = {"choice": (("fake", "gloo"),), "exports": (("csv", "html"),), "limits": (("misses", "wraps"),)}


def is_whole(value: object, least: int, most: float = math.inf) -> bool:
    return type(value) is int and least <= value <= most


def is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def is_threshold(limit: Threshold) -> bool:
    is_known = limit.state in ("", *THRESHOLD_STATES) and limit.field in THRESHOLD_FIELDS
    return is_known and 0 < limit.fraction <= 100


# What may come out, whatever goes in.
MEANS_SOMETHING: dict[str, Callable[[Any], bool]] = {
    "count": lambda read: is_whole(read, 1),
    "choice": lambda read: read in ("fake", "gloo"),
    "exports": lambda read: bool(read) and all(each.format in ("csv", "html") for each in read),
    "files": lambda read: bool(read) and all(isinstance(file, Path) for file in read),
    "globs": lambda read: isinstance(read, tuple) and all(map(is_name, read)),
    "mesh": lambda read: bool(read) and all(is_whole(extent, 1) for extent in read),
    "limits": lambda read: (
        {*read} <= {"misses", "wraps"} and all(is_whole(most, 0) for most in read.values())
    ),
    "names": lambda read: len(set(read)) == len(read) and all(map(is_name, read)),
    "ranks": lambda read: is_whole(read, 1, 1024),
    "rounds": lambda read: read == "auto" or is_whole(read, 1),
    "seconds": lambda read: type(read) is float and 0 < read <= 1e9,
    "switch": lambda read: type(read) is bool,
    "thresholds": lambda read: bool(read) and all(map(is_threshold, read)),
    "word": is_text,
}


def tell(kind: str, value: Any) -> Any:
    """Read a value, or return None where it is refused in words that can be shown."""
    try:
        return getattr(parsing, f"read_{kind}")(value, *VALID.get(kind, ()))
    except ValueError as error:
        assert_one_line(error)
        assert shown(value).isprintable()
        assert len(shown(value)) <= MOST_SHOWN
        return None


def test_every_kind_of_value_is_tried() -> None:
    readers = {setting.reader for setting in SETTINGS.values()} - {"metric"}
    assert set(GOOD) == readers == set(MEANS_SOMETHING)


@pytest.mark.parametrize("kind", GOOD)
@fuzzed
@given(data=some.data())
def test_a_text_of_a_flag_or_an_ini_file(kind: str, data: some.DataObject) -> None:
    text = data.draw(some.one_of(odd_texts, spoiled(GOOD[kind])))
    read = tell(kind, text)
    assert read is None or MEANS_SOMETHING[kind](read)
    if re.fullmatch(r"[1-9][0-9]{0,2}", text):  # what is plainly a number is one
        if kind in ("count", "ranks", "rounds", "seconds"):
            assert read == float(text)
        elif kind == "thresholds":
            assert read is None
    if kind == "thresholds" and read is not None:
        [limit] = read
        assert limit.fraction == pytest.approx(float(re.split("[:=]", text)[-1].rstrip("%")) / 100)


@pytest.mark.parametrize("kind", GOOD)
@fuzzed
@given(value=odd_values)
def test_a_value_of_a_marker(kind: str, value: Any) -> None:
    read = tell(kind, value)
    assert read is None or MEANS_SOMETHING[kind](read)
    if read is not None and kind in ("count", "ranks"):
        assert int(value) == read  # nothing is cut off
