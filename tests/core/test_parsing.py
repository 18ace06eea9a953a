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
    read_word,
)
from pytest_dtdispatch.core.signatures import mesh_text
from pytest_dtdispatch.core.verdicts import THRESHOLD_STATES, Threshold, read_thresholds, thresholds_of

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

INFINITY, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(("value", "count"), [("1", 1), ("20", 20), (" 7 ", 7), (1, 1), (1000, 1000)])
def test_a_count_is_a_whole_number_of_at_least_one(value: Any, count: int) -> None:
    assert read_count(value) == count


@pytest.mark.parametrize(
    "value",
    [
        "0",
        "-1",
        "x",
        "",
        "1.5",
        "1e3",
        "inf",
        "1_0",
        "\uff13",
        "\u0663",
        0,
        -1,
        2.0,
        1.5,
        INFINITY,
        NAN,
        True,
        None,
        [1],
    ],
)
def test_anything_else_is_no_count(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^a whole number of at least 1$"):
        read_count(value)


def test_a_number_that_is_not_whole_is_no_count_whatever_its_type() -> None:
    class Rounded:
        def __int__(self) -> int:
            return 2

    for value in (numpy.float32(2.7), numpy.float64(2), Decimal("2.7"), Rounded(), b"2"):
        with pytest.raises(ValueError, match=r"^a whole number of at least 1$"):
            read_count(value)
    assert read_count(numpy.int64(2)) == 2


@pytest.mark.parametrize(("value", "ranks"), [("1", 1), ("2", 2), ("1024", 1024)])
def test_ranks_are_a_count_with_a_limit(value: str, ranks: int) -> None:
    assert read_ranks(value) == ranks


@pytest.mark.parametrize("value", ["0", "x", "1025", "50000000", "9" * 5000])
def test_more_ranks_than_a_machine_runs_are_refused_and_the_limit_is_named(value: str) -> None:
    with pytest.raises(ValueError, match=r"^a whole number from 1 to 1,024$"):
        read_ranks(value)


@pytest.mark.parametrize(("value", "rounds"), [("auto", "auto"), ("20", 20), (7, 7)])
def test_rounds_are_a_count_or_auto(value: Any, rounds: int | str) -> None:
    assert read_rounds(value) == rounds


@pytest.mark.parametrize("value", ["AUTO", "automatic", " auto", "0", "", 0, 1.5, True, None, ["auto"]])
def test_anything_else_is_no_number_of_rounds(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^a whole number of at least 1, or auto$"):
        read_rounds(value)


@pytest.mark.parametrize(
    ("value", "seconds"), [("1", 1.0), ("0.2", 0.2), ("1e-3", 1e-3), (2, 2.0), (0.5, 0.5)]
)
def test_seconds_are_a_number_above_zero(value: Any, seconds: float) -> None:
    assert read_seconds(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "0",
        "-1",
        "x",
        "",
        "nan",
        "inf",
        "1e400",
        "1s",
        "3_0",
        "\uff13",
        "\u0663",
        0,
        -0.5,
        NAN,
        INFINITY,
        True,
        None,
        (1,),
        pytest.param(10**400, id="1e400"),
    ],
)
def test_anything_else_is_no_number_of_seconds(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^a number of seconds above 0$"):
        read_seconds(value)


@pytest.mark.parametrize("value", ["1e300", "1000000001", 1e10])
def test_seconds_that_no_clock_can_wait_for_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^a number of seconds above 0, and at most 1,000,000,000$"):
        read_seconds(value)


def test_an_array_is_no_word_and_no_path_has_a_zero_byte() -> None:
    with pytest.raises(ValueError, match=r"^one of auto, cpu$"):
        read_choice(numpy.array([1, 2]), ("auto", "cpu"))
    with pytest.raises(ValueError, match=r"^the path of a file$"):
        read_file("a\0b.csv")


@pytest.mark.parametrize(("value", "limit"), [(1, 1.0), (1.3, 1.3), (1e-3, 1e-3)])
def test_a_limit_is_a_number_above_zero(value: Any, limit: float) -> None:
    assert read_limit(value) == limit


@pytest.mark.parametrize(
    "value",
    [0, -0.5, "1.3", "x", NAN, INFINITY, True, None, (1,), pytest.param(10**400, id="1e400")],
)
def test_anything_else_is_no_limit(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^a number above 0$"):
        read_limit(value)


@pytest.mark.parametrize("value", [(4, 16, 8), [16, 8, 4], {4, 8, 16}, range(4, 17, 4)])
def test_sizes_are_whole_numbers_that_differ_and_come_back_rising(value: Any) -> None:
    assert read_sizes(value) == tuple(sorted(value))
    assert read_sizes(iter(value)) == tuple(sorted(value))


@pytest.mark.parametrize(
    "value",
    [(), (8,), (8, 8), (8, 0), (8, -1), (8, 16.0), (8, "16"), (8, True), (8, None), 8, None, "8,16", "816"],
)
def test_anything_else_is_no_sizes(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^two or more whole numbers of at least 1 that differ$"):
        read_sizes(value)


@pytest.mark.parametrize("word", ["1", "true", "yes", "on", "TRUE", "On", True])
def test_a_switch_is_on(word: Any) -> None:
    assert read_switch(word) is True


@pytest.mark.parametrize("word", ["0", "false", "no", "off", "False", "OFF", False])
def test_a_switch_is_off(word: Any) -> None:
    assert read_switch(word) is False


@pytest.mark.parametrize("value", ["", "maybe", "2", 1, 0, None, ["true"]])
def test_anything_else_is_no_switch(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^true or false$"):
        read_switch(value)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ("4", (4,)),
        ("2x4", (2, 4)),
        ("8x8x4", (8, 8, 4)),
        (4, (4,)),
        ((2, 4), (2, 4)),
        ([2, 4], (2, 4)),
        (("2",), (2,)),
    ],
)
def test_a_mesh_is_one_extent_or_several(value: Any, shape: tuple[int, ...]) -> None:
    assert read_mesh(value) == shape


@unhurried
@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=6))
def test_a_mesh_is_read_as_it_is_written(extents: list[int]) -> None:
    shape = tuple(extents)
    assert read_mesh(mesh_text(shape)) == read_mesh(shape) == read_mesh(extents) == shape


@pytest.mark.parametrize(
    "value",
    [
        "2x",
        "x4",
        "0x4",
        "2xx4",
        "-1",
        "2X4",
        "2,4",
        "",
        "x",
        0,
        (),
        [],
        (2, 0),
        (2, None),
        ((2, 4),),
        2.0,
        True,
        None,
        (INFINITY,),
        {2: 4},
    ],
)
def test_anything_else_is_no_mesh(value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^a mesh shape: extents of at least 1 joined by x, such as 4 or 2x4$"
    ):
        read_mesh(value)


@pytest.mark.parametrize("value", [("dp", "tp"), ["dp", "tp"]])
def test_names_are_a_tuple_of_texts(value: Any) -> None:
    assert read_names(value) == ("dp", "tp")


@pytest.mark.parametrize("value", ["dp", ("dp", ""), ("dp", 1), None, 3, {"dp"}])
def test_anything_else_is_no_names(value: Any) -> None:
    with pytest.raises(ValueError, match=r'^a tuple of names, such as \("dp", "tp"\)$'):
        read_names(value)


@pytest.mark.parametrize(
    ("value", "globs"), [("add*", ("add*",)), (("add*", "mm"), ("add*", "mm")), (["mm"], ("mm",)), ((), ())]
)
def test_globs_are_one_text_or_several(value: Any, globs: tuple[str, ...]) -> None:
    assert read_globs(value) == globs


@pytest.mark.parametrize("value", ["", [""], ("add*", 1), None, 3])
def test_anything_else_is_no_globs(value: Any) -> None:
    with pytest.raises(ValueError, match=r'^globs of op names, such as "add\*"$'):
        read_globs(value)


def test_a_choice_is_one_of_its_words() -> None:
    assert read_choice("fake", ("auto", "fake")) == "fake"


@pytest.mark.parametrize("value", ["", "Fake", "mpi", None, 1, ["fake"], ("auto", "fake")])
def test_anything_else_is_no_choice_and_the_words_are_listed(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^one of auto, fake$"):
        read_choice(value, ("auto", "fake"))


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers()),
    st.tuples(),
)


def refusal(read: Callable[[Any], Any], value: Any) -> str:
    try:
        read(value)
    except ValueError as error:
        return str(error)
    return ""


@unhurried
@given(JUNK)
def test_whatever_is_given_is_read_or_refused_with_what_is_valid(value: Any) -> None:
    assert refusal(read_count, value) in ("", "a whole number of at least 1")
    assert refusal(read_rounds, value) in ("", "a whole number of at least 1, or auto")
    refused = refusal(read_seconds, value)
    assert refused in (
        "",
        "a number of seconds above 0",
        "a number of seconds above 0, and at most 1,000,000,000",
    )
    assert refusal(read_switch, value) in ("", "true or false")
    assert refusal(read_mesh, value) in (
        "",
        "a mesh shape: extents of at least 1 joined by x, such as 4 or 2x4",
    )
    assert refusal(read_names, value) in ("", 'a tuple of names, such as ("dp", "tp")')
    assert refusal(read_globs, value) in ("", 'globs of op names, such as "add*"')
    assert refusal(lambda given: read_choice(given, ("a",)), value) in ("", "one of a")


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
        ("median:", "not ''"),
        ("median", "not 'median'"),
        ("", "not ''"),
        ("stddev:5%", "the field is one of min, q1, median, q3, mean, not 'stddev'"),
        (
            "warm=median:5%",
            f"the state is one of {', '.join(THRESHOLD_STATES)}, not 'warm'",
        ),
        (
            "local=median:5%",
            f"the state is one of {', '.join(THRESHOLD_STATES)}, not 'local'",
        ),
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
    assert read_word(" aot_eager ") == "aot_eager"
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
