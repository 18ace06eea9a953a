"""The dearest rows first, and how many cheap ones are left out."""

from __future__ import annotations

from itertools import pairwise

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Refused, Samples, State, Unit
from pytest_dtdispatch.report.document import View
from pytest_dtdispatch.report.markdown import document_text
from pytest_dtdispatch.report.rows import document
from tests.rendered import lines_of, table_of, titles_of


def row(
    label: str,
    calls: int,
    hit: int,
    local: int = 0,
    *,
    samples: tuple[Samples, ...] | None = None,
    notes: tuple[str, ...] = (),
    contains: Contains = Contains.DISPATCH,
) -> Measurement:
    """Make a row; a local latency of zero is none."""
    if samples is None:
        taken = {State.MISS: 1_000_000, State.HIT: hit, State.LOCAL: local}
        samples = tuple(Samples(state, (ns,) * 20) for state, ns in taken.items() if ns)
    return Measurement(label, label, label, "4", contains, calls, Figures(20, samples, notes))


# Three dear rows, and as many as wanted that cost 1 us each.
DEAR = [row("add", 100, 7_000, 2_000), row("mm", 10, 40_000, 10_000), row("cat", 2, 50_000)]
CHEAP = [row(f"cheap {number}", 1, 2_000, 1_000) for number in range(20)]
NOISY = row("noisy", 1, 0, samples=(Samples(State.HIT, tuple(range(1, 4_000, 100))),))
REFUSED = row("refused", 1, 0, samples=(Samples(State.HIT, (10,) * 20, (Refused("it moved", 3),)),))
NOTED = row("noted", 1, 1_000, 900, notes=("timed in the program's 4 threads",))
ONCE = row("once", 3, 0, samples=(), notes=("runs once",))


def labels(rows: list[Measurement], view: View | None = None) -> list[str]:
    [group] = table_of(document({"test_a": rows}, view or View())).groups
    return [line.label for line in group.lines]


def test_rows_stand_in_the_order_of_calls_times_overhead_with_a_running_total() -> None:
    table = table_of(document({"test_a": [DEAR[2], DEAR[0], DEAR[1]]}, View()))
    assert titles_of(table)[:3] == ("calls", "share %", "total %")
    assert {line.label: line.cells[:3] for line in table.groups[0].lines} == {
        "add": ("100", "55.6", "55.6"),  # 500 us of 900 us
        "mm": ("10", "33.3", "88.9"),
        "cat": ("2", "11.1", "100.0"),  # without a local row the whole call
    }
    assert labels([DEAR[2], DEAR[0], DEAR[1]]) == ["add", "mm", "cat"]


def test_rows_past_95_percent_are_left_out_and_a_line_says_what_they_make() -> None:
    rows = [*CHEAP, *DEAR]
    of = document({"test_a": rows}, View())
    [group] = table_of(of).groups
    assert [line.label for line in group.lines] == ["add", "mm", "cat"]
    said = "and 20 rows more, which make 2.2 % together; -v lists them"
    assert group.more == said
    assert f"  {said}" in lines_of(of)
    assert "and 20 rows more, which make 2.2 % together" in document_text(of)
    assert any("23 of 23 rows are proved" in line for line in lines_of(of)), "of those left out too"


def test_a_hundred_signatures_are_ten_lines() -> None:
    rows = [row(f"op {number}", 1, 1_000 + int(1e6 * 0.75**number), 1_000) for number in range(100)]
    kept = labels(rows)
    assert kept == [f"op {number}" for number in range(11)]
    assert len(labels(rows, View(verbose=True))) == 100


def test_few_rows_are_all_shown() -> None:
    assert labels([*DEAR, *CHEAP[:2]]) == ["add", "mm", "cat", "cheap 0", "cheap 1"]


def test_one_row_is_not_replaced_by_a_line_that_says_so() -> None:
    rows = [row(f"op {number}", 1, 20_000 + number) for number in range(8)]
    assert labels([row("cheapest", 1, 1_010, 1_000), *rows])[-1] == "cheapest"


def test_what_has_a_mark_or_a_note_is_never_left_out() -> None:
    troubled = [NOISY, REFUSED, NOTED, ONCE]
    assert NOISY.noisy == (State.HIT,)
    kept = labels([*CHEAP, *troubled, *DEAR])
    assert kept[:3] == ["add", "mm", "cat"]
    assert {*kept[3:]} == {"noisy", "refused", "noted", "once"}
    assert kept[-1] == "once", "what has no figure comes last"
    [group] = table_of(document({"test_a": [ONCE, *DEAR]}, View())).groups
    assert group.lines[-1].cells[:3] == ("3", "-", "-"), "it has no share"


def test_what_never_hits_costs_a_miss_a_call() -> None:
    never = row("never", 3, 0, samples=(Samples(State.MISS, (300_000,) * 20),))
    [group] = table_of(document({"test_a": [row("add", 10, 10_000), never]}, View())).groups
    assert [(line.label, line.cells[1]) for line in group.lines] == [("never", "90.0"), ("add", "10.0")]


def test_a_hit_that_is_quicker_than_the_local_op_takes_nothing_from_others() -> None:
    [group] = table_of(document({"test_a": [DEAR[0], row("lucky", 5, 1_000, 1_200)]}, View())).groups
    assert [line.cells[1:3] for line in group.lines] == [("100.0", "100.0"), ("0.0", "100.0")]


def test_named_calls_keep_their_order_and_are_all_shown() -> None:
    calls = [row(f"call {n}", 1, 1_000 * (n + 1), contains=Contains.END_TO_END) for n in range(9)]
    [group] = table_of(document({"test_a": calls}, View())).groups
    assert [line.label for line in group.lines] == [f"call {n}" for n in range(9)]
    assert "share %" not in titles_of(table_of(document({"test_a": calls}, View())))


def test_each_region_has_its_own_whole() -> None:
    table = table_of(document({"test_a": DEAR, "test_b": [CHEAP[0]]}, View()))
    assert [group.lines[-1].cells[2] for group in table.groups] == ["100.0", "100.0"]


def test_counts_are_ranked_as_times_are() -> None:
    unit = Unit("instructions", is_time=False)
    counted = [
        row(label, calls, 0, samples=(Samples(State.HIT, (count,), unit=unit),))
        for label, calls, count in [("few", 1, 5_000), ("many", 10, 1_000)]
    ]
    assert labels(counted) == ["many", "few"]


def test_a_narrow_terminal_keeps_the_share_longer_than_what_explains_it() -> None:
    long = [row(f"{'x' * 60} {number}", 3, 2_000 + number, 1_000) for number in range(3)]
    heads = [lines_of(document({"test_a": long}, View()), width)[0] for width in (80, 120, 200)]
    shown = [
        [title for title in ("calls", "share %", "total %", "overhead us") if title in head] for head in heads
    ]
    assert all(set(fewer) <= set(more) for fewer, more in pairwise(shown))
    assert "share %" in shown[0], "rows are in its order"
    assert shown[2] == ["calls", "share %", "total %", "overhead us"]
