"""The table of a run: groups, columns, one unit a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import (
    INSTRUCTIONS,
    Contains,
    Figures,
    Measurement,
    Profile,
    Samples,
    Share,
    State,
)
from pytest_dtdispatch.core.text import Scale, column_scale
from pytest_dtdispatch.report.document import Tone, View
from pytest_dtdispatch.report.rows import document
from tests.rendered import line_of, lines_of, table_of, titles_of


def measured(label: str = "add@4", **ns: Sequence[int]) -> Measurement:
    """Make a measurement; ``miss=[...]`` gives the samples of that state."""
    samples = tuple(Samples(state, tuple(ns[str(state)])) for state in State if str(state) in ns)
    return Measurement(label, label, "add.Tensor", "4", Contains.DISPATCH, 3, Figures(20, samples))


ADD = measured(miss=[1_200_000] * 20, hit=[6_000, 7_000], local=[1_500])


def test_a_line_has_a_cell_for_each_title() -> None:
    table = table_of(document({"test_a": [ADD]}, View()))
    assert titles_of(table) == (
        *("miss ms", "+-%", "hit us", "+-%", "local us", "overhead us", "miss/hit", "samples"),
    )
    assert table.groups[0].lines[0].cells == ("1.200", "0", "6.50", "-", "1.50", "5.00", "185", "20+2")
    assert table.groups[0].lines[0].label == "add@4"


def test_a_column_is_in_the_same_unit_in_every_run() -> None:
    slow = measured(miss=[370_000_000], hit=[1_100_000], local=[800])
    quick = measured(miss=[484_900], hit=[900], local=[70])
    runs = [table_of(document({"test_a": [one]}, View())) for one in (slow, quick)]
    assert [titles_of(table)[:5:2] for table in runs] == [("miss ms", "hit us", "local us")] * 2
    cells = [table.groups[0].lines[0].cells[:5:2] for table in runs]
    assert cells == [("370.000", "1,100.00", "0.80"), ("0.485", "0.90", "0.07")]


def test_a_call_of_an_unpropagated_op_stands_where_hits_do() -> None:
    line = line_of(document({"test_a": [measured(call=[4_000] * 7, local=[1_000])]}, View()))
    assert line.cells == ("-", "-", "4.00", "0", "1.00", "3.00", "-", "0+7")
    assert line.proof == "unpropagated"
    assert line.tone is Tone.GOOD


@pytest.mark.parametrize(
    ("miss", "hit", "text"),
    [(95_000, 10_000, "9.5"), (100_000, 10_000, "10"), (12_345_000, 1_000, "12,345")],
)
def test_a_ratio_has_a_decimal_only_below_ten(miss: int, hit: int, text: str) -> None:
    line = line_of(document({"test_a": [measured(miss=[miss], hit=[hit])]}, View()))
    assert line.cells[-2] == text


@pytest.mark.parametrize("measurements", [{}, {"test_a": []}])
def test_a_table_of_nothing_has_no_groups(measurements: dict[str, list[Measurement]]) -> None:
    assert table_of(document(measurements, View())).groups == ()


# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TIMES = st.floats(0, 1e13, allow_nan=False)


@pytest.mark.parametrize(
    ("values_ns", "name"),
    [
        ([], "us"),
        ([None], "us"),
        ([0.0], "us"),
        ([0.5], "ns"),
        ([1.0, 999.0], "ns"),
        ([1_000.0], "us"),
        ([951.0, 6_940.0, 15_573.0], "us"),
        ([4_100.0, 12_800.0, 2_959_700.0], "us"),
        ([999_999.0], "us"),
        ([484_900.0, 1_697_100.0, 61_133_400.0], "ms"),
        ([1.3e6, 3.7e8, None], "ms"),
        ([2e9, 3e9], "s"),
        ([-5_000.0, 2_000.0], "us"),
        ([None, 0.0, 7_000.0], "us"),
    ],
)
def test_a_column_is_in_the_unit_of_its_median(values_ns: list[float | None], name: str) -> None:
    assert column_scale(values_ns).name == name


def test_a_time_is_written_in_its_unit() -> None:
    ns, us, ms = Scale("ns", 1.0, 0), Scale("us", 1e3, 1), Scale("ms", 1e6, 2)
    assert [ns.text(value) for value in (749.4, 12_345.0)] == ["749", "12,345"]
    assert [us.text(value) for value in (6_940, 1_211_040, -1_050)] == ["6.9", "1,211.0", "-1.1"]
    assert [ms.text(value) for value in (370_128_000, 0, None)] == ["370.13", "0.00", "-"]


@unhurried
@given(st.lists(st.one_of(st.none(), TIMES)))
def test_what_is_written_is_the_time_up_to_its_last_digit(values_ns: list[float | None]) -> None:
    unit = column_scale(values_ns)
    for value in values_ns:
        text = unit.text(value)
        if value is None:
            assert text == "-"
        else:
            half_a_digit = 1.001 * unit.ns * 0.5 * 10**-unit.decimals
            written = float(text.replace(",", "")) * unit.ns
            assert written == pytest.approx(value, rel=1e-15, abs=half_a_digit)


@pytest.mark.parametrize(
    ("values_ns", "texts"),
    [
        ([484_900, 1_697_100, 61_133_400], ["0.485", "1.697", "61.133"]),
        ([6_940, 12_800], ["6.94", "12.80"]),
        ([15_000, 22_400], ["15.0", "22.4"]),
        ([300_000, 412_345], ["300", "412"]),
        ([40, 12_000, 13_000], ["0.040", "12.000", "13.000"]),
    ],
)
def test_the_smallest_time_of_a_column_has_three_digits_or_three_decimals(
    values_ns: list[float], texts: list[str]
) -> None:
    unit = column_scale(values_ns)
    assert [unit.text(value) for value in values_ns] == texts


LONG = "torch::" + "x" * 200 + "::dispatch"
PROFILE = Profile((Share("rule (a.py:3)", 750), Share(LONG, 250)), 1_000)


def profiled(width: int = 100) -> list[str]:
    """Lines below the table of one signature: its head, its test, its line, what is proved."""
    misses = Samples(State.MISS, (1_000,), unit=INSTRUCTIONS, profile=PROFILE)
    counted = replace(ADD, figures=replace(ADD.figures, samples=(misses,)))
    return lines_of(document({"t.py::test_add": [counted]}, View(counted="instructions")), width)[4:]


def test_each_function_has_its_count_its_part_of_the_call_and_both_ends_of_its_name() -> None:
    [title, whole, first, second] = profiled()
    assert title == "profile of a miss: t.py::test_add::add@4"
    assert whole.split()[:3] == ["1,000", "100.0", "%"]
    assert first.split() == ["750", "75.0", "%", "rule", "(a.py:3)"]
    assert second.split()[:3] == ["250", "25.0", "%"]
    assert all(len(line) <= 100 for line in profiled())
    assert "torch::x" in profiled()[3]
    assert profiled()[3].endswith("::dispatch")
