"""Parsing of values from flags, ini files and markers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.parsing import (
    DECIMAL,
    THRESHOLD,
    Export,
    read_choice,
    read_count,
    read_exports,
    read_files,
    read_globs,
    read_limit,
    read_limits,
    read_mesh,
    read_names,
    read_packages,
    read_ranks,
    read_rounds,
    read_seconds,
    read_sizes,
    read_switch,
    read_thresholds,
)
from pytest_dtdispatch.core.signatures import mesh_text
from pytest_dtdispatch.core.text import MAX_SHOWN, shown
from pytest_dtdispatch.core.verdicts import THRESHOLD_STATES, Threshold, thresholds_of
from pytest_dtdispatch.plugin.settings import SETTINGS
from tests.fuzz.inputs import assert_one_line, fuzzed, odd_texts, odd_values, spoiled

INFINITY, NAN = float("inf"), float("nan")


COUNT = "a whole number of at least 1"
MESH = "a mesh shape: extents of at least 1 joined by x, such as 4 or 2x4"
SECONDS = "a number of seconds above 0, and at most 1,000,000,000"


def refusal(read: Callable[[Any], Any], value: Any) -> str:
    try:
        read(value)
    except ValueError as error:
        return str(error)
    return ""


def read_backend(value: Any) -> str:
    return read_choice(value, ("auto", "fake"))


def read_two_limits(value: Any) -> dict[str, int]:
    return read_limits(value, ("misses", "wraps"))


def read_formats(value: Any) -> tuple[Export, ...]:
    return read_exports(value, ("csv", "html", "markdown"))


# By reader: valid inputs with their parsed values.
READ: dict[Callable[[Any], Any], tuple[tuple[Any, Any], ...]] = {
    read_count: (("20", 20), (" 7 ", 7), (1000, 1000), (numpy.int64(2), 2)),
    read_ranks: (("1", 1), ("1024", 1024)),
    read_rounds: (("auto", "auto"), ("20", 20), (7, 7)),
    read_seconds: (("1", 1.0), ("0.2", 0.2), ("1e-3", 1e-3), (2, 2.0)),
    read_limit: ((1, 1.0), (1e-3, 1e-3)),
    read_sizes: (((4, 16, 8), (4, 8, 16)), ({8, 4}, (4, 8)), (iter([16, 8]), (8, 16)), (range(4, 6), (4, 5))),
    read_switch: (
        *((word, True) for word in ("1", "true", "yes", "on", "TRUE", "On", True)),
        *((word, False) for word in ("0", "false", "no", "off", "False", "OFF", False)),
    ),
    read_mesh: (("4", (4,)), ("8x2x4", (8, 2, 4)), (4, (4,)), ([2, 4], (2, 4)), (("2",), (2,))),
    read_names: ((["dp", "tp"], ("dp", "tp")),),
    read_globs: (("add*", ("add*",)), (["add*", "mm"], ("add*", "mm")), ((), ())),
    read_packages: (("spmd", ("spmd",)), (["a.b", "c"], ("a.b", "c"))),
    read_files: (("out.csv", (Path("out.csv"),)),),
    read_backend: (("fake", "fake"),),
    read_formats: (
        ("csv:a:b.csv", (Export("csv", Path("a:b.csv")),)),
        ([" html:s.html", "csv:c"], (Export("html", Path("s.html")), Export("csv", Path("c")))),
    ),
    read_two_limits: (
        ("misses=0, wraps=2", {"misses": 0, "wraps": 2}),
        (["misses=0", "wraps=2"], {"misses": 0, "wraps": 2}),
        ({"wraps": 3}, {"wraps": 3}),
        ({}, {}),
    ),
    read_thresholds: (
        ("10%", (Threshold("", "min", 0.1),)),
        (["min:0.5%"], (Threshold("", "min", 0.005),)),
        ("median:10%", (Threshold("", "median", 0.1),)),
        ("hit=7.5%,strict", (Threshold("hit", "min", 0.075, is_strict=True),)),
        ("miss=median:400%", (Threshold("miss", "median", 4.0),)),
    ),
}


class Rounded:
    def __int__(self) -> int:
        return 2


DIGITS = ("1_0", "\uff13", "\u0663")  # accepted by int()
NO_NUMBERS = (0, -1, INFINITY, NAN, True, None, [1])
NO_COUNTS = ("0", "-1", "x", "", "1.5", "1e3", "inf", *DIGITS, 2.0, *NO_NUMBERS, Rounded(), b"2")
OF_OTHERS = (numpy.float32(2.7), numpy.float64(2), Decimal("2.7"))
NO_SECONDS = ("0", -0.5, (1,), "-1", "x", "", "nan", "inf", "1e400", "1s", *DIGITS, *NO_NUMBERS, 10**400)
NO_SIZES = ((), (8,), (8, 8), (8, 0), (8, -1), (8, 16.0), (8, "16"), (8, True), (8, None), 8, None, "8,16")
NO_MESH_TEXTS = ("2x", "x4", "0x4", "2xx4", "-1", "2X4", "2,4", "", "x")
NO_MESHES: tuple[Any, ...] = (0, (), [], (2, 0), (2, None), ((2, 4),), 2.0, True, None, (INFINITY,), {2: 4})
NO_CHOICES = ("", "Fake", None, 1, ["fake"], ("auto", "fake"), numpy.array([1, 2]))
THRESHOLDS = (
    "a list of thresholds such as 10% or hit=20%,strict: [STATE=][FIELD:]PERCENT, "
    "above 0% and at most 10000%, each for a different figure; "
    "states: miss, hit, cold, call, compile-cold, compile-warm, eager; fields: min, median"
)
FORMATS = "FORMAT:FILE, with a format of csv, html, markdown"
LIMITS = (
    "a list of limits such as misses=0,collectives=4: "
    "whole numbers from 0 to 2**63-1 by name, each once, of misses, wraps"
)
NO_LIMIT_TEXTS = ("", "misses", "mises=0", "misses=-1", "misses=1=2", "misses=0,misses=1", "misses=0,")
NO_LIMITS = (["misses=1", "wraps=-1"], ["x"], {"misses": -1}, {"misses": True}, {5: 1}, {"mises": 0})
NO_THRESHOLDS = ("hit=stddev:5%", "hit=:5%", "warm=median:5%", "local=median:5%", "5", "median:20")
NO_FIELDS = ("mean:5%", "hit=q1:5%", "q3:5%,strict")
NO_PERCENTS = ("-5%", "0%", "nan%", "inf%", "3_0%", "\uff13\uff10%", "\u0663\u0660%")
NO_PERCENT_TEXTS = ("", "abc", "5%,lax", "strict", "median", "20000")
# Readers with their error and the values that cause it.
REFUSED: tuple[tuple[Callable[[Any], Any], str, tuple[Any, ...]], ...] = (
    (read_count, COUNT, (*NO_COUNTS, *OF_OTHERS)),
    (read_ranks, "a whole number from 1 to 1,024", ("0", "x", "1025", "9" * 5000)),
    (read_rounds, f"{COUNT}, or auto", ("AUTO", " auto", "0", "", 0, 1.5, True, None, ["auto"])),
    (read_seconds, SECONDS, (*NO_SECONDS, "1e300", "1000000001", 1e10)),
    (read_limit, "a number above 0", (0, -0.5, "1.3", "x", NAN, INFINITY, True, None, (1,), 10**400)),
    (read_sizes, "two or more whole numbers of at least 1 that differ", NO_SIZES),
    (read_switch, "true or false", ("", "maybe", "2", 1, 0, None, ["true"])),
    (read_mesh, MESH, (*NO_MESH_TEXTS, *NO_MESHES)),
    (
        read_names,
        'a tuple of names that differ, such as ("dp", "tp")',
        ("dp", ("dp", ""), ("dp", 1), None, 3, {"dp"}, ("dp", "dp")),
    ),
    (read_packages, "names of packages, such as spmd_types", ("", "a-b", "a..b", ["a", ""], 3)),
    (read_globs, 'globs of op names, such as "add*"', ("", [""], ("add*", 1), None, 3)),
    (read_backend, "one of auto, fake", NO_CHOICES),
    (read_files, "the path of a file", ("a\0b.csv", "", " ", 3, (), None)),
    (read_formats, FORMATS, ("out.csv", "", ("csv:a", 3), (), None, "CSV:a", "csv:", ["csv:a", "csv: "])),
    (read_two_limits, LIMITS, (*NO_LIMIT_TEXTS, *NO_LIMITS, [], 5, None)),
    (read_thresholds, THRESHOLDS, (0.1, [], [5], None, ["5%", "min:7%"], *NO_THRESHOLDS, *NO_FIELDS)),
    *(
        (read_thresholds, THRESHOLDS, (part, f"median:{part}", ["10%", part]))
        for part in (*NO_PERCENTS, *NO_PERCENT_TEXTS)
    ),
)


@pytest.mark.parametrize("read", READ)
def test_each_reader_parses_its_valid_values(read: Callable[[Any], Any]) -> None:
    for value, expected in READ[read]:
        parsed = read(value)
        assert (parsed, type(parsed)) == (expected, type(expected)), value


@pytest.mark.parametrize("dim", ["tp", "dp_cp", "0"])
def test_limit_of_any_mesh_dimension_is_read(dim: str) -> None:
    names = ("collectives", "collectives[DIM]")
    assert read_limits(f"collectives=8, collectives[{dim}]=4", names) == {
        "collectives": 8,
        f"collectives[{dim}]": 4,
    }
    for value in (f"misses[{dim}]=4", "collectives[]=4", f"collectives[{dim}=4", f"[{dim}]=4"):
        assert "collectives[DIM]" in refusal(lambda each: read_limits(each, names), value)
    assert refusal(lambda each: read_limits(each, names[:1]), f"collectives[{dim}]=4")


@pytest.mark.parametrize(
    ("read", "message", "values"), REFUSED, ids=lambda part: getattr(part, "__name__", "")
)
def test_invalid_value_is_refused_with_valid_ones(
    read: Callable[[Any], Any], message: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        assert refusal(read, value).partition("; did you mean")[0] == message, value


def test_every_reader_of_a_setting_is_tried() -> None:
    readers = {f"read_{setting.reader}" for setting in SETTINGS.values()} - {"read_metric"}
    tried = {read.__name__ for read in READ} | {"read_choice", "read_exports", "read_limits"}
    assert readers <= tried


@pytest.mark.parametrize("read", READ)
@fuzzed
@given(data=st.data())
def test_arbitrary_value_is_parsed_or_refused(read: Callable[[Any], Any], data: st.DataObject) -> None:
    good = [value for value, _ in READ[read] if isinstance(value, str)] or ["1"]
    value = data.draw(st.one_of(odd_texts, spoiled(good[-1]), odd_values))
    try:
        parsed = read(value)
    except ValueError as error:
        assert_one_line(error)
        assert shown(value).isprintable()
        assert len(shown(value)) <= MAX_SHOWN
        return
    assert type(parsed) in {type(expected) for _, expected in READ[read]}
    if read not in (read_files, read_formats, read_thresholds):
        assert read(parsed) == parsed, "parsed values are valid inputs"
    if read is read_thresholds and isinstance(value, str):
        [limit] = parsed
        assert limit.fraction == pytest.approx(float(re.split("[:=]", value)[-1].rstrip("%")) / 100)
    if read in (read_count, read_ranks):
        assert int(value) == parsed, "values are not truncated"


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=6))
def test_mesh_text_round_trips(extents: list[int]) -> None:
    shape = tuple(extents)
    assert read_mesh(mesh_text(shape)) == read_mesh(shape) == read_mesh(extents) == shape


def test_only_the_control_state_has_no_threshold() -> None:
    assert {*THRESHOLD_STATES, "local"} == set(map(str, State))


def test_state_threshold_overrides_the_general_one() -> None:
    of_hits, of_all, median = read_thresholds(["hit=5%", "10%", "median:20%"])
    assert {*thresholds_of("hit", (of_hits, of_all, median))} == {of_hits, median}
    assert {*thresholds_of("miss", (of_hits, of_all, median))} == {of_all, median}
    assert thresholds_of("miss", read_thresholds("hit=5%")) == ()


def test_auto_is_special_only_for_markdown() -> None:
    assert [export.is_auto for export in read_formats(["markdown:auto", "csv:auto"])] == [True, False]


def shortest_s(match: Callable[[str], object], text: str) -> float:
    """Return the minimum CPU time of five matches, in seconds."""
    times = []
    for _ in range(5):
        began = time.thread_time()
        match(text)
        times.append(time.thread_time() - began)
    return min(times)


@pytest.mark.parametrize("pattern", [DECIMAL, THRESHOLD], ids=["decimal", "threshold"])
@pytest.mark.parametrize("end", ["", "x", ".", "e", "%x"])
def test_long_number_is_parsed_in_linear_time(pattern: re.Pattern[str], end: str) -> None:
    short, long = (shortest_s(pattern.fullmatch, "1" * length + end) for length in (1_000, 16_000))
    assert long < 100 * short  # factor 16 if linear, 256 if quadratic
