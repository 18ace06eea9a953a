"""Output of gates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_dtdispatch.core.measurement import Samples, State
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import (
    LIMITS,
    Judgement,
    RowVerdict,
    Threshold,
    Verdict,
    judge_count,
    not_judged,
)
from pytest_dtdispatch.gates.expected import ExpectedRow, judge_results
from pytest_dtdispatch.gates.saved_run import compare_rows, judge_run
from pytest_dtdispatch.gates.times import TimedRow
from pytest_dtdispatch.report.document import Document, View
from pytest_dtdispatch.report.judgements import comparison_blocks, judgement_document, worst_text
from tests.rendered import lines_of
from tests.row_ids import number

STEADY = tuple(10_000 + n for n in range(20))
THRESHOLD = Threshold("", "min", 0.1)


HIT = "dispatch_hit_ns"
COMMAND = 'dtdispatch expected update expected.csv --results results.csv --reason "..."'
LONG = f"tests/test_a_folder/test_file.py::test_{'name' * 30}::mm(f32[8,8]S0, f32[8,8]R)@4"


def lines_shown(judgement: Judgement, width: int = 200, since: str = "") -> list[str]:
    return lines_of(judgement_document(replace(judgement, where="base.json", since=since)), width)


def judged(*factors: float, states: tuple[State, ...] = (State.HIT,) * 5) -> Judgement:
    """Judge rows whose times are these multiples of those in the saved run."""
    tests = list(zip("abcde", states, factors, strict=False))
    name = "t.py::test"
    then = [timed(RowId(name, letter, state)) for letter, state, _ in tests]
    now = [timed(RowId(name, letter, state), factor) for letter, state, factor in tests]
    return judge_run(then, now, lambda row: [THRESHOLD])


def timed(row: RowId, factor: float = 1.0) -> TimedRow:
    """Return a row whose times are this multiple of steady ones."""
    return TimedRow(row, Samples(State(row.state), tuple(round(factor * ns) for ns in STEADY)))


def test_drift_of_passed_rows_is_one_line() -> None:
    output = lines_shown(judged(1.06, 1.04, 1.05, 0.95, 1.5), since="2026-07-31")
    [line] = [line for line in output if "drift" in line]
    assert line == "  drift of 4 passed rows since 2026-07-31: median +4.5 %"


def test_drift_with_plain_tensor_shift_suspects_the_machine() -> None:
    assert lines_shown(judged(1.05, 1.05, states=(State.HIT, State.LOCAL)))[-1] == (
        "  the op on plain tensors shifted by +5.0 % (median of 1 rows): the machine may be the cause"
    )


def test_rows_are_listed_with_worst_verdict_first() -> None:
    first, head, test, worst, slow, same, remedy, drift = lines_shown(judged(1.0, 1.05, 1.5))
    assert first == "gate: failed against base.json: 2 passed, 1 regressed (10%)"
    titles = "signature state base now change % median % clock samples verdict"
    assert (head.split(), test) == (titles.split(), "t.py::test")
    assert worst.split()[:7] == ["c", "hit", "10.0", "us", "15.0", "us", "+50.0"]
    assert worst.split()[-3:] == ["wall", "20", "regressed"]
    assert [line.split()[0] for line in (slow, same)] == ["b", "a"]
    assert remedy == "  1 regressed: find what slowed it, or save a new run if the cost is wanted"
    assert drift.startswith("  drift of 2 passed rows: median ")
    assert all(len(line) <= 80 for line in lines_shown(judged(1.5), width=80))


def test_narrow_terminal_moves_cells_below_failed_row() -> None:
    judgement = judged(1.5, 1.0)
    long = [replace(row, row=row.row._replace(label="x" * 60)) for row in judgement.verdicts]
    lines = lines_of(judgement_document(replace(judgement, verdicts=tuple(long)), View()), 80)
    [below] = [line for line in lines if "base 10.0 us" in line]
    assert below.startswith("    base 10.0 us, median +50.0 %")


def test_rows_without_threshold_are_faster_slower_or_unchanged() -> None:
    then = [timed(RowId("t", name, State.HIT)) for name in "abcd"]
    factors = {"a": 0.5, "b": 1.5, "c": 1.0}
    now = [timed(RowId("t", name, State.HIT), factor) for name, factor in factors.items()]
    rows = compare_rows(then, now)
    lines = lines_of(Document(tuple(comparison_blocks(rows, View()))), 200)
    words = {line.split()[0]: line.split("  ")[-1] for line in lines[2:6]}
    assert words == {"a": "faster", "b": "slower", "c": "no change", "d": "missing"}
    assert worst_text(rows[:3]) == "worst: t::b::hit, 10.0 -> 15.0 us (+50.0 %), slower"
    assert worst_text([]) == ""


def test_passed_rows_have_no_worst_line() -> None:
    passed = [row for row in judged(1.0, 1.05).verdicts if row.verdict is Verdict.PASSED]
    assert len(passed) == 2
    assert worst_text(passed) == ""


def test_new_and_unchanged_rows_have_no_worst_line() -> None:
    unchanged = compare_rows(*[[timed(RowId("t", "a", State.HIT))]] * 2)
    assert worst_text(unchanged) == ""
    assert worst_text([RowVerdict(RowId("t", "a", None), Verdict.NEW)]) == ""


def test_items_over_a_limit_are_listed_if_verbose() -> None:
    over = judge_count("train", "misses", 0, 2, "step 1 has 2", ("mm", "add"))
    limits = Judgement((over,), LIMITS, (over,))
    title = ["gate: failed against limits: 1 regressed", "  regressed train"]
    lines = lines_of(judgement_document(limits, View()), 80)
    assert lines == [*title, "    misses=0, and step 1 has 2"]
    assert lines_of(judgement_document(limits), 80)[3:] == ["        mm", "        add"]


def test_unjudged_run_shows_its_reason() -> None:
    assert lines_shown(not_judged(Verdict.MISMATCHED, "threads: 2 then, 4 now", "save one")) == [
        "gate: failed against base.json: 1 mismatched",
        "  mismatched threads: 2 then, 4 now",
        "    save one",
    ]


def expected(rows: list[ExpectedRow], results: list[MetricValue]) -> list[str]:
    judgement = replace(judge_results(rows, results), where="expected.csv", command=COMMAND)
    return lines_of(judgement_document(judgement), 80)


def test_passed_rows_show_drift_from_expected_values() -> None:
    rows = [ExpectedRow("a", HIT, 1000, 0.3), ExpectedRow("b", HIT, 1000, 0.3)]
    found = expected(rows, [number("a", HIT, 1200), number("b", HIT, 1000)])
    drift = "  drift of 2 passed rows: median +10.0 %"
    assert found == ["gate: passed against expected.csv: 2 passed", drift]
    found = expected([ExpectedRow("a", "collectives", 0, 0)], [number("a", "collectives", 0)])
    assert found[1:] == ["  drift of 1 passed row: median +0.0 %"]


def test_improved_row_has_a_correction_without_failing() -> None:
    rows = [ExpectedRow("a", HIT, 1000, 0.1), ExpectedRow("b", HIT, 1000, 0.1)]
    results = [number("a", HIT, 500), number("b", HIT, 1000)]
    judgement = judge_results(rows, results, improved_fails=False)
    found = lines_of(judgement_document(replace(judgement, where="expected.csv")), 80)
    assert found[0] == "gate: passed against expected.csv: 1 passed, 1 improved"
    assert "    dispatch_hit_ns 1,000 +-10 %, least: 1,000 -> 500 (-50.0 %)" in found
    assert found[-1] == "a,dispatch_hit_ns,500,0.1"


def test_failed_gate_lists_rows_changes_and_corrections() -> None:
    rows = [ExpectedRow(name, HIT, value, 0.3) for name, value in (("a", 1000), (LONG, 1000), ("c", 0))]
    results = [number("a", HIT, 1200), number(LONG, HIT, 123_456), number("c", HIT, 7)]
    assert expected(rows, results) == [
        "gate: failed against expected.csv: 1 passed, 2 regressed",
        f"  regressed {LONG}",
        "    dispatch_hit_ns 1,000 +-30 %, least: 1,000 -> 123,456 (+12245.6 %)",
        "    find what made it grow, or update the expected file if the cost is wanted",
        "  regressed c",
        "    dispatch_hit_ns 0 +-30 %, least: 0 -> 7",
        "    find what made it grow, or update the expected file if the cost is wanted",
        "  drift of 1 passed row: median +20.0 %",
        "  changed rows, as a command or to paste:",
        '    dtdispatch expected update expected.csv --results results.csv --reason "..."',
        "a,dispatch_hit_ns,1200,0.3",
        f'"{LONG}",dispatch_hit_ns,123400,0.3',
        "c,dispatch_hit_ns,7,0.3",
    ]


def test_new_results_are_listed_up_to_ten() -> None:
    results = [number("a", HIT, 1), *(number(str(n), HIT, n) for n in range(12))]
    found = expected([ExpectedRow("a", HIT, 1, 0)], results)
    assert found[0] == "gate: passed against expected.csv: 1 passed, 12 new"
    assert found[1:11] == [f"  new {n}: dispatch_hit_ns {n}" for n in range(10)]
    assert found[11:13] == [
        "  and 2 more new rows; --dtdispatch-export csv:FILE writes all",
        "    the expected file has no such row: add one to gate it",
    ]


@pytest.mark.parametrize("results", [[], [number("a", HIT, 5)]])
def test_nothing_compared_is_reported(results: list[MetricValue]) -> None:
    found = expected([], results)
    assert found[0].startswith("gate: failed against expected.csv: ")
    assert found[-1].endswith(("no row to judge", "no row could be judged, so the gate fails"))


@pytest.mark.parametrize("state", [None, "hit"])
def test_long_lists_of_verdicts_are_cut(state: str | None) -> None:
    ids = (RowId("t.py::test_a", f"{n:03}", state) for n in range(500))
    rows = tuple(RowVerdict(row, Verdict.MISSING) for row in ids)
    judgement = Judgement(rows, "base.json", rows, to_paste=tuple(map(str, range(500))), command="update")
    short, whole = (judgement_document(judgement, View(verbose)) for verbose in (False, True))
    lines, every = (lines_of(document, 120) for document in (short, whole))
    assert len(lines) < 70
    assert len([line for line in every if any(f"{n:03}" in line for n in range(500))]) >= 500
    assert [line.strip() for line in lines].count("and 480 more; -v lists them") == 1
