"""Values as flags, ini files and markers write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.parsing import (
    Export,
    read_choice,
    read_count,
    read_exports,
    read_file,
    read_globs,
    read_limit,
    read_mesh,
    read_names,
    read_ranks,
    read_rounds,
    read_seconds,
    read_sizes,
    read_switch,
    read_thresholds,
    read_word,
)
from pytest_dtdispatch.core.signatures import mesh_text
from pytest_dtdispatch.core.verdicts import THRESHOLD_STATES, Threshold, thresholds_of

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

INFINITY, NAN = float("inf"), float("nan")


COUNT = "a whole number of at least 1"
MESH = "a mesh shape: extents of at least 1 joined by x, such as 4 or 2x4"
SECONDS = "a number of seconds above 0"
MOST_SECONDS = f"{SECONDS}, and at most 1,000,000,000"


def read_word_of(value: Any) -> str:
    return read_choice(value, ("auto", "fake"))


# Each reader, what it reads and makes of it, and what it says of anything else.
READ: dict[Callable[[Any], Any], tuple[tuple[Any, Any], ...]] = {
    read_count: (("1", 1), ("20", 20), (" 7 ", 7), (1, 1), (1000, 1000), (numpy.int64(2), 2)),
    read_ranks: (("1", 1), ("2", 2), ("1024", 1024)),
    read_rounds: (("auto", "auto"), ("20", 20), (7, 7)),
    read_seconds: (("1", 1.0), ("0.2", 0.2), ("1e-3", 1e-3), (2, 2.0), (0.5, 0.5)),
    read_limit: ((1, 1.0), (1.3, 1.3), (1e-3, 1e-3)),
    read_sizes: (
        ((4, 16, 8), (4, 8, 16)),
        ({8, 4}, (4, 8)),
        (iter([16, 8]), (8, 16)),
        (range(4, 17, 4), (4, 8, 12, 16)),
    ),
    read_switch: (
        *((word, True) for word in ("1", "true", "yes", "on", "TRUE", "On", True)),
        *((word, False) for word in ("0", "false", "no", "off", "False", "OFF", False)),
    ),
    read_mesh: (
        ("4", (4,)),
        ("2x4", (2, 4)),
        ("8x8x4", (8, 8, 4)),
        (4, (4,)),
        ([2, 4], (2, 4)),
        (("2",), (2,)),
    ),
    read_names: ((("dp", "tp"), ("dp", "tp")), (["dp", "tp"], ("dp", "tp"))),
    read_globs: (("add*", ("add*",)), (("add*", "mm"), ("add*", "mm")), (["mm"], ("mm",)), ((), ())),
    read_word_of: (("fake", "fake"),),
    read_word: ((" aot_eager ", "aot_eager"),),
}


class Rounded:
    def __int__(self) -> int:
        return 2


DIGITS = ("1_0", "\uff13", "\u0663")  # which int() takes
NO_NUMBERS = (0, -1, INFINITY, NAN, True, None, [1])
NO_COUNTS = ("0", "-1", "x", "", "1.5", "1e3", "inf", *DIGITS, 2.0, 1.5, *NO_NUMBERS, Rounded(), b"2")
NUMBERS_OF_OTHERS = (numpy.float32(2.7), numpy.float64(2), Decimal("2.7"))
NO_SECONDS = ("0", -0.5, (1,), "-1", "x", "", "nan", "inf", "1e400", "1s", *DIGITS, *NO_NUMBERS, 10**400)
NO_SIZES = (
    (),
    (8,),
    (8, 8),
    (8, 0),
    (8, -1),
    (8, 16.0),
    (8, "16"),
    (8, True),
    (8, None),
    8,
    None,
    "8,16",
    "816",
)
NO_MESH_TEXTS = ("2x", "x4", "0x4", "2xx4", "-1", "2X4", "2,4", "", "x")
NO_MESHES: tuple[Any, ...] = (0, (), [], (2, 0), (2, None), ((2, 4),), 2.0, True, None, (INFINITY,), {2: 4})
REFUSED: tuple[tuple[Callable[[Any], Any], str, tuple[Any, ...]], ...] = (
    (read_count, COUNT, (*NO_COUNTS, *NUMBERS_OF_OTHERS)),
    (read_ranks, "a whole number from 1 to 1,024", ("0", "x", "1025", "50000000", "9" * 5000)),
    (
        *(read_rounds, f"{COUNT}, or auto"),
        ("AUTO", "automatic", " auto", "0", "", 0, 1.5, True, None, ["auto"]),
    ),
    (read_seconds, SECONDS, NO_SECONDS),
    (read_seconds, MOST_SECONDS, ("1e300", "1000000001", 1e10)),
    (read_limit, "a number above 0", (0, -0.5, "1.3", "x", NAN, INFINITY, True, None, (1,), 10**400)),
    (read_sizes, "two or more whole numbers of at least 1 that differ", NO_SIZES),
    (read_switch, "true or false", ("", "maybe", "2", 1, 0, None, ["true"])),
    (read_mesh, MESH, (*NO_MESH_TEXTS, *NO_MESHES)),
    (read_names, 'a tuple of names, such as ("dp", "tp")', ("dp", ("dp", ""), ("dp", 1), None, 3, {"dp"})),
    (read_globs, 'globs of op names, such as "add*"', ("", [""], ("add*", 1), None, 3)),
    (
        *(read_word_of, "one of auto, fake"),
        ("", "Fake", "mpi", None, 1, ["fake"], ("auto", "fake"), numpy.array([1, 2])),
    ),
    (read_file, "the path of a file", ("a\0b.csv",)),
)


def refusal(read: Callable[[Any], Any], value: Any) -> str:
    try:
        read(value)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("read", READ)
def test_each_reader_takes_a_value_as_it_is_written_anywhere(read: Callable[[Any], Any]) -> None:
    for value, expected in READ[read]:
        made = read(value)
        assert (made, type(made)) == (expected, type(expected)), value


@pytest.mark.parametrize(("read", "says", "values"), REFUSED, ids=lambda part: getattr(part, "__name__", ""))
def test_anything_else_is_refused_with_what_is_valid(
    read: Callable[[Any], Any], says: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        assert refusal(read, value) == says, value


@unhurried
@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=6))
def test_a_mesh_is_read_as_it_is_written(extents: list[int]) -> None:
    shape = tuple(extents)
    assert read_mesh(mesh_text(shape)) == read_mesh(shape) == read_mesh(extents) == shape


SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
JUNK = SIMPLE | st.lists(st.integers()) | st.tuples()


@unhurried
@given(JUNK)
def test_whatever_is_given_is_read_or_refused_with_what_is_valid(value: Any) -> None:
    for read, _, _ in REFUSED[:-1]:
        assert refusal(read, value) in ("", *(says for of, says, _ in REFUSED if of is read))


# Thresholds


@pytest.mark.parametrize(
    ("text", "threshold"),
    [
        ("10%", Threshold("", "median", 0.1)),
        ("median:10%", Threshold("", "median", 0.1)),
        ("min:0.5%", Threshold("", "min", 0.005)),
        ("hit=7.5%", Threshold("hit", "median", 0.075)),
        ("hit=q1:7.5%", Threshold("hit", "q1", 0.075)),
        ("miss=mean:400%", Threshold("miss", "mean", 4.0)),
    ],
)
def test_a_threshold_has_a_percentage_and_may_have_a_field_and_a_state(
    text: str, threshold: Threshold
) -> None:
    assert read_thresholds(text) == read_thresholds([text]) == (threshold,)
    assert read_thresholds(str(threshold)) == (threshold,)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("median:abc", "not 'abc'"),
        ("median:-5%", "not '-5%'"),
        ("median:0%", "not '0%'"),
        ("median:5", "write 5%"),
        ("20", "write 20%"),
        ("20000", "not '20000'"),
        ("median:nan%", "not 'nan%'"),
        ("median:3_0%", "not '3_0%'"),
        ("median:\uff13\uff10%", "not '\uff13\uff10%'"),
        ("\u0663\u0660%", "not '\u0663\u0660%'"),
        ("median:inf%", "not 'inf%'"),
        ("median:5%,lax", "not '5%,lax'"),
        ("median:5%,hit=median:3%", "not 'median:5%,hit'"),
        ("strict", "not 'strict'"),
        ("median:", "not ''"),
        ("median", "not 'median'"),
        ("", "not ''"),
        ("stddev:5%", "the field is one of min, q1, median, q3, mean, not 'stddev'"),
        ("warm=median:5%", f"the state is one of {', '.join(THRESHOLD_STATES)}, not 'warm'"),
        ("local=median:5%", f"the state is one of {', '.join(THRESHOLD_STATES)}, not 'local'"),
        ("hit=:5%", "not ''"),
        (["median:5%", "x"], "not 'x'"),
        (0.1, "thresholds, such as"),
        ([], "thresholds, such as"),
        ([5], "thresholds, such as"),
    ],
)
def test_anything_else_is_no_threshold(value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        read_thresholds(value)


def test_a_name_is_text_that_shows() -> None:
    for value in ("", "  ", 5, None):
        with pytest.raises(ValueError, match="a name"):
            read_word(value)


def test_every_state_but_the_control_may_have_a_threshold() -> None:
    assert {*THRESHOLD_STATES, "local"} == set(map(str, State))


def test_the_threshold_of_a_state_replaces_the_general_one_of_its_field() -> None:
    given = read_thresholds(["hit=5%", "10%", "min:20%"])
    assert {str(threshold) for threshold in thresholds_of("hit", given)} == {"hit=median:5%", "min:20%"}
    assert {str(threshold) for threshold in thresholds_of("miss", given)} == {"median:10%", "min:20%"}
    assert thresholds_of("miss", read_thresholds("hit=5%")) == ()


def test_exports_are_a_format_and_a_file_each() -> None:
    formats = ("csv", "html")
    assert read_exports("csv:a:b.csv", formats) == (Export("csv", Path("a:b.csv")),)
    assert read_exports([" html:s.html", "csv:c"], formats) == (
        Export("html", Path("s.html")),
        Export("csv", Path("c")),
    )


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("out.csv", "FORMAT:FILE, with a format of csv, html"),
        ("", "FORMAT:FILE, with a format of csv, html"),
        (("csv:a", 3), "FORMAT:FILE, with a format of csv, html"),
        ((), "FORMAT:FILE, with a format of csv, html"),
        ("CSV:a", "FORMAT:FILE: no format is called 'CSV'; valid: csv, html"),
        (["csv:a", "xml:b"], "FORMAT:FILE: no format is called 'xml'; valid: csv, html"),
        ("csv:", "FORMAT:FILE: '' is not the path of a file"),
        ("csv: ", "FORMAT:FILE: '' is not the path of a file"),
    ],
)
def test_what_is_no_export_is_told_with_what_is_valid(value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        read_exports(value, ("csv", "html"))


def test_auto_stands_for_the_summary_of_a_job_alone() -> None:
    assert [
        export.is_auto for export in read_exports(["markdown:auto", "csv:auto"], ("csv", "markdown"))
    ] == [*(True, False)]
