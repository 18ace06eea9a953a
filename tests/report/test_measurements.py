"""The table of a run: groups, columns, one unit a column."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Refused, Samples, State
from pytest_dtdispatch.report.document import Tone, View
from pytest_dtdispatch.report.measurements import document
from tests.rendered import line_of, table_of, titles_of


def measured(
    label: str = "add@4",
    contains: Contains = Contains.DISPATCH,
    notes: Sequence[str] = (),
    remarks: Sequence[str] = (),
    refused: dict[State, Refused] | None = None,
    **ns: Sequence[int],
) -> Measurement:
    """Make a measurement; ``miss=[...]`` gives the samples of that state."""
    refused = refused or {}
    samples = tuple(
        Samples(state, tuple(ns.get(str(state), ())), tuple(r for of, r in refused.items() if of is state))
        for state in State
        if str(state) in ns or state in refused
    )
    return Measurement(
        label, label, "add.Tensor", "4", contains, 3, Figures(20, samples, tuple(notes), tuple(remarks))
    )


ADD = measured(miss=[1_200_000] * 20, hit=[6_000, 7_000], local=[1_500])


def test_a_line_has_a_cell_for_each_title() -> None:
    table = table_of(document({"test_a": [ADD]}, View()))
    assert titles_of(table) == ("miss ms", "hit us", "local us", "overhead us", "miss/hit", "samples")
    assert table.lines[0].cells == ("1.20", "6.50", "1.50", "5.00", "185", "20+2")
    assert table.lines[0].label == "add@4"


def test_a_column_is_in_one_unit_over_all_tests() -> None:
    slow = measured(miss=[370_000_000], hit=[11_000], local=[800])
    table = table_of(document({"test_a": [ADD], "test_b": [slow]}, View()))
    assert titles_of(table)[:3] == ("miss ms", "hit us", "local us")
    [a], [b] = (group.lines for group in table.groups)
    assert (a.cells[0], b.cells[0]) == ("1.20", "370.00")
    assert (a.cells[2], b.cells[2]) == ("1.500", "0.800")


def test_cold_is_a_column_only_where_something_is_cold() -> None:
    cold = measured(cold=[1_900_000], miss=[1_200_000], hit=[6_000])
    table = table_of(document({"test_a": [ADD, cold]}, View()))
    assert titles_of(table)[0] == "cold ms"
    assert [line.cells[0] for line in table.groups[0].lines] == ["-", "1.90"]


def test_what_was_not_recorded_is_a_dash() -> None:
    line = line_of(document({"test_a": [measured(hit=[6_000])]}, View()))
    assert line.cells == ("-", "6.00", "-", "-", "-", "0+1")


def test_a_call_of_an_unpropagated_op_stands_where_hits_do() -> None:
    line = line_of(document({"test_a": [measured(call=[4_000] * 7, local=[1_000])]}, View()))
    assert line.cells == ("-", "4.00", "1.00", "3.00", "-", "0+7")
    assert line.proof == "unpropagated"
    assert line.tone is Tone.GOOD


@pytest.mark.parametrize(
    ("miss", "hit", "text"), [(95_000, 10_000, "9.5"), (100_000, 10_000, "10"), (184_600, 1_000, "185")]
)
def test_a_ratio_has_a_decimal_only_below_ten(miss: int, hit: int, text: str) -> None:
    line = line_of(document({"test_a": [measured(miss=[miss], hit=[hit])]}, View()))
    assert line.cells[-2] == text


def test_a_large_ratio_has_its_thousands_set_apart() -> None:
    line = line_of(document({"test_a": [measured(miss=[12_345_000], hit=[1_000])]}, View()))
    assert line.cells[-2] == "12,345"


def test_verbose_adds_rounds_and_calls() -> None:
    table = table_of(document({"test_a": [ADD]}, View(verbose=True)))
    assert titles_of(table)[-2:] == ("rounds", "calls")
    assert table.lines[0].cells[-2:] == ("20", "3")


def test_why_there_is_no_local_row_is_said_only_when_verbose() -> None:
    noted = measured(hit=[1], notes=["it runs once"], remarks=["no local row: it communicates"])
    assert line_of(document({"test_a": [noted]}, View())).notes == ("it runs once",)
    verbose = line_of(document({"test_a": [noted]}, View(verbose=True)))
    assert verbose.notes == ("it runs once", "no local row: it communicates")


def test_a_refusal_stands_where_the_proof_does() -> None:
    refused = {State.MISS: Refused("propagation did not run", 20)}
    line = line_of(document({"test_a": [measured(refused=refused, hit=[9])]}, View()))
    assert line.proof == "propagation did not run (20x)"
    assert line.tone is Tone.BAD


def test_what_was_not_measured_is_not_proved() -> None:
    line = line_of(document({"test_a": [measured(notes=["it runs once"])]}, View()))
    assert line.proof == "not measured"
    assert line.tone is Tone.NOTICE


def test_a_test_is_a_group_and_says_where_its_figures_start() -> None:
    call = measured("step", Contains.END_TO_END, hit=[100])
    table = table_of(document({"test_a": [ADD, call, ADD], "test_b": [call]}, View()))
    assert [(group.title, [line.label for line in group.lines]) for group in table.groups] == [
        ("test_a (dispatch from below autograd)", ["add@4", "add@4"]),
        ("test_a (end to end from Python, autograd included)", ["step"]),
        ("test_b (end to end from Python, autograd included)", ["step"]),
    ]


@pytest.mark.parametrize("measurements", [{}, {"test_a": []}])
def test_a_table_of_nothing_has_no_groups(measurements: dict[str, list[Measurement]]) -> None:
    assert table_of(document(measurements, View())).groups == ()
