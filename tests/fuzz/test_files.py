"""Arbitrary files are read exactly or refused in one line, and gates pass no row beyond its limit.

Rows beyond their limits are computed here independently of the gates.
"""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from pytest_dtdispatch.ab.report import exit_status
from pytest_dtdispatch.ab.rule import Rule
from pytest_dtdispatch.ab.run import judge_runs, read_folder
from pytest_dtdispatch.core.measurement import Samples, State
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import Threshold, Verdict
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.gates.expected import (
    ExpectedRow,
    by_name,
    judge_results,
    parse_expected,
    parse_row,
    read_results,
)
from pytest_dtdispatch.gates.saved_run import judge_run
from pytest_dtdispatch.gates.times import TimedRow, timed_rows
from pytest_dtdispatch.plugin.kinds import metric_names
from pytest_dtdispatch.report.run import KEY, ReportedRun, Turn, decode_run, encode_run, saved_text
from tests.fuzz.inputs import assert_one_line, changed, fuzzed, spoiled
from tests.reported_runs import BUDGET, COUNTED, measured, results_of
from tests.row_ids import number

METRICS = metric_names()
NAME = "t.py::test_add::add.Tensor(f32[8]S0, f32[8]S0)@4"
EXPECTED = f'# hits\n\n"{NAME}",dispatch_hit_ns,6940,0.25\nt.py::test_b::b,collectives,4,0,why\n'
RESULTS = f'"{NAME}",dispatch_hit_ns,6940\nt.py::test_b::b,collectives,4\n'


# Expected results


def oracle_rows(text: str) -> dict[tuple[str, str], tuple[int, Fraction]]:
    """Read rows with a CSV reader, and numbers exactly."""
    rows = {}
    for line in text.split("\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            name, metric, expected, margin, *_ = next(csv.reader([line.removesuffix("\r")]))
            escaped = (
                one if one.isprintable() else one.encode("unicode_escape").decode() for one in name.strip()
            )
            rows["".join(escaped), metric.strip()] = (int(expected), Fraction(str(float(margin))))
    return rows


@fuzzed
@given(text=spoiled(EXPECTED), found=some.lists(some.integers(0, 2**63), max_size=3))
def test_expected_file_is_read_exactly_or_refused(text: str, found: list[int]) -> None:
    try:
        rows = parse_expected(text, "e.csv", METRICS).rows
    except ValueError as error:
        assert_one_line(error, "e.csv:")
        return
    assert {(row.name, row.metric): (row.expected, Fraction(repr(row.noise_margin))) for row in rows} == (
        oracle_rows(text)
    )
    values = found or [row.expected for row in rows]
    results = [
        MetricValue(parse_row(row.name), row.metric, value) for row, value in zip(rows, values, strict=False)
    ]
    assert_no_wrong_verdict(rows, results)


@fuzzed
@example(expected=1000, margin=0.1, away=0, up=True, where="edge")
@example(expected=1000, margin=0.1, away=1, up=True, where="edge")
@example(expected=1000, margin=0.1, away=0, up=False, where="edge")
@example(expected=1000, margin=0.1, away=-1, up=False, where="edge")
@example(expected=2**53 + 3, margin=0.0, away=1, up=True, where="edge")  # floats round the value
@example(expected=2**53 + 1, margin=0.0, away=-1, up=False, where="edge")
@given(
    expected=some.one_of(some.integers(0, 2**63 - 1), some.integers(2**53, 2**53 + 99)),
    margin=some.one_of(some.floats(0, 1), some.sampled_from([0.0, 0.1, 0.3, 1.0])),
    away=some.integers(-3, 3),
    up=some.booleans(),
    where=some.sampled_from(["edge", "there", "gone"]),
)
def test_result_near_its_margin_is_judged_exactly(
    expected: int, margin: float, away: int, up: bool, where: str
) -> None:
    room = int(expected * Fraction(repr(margin)))
    value = max(0, expected + (room if up else -room) * (where == "edge") + away)
    row = ExpectedRow("t", "dispatch_hit_ns", expected, margin)
    assert_no_wrong_verdict([row], [number("gone" if where == "gone" else "t", row.metric, value)])


def assert_no_wrong_verdict(rows: Any, results: list[MetricValue]) -> None:
    judgement = judge_results(rows, results)
    found = {key: one.value for key, one in by_name(results).items()}
    verdicts = [verdict_of(row, found.get((row.name, row.metric))) for row in rows]
    assert [one.verdict for one in judgement.verdicts[: len(rows)]] == verdicts
    assert judgement.has_failed == (not rows or {*verdicts} != {Verdict.PASSED})


def verdict_of(row: ExpectedRow, value: int | None) -> Verdict:
    if value is None:
        return Verdict.MISSING
    if abs(value - row.expected) <= row.expected * Fraction(repr(row.noise_margin)):
        return Verdict.PASSED
    return Verdict.REGRESSED if value > row.expected else Verdict.IMPROVED


@fuzzed
@given(text=spoiled(RESULTS))
def test_results_file_is_read_exactly_or_refused(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape" if text.isascii() else "surrogatepass"))
    try:
        results = read_results(path, METRICS)
    except ValueError as error:
        assert_one_line(error, str(path))
        return
    lines = [line for line in text.split("\n") if line.strip()]
    has_rows = any(line.strip("\ufeff \t\r") and "#" not in line[:3] for line in lines)
    assert has_rows <= len(by_name(results)) == len(results) <= len(lines)


# Saved runs

NS = tuple(10_000 + 10 * n for n in range(8))
TEST, _, LABEL = NAME.rpartition("::")
STATES = (State.HIT, State.MISS, State.LOCAL)
MEASURED = measured(LABEL, *(Samples(state, NS) for state in STATES))
RUN = ReportedRun(measured={TEST: (MEASURED,)}, results=results_of(BUDGET, COUNTED))
SAVED = {"benchmarks": [], KEY: json.loads(json.dumps(encode_run(RUN)))}


@fuzzed
@given(
    run=changed(SAVED),
    slower=some.sampled_from([0.5, 1.0, 1.05, 1.2, 3.0]),
    threshold=some.sampled_from([0.1, 0.5]),
)
def test_saved_run_is_judged_or_refused(run: tuple[Any, list[Any]], slower: float, threshold: float) -> None:
    try:
        base = decode_run(run[0])
    except ValueError as error:
        assert_one_line(error)
        return
    then = timed_rows(base.each_row())
    now = [
        TimedRow(RowId(TEST, LABEL, state), Samples(state, tuple(round(ns * factor) for ns in NS)), "4")
        for state, factor in zip(STATES, (slower, slower, 1.0), strict=True)
    ]
    assert isinstance(base.documents(), dict)
    judgement = judge_run(then, now, lambda row: (Threshold("", "min", threshold),))
    passed = [one for one in judgement.verdicts if one.verdict in (Verdict.PASSED, Verdict.IMPROVED)]
    for one in passed:
        [samples] = [row.samples.ns for row in then if row.row == one.row][-1:]
        assert min(NS) * slower <= min(samples) * (1 + threshold) * (1 + 1e-9)
    failing = {Verdict.REGRESSED, Verdict.CONTAMINATED}
    assert judgement.has_failed or passed
    assert judgement.has_failed or not failing & {one.verdict for one in judgement.verdicts}


# Runs of A/B runs


def turn(number: int, side: str) -> dict[str, Any]:
    """Return a saved run; the head is twice as slow, except for plain tensors."""
    factor = (2.0 if side == "head" else 1.0) * (1 + number / 1000)
    times = {State.HIT: 7e3 * factor, State.MISS: 1e6 * factor, State.LOCAL: 2e3 + number}
    row = measured(LABEL, *(Samples(state, (round(ns),)) for state, ns in times.items()))
    environment = {"metric": "time", "torch version": "2.13.0"}
    turns = Turn("x", number, side, 1.0)
    run = ReportedRun(environment=environment, measured={TEST: (row,)}, turn=turns, control={"add": 2000})
    saved: dict[str, Any] = json.loads(saved_text(run))
    return saved


TURNS = ["base", "head", "head", "base"]
RECORDED = {
    side: [turn(n, side) for n, of in enumerate((TURNS * 3)[:10]) if of == side] for side in TURNS[:2]
}


@fuzzed
@given(runs=changed(RECORDED))
def test_saved_sides_are_judged_or_refused(
    runs: tuple[Any, list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    sides, changes = runs
    if not all(len(place) > 1 for place in changes):  # the folder itself
        return
    folder = tmp_path_factory.mktemp("saved")
    for side, of_side in sides.items():
        (folder / side).mkdir()
        for name, content in enumerate(of_side):
            (folder / side / f"{name}.json").write_text(json.dumps(content), "utf-8", "surrogatepass")
    try:
        saved = read_folder(folder)
        status = exit_status(judge_runs(saved["base"], saved["head"], Rule()))
    except DtDispatchError as error:
        assert_one_line(error)
        return
    assert status != 0
