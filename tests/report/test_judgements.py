"""Output of gates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtdispatch.core.measurement import Samples, State
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import (
    LIMITS,
    CountChange,
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
from pytest_dtdispatch.report.document import Document, Paragraph, View, plain
from pytest_dtdispatch.report.judgements import comparison_blocks, judgement_document, worst_text
from tests.rendered import assert_outputs_match, lines_of
from tests.row_ids import number

STEADY = tuple(10_000 + n for n in range(20))
THRESHOLD = Threshold("", "min", 0.1)


HIT = "dispatch_hit_ns"
COMMAND = 'dtdispatch expected update expected.csv --results results.csv --reason "..."'
LONG = f"tests/test_a_folder/test_file.py::test_{'name' * 30}::mm(f32[8,8]S0, f32[8,8]R)@4"


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


def of_base(judgement: Judgement, since: str = "") -> Judgement:
    return replace(judgement, where="base.json", since=since)


def expected(rows: list[ExpectedRow], *results: MetricValue, improved_fails: bool = True) -> Judgement:
    judged = judge_results(rows, results, improved_fails=improved_fails)
    return replace(judged, where="expected.csv", command=COMMAND)


def with_labels(judgement: Judgement, label: str) -> Judgement:
    verdicts = tuple(replace(row, row=row.row._replace(label=label)) for row in judgement.verdicts)
    return replace(judgement, verdicts=verdicts)


TWO = [ExpectedRow("a", HIT, 1000, 0.3), ExpectedRow("b", HIT, 1000, 0.3)]
THREE = [ExpectedRow(name, HIT, value, 0.3) for name, value in (("a", 1000), (LONG, 1000), ("c", 0))]
MANY = [number(str(n), HIT, n) for n in range(12)]
OVER = judge_count("train", "misses", 0, 2, "step 1 has 2", ("mm", "add"))
JUDGEMENTS = {
    "worst first": of_base(judged(1.0, 1.05, 1.5)),
    "drift": of_base(judged(1.06, 1.04, 1.05, 0.95, 1.5), since="2026-07-31"),
    "drift of plain tensors": of_base(judged(1.05, 1.05, states=(State.HIT, State.LOCAL))),
    "long labels": of_base(with_labels(judged(1.5, 1.0), "x" * 60)),
    "limit": Judgement((OVER,), LIMITS, (OVER,)),
    "unjudged": of_base(not_judged(Verdict.MISMATCHED, "threads: 2 then, 4 now", "save one")),
    "expected, passed": expected(TWO, number("a", HIT, 1200), number("b", HIT, 1000)),
    "expected, failed": expected(
        THREE, number("a", HIT, 1200), number(LONG, HIT, 123_456), number("c", HIT, 7)
    ),
    "expected, improved": expected(TWO, number("a", HIT, 500), number("b", HIT, 1000), improved_fails=False),
    "expected, new rows": expected(TWO[:1], number("a", HIT, 1000), *MANY),
    "expected, new rows alone": expected([], number("a", HIT, 5)),
    "expected, nothing": expected([]),
}
RENAMED = compare_rows(
    [timed(RowId("t", name, State.HIT)) for name in "abcd"],
    [timed(RowId("t", name, State.HIT), factor) for name, factor in (("a", 0.5), ("b", 1.5), ("c", 1.0))],
)


def test_outputs_match_the_saved_text() -> None:
    documents = {name: judgement_document(one, View()) for name, one in JUDGEMENTS.items()}
    documents["limit, -v"] = judgement_document(JUDGEMENTS["limit"])
    documents["compared without threshold"] = Document(tuple(comparison_blocks(RENAMED, View())))
    outputs = {name: "\n".join(lines_of(document, 80)) for name, document in documents.items()}
    outputs["worst first, -v"] = "\n".join(lines_of(judgement_document(JUDGEMENTS["worst first"]), 120))
    assert_outputs_match(Path(__file__).with_name("judgement_outputs.txt"), outputs)


def test_only_slower_rows_have_a_worst_line() -> None:
    assert worst_text(RENAMED[:3]) == "worst: t::b::hit, 10.0 -> 15.0 us (+50.0 %), slower"
    passed = judged(1.0, 1.05).verdicts
    new = RowVerdict(RowId("t", "a", None), Verdict.NEW)
    assert [worst_text(rows) for rows in ([], passed, RENAMED[2:3], [new])] == [""] * 4


def test_other_lines_of_a_cause_are_indented_further() -> None:
    causes = ("    add: f32[8] S0 -> R, at layers.py:6", "add one to gate it")
    row = RowVerdict(RowId("t.py::test_step", "train"), Verdict.REGRESSED, CountChange(1, 2), details=causes)
    blocks = judgement_document(Judgement((row,))).blocks
    lines = {plain(one.spans): (one.indent, one.hanging) for one in blocks if isinstance(one, Paragraph)}
    assert (lines["add: f32[8] S0 -> R, at layers.py:6"], lines["add one to gate it"]) == ((4, 1), (2, 1))


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
